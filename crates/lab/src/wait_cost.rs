//! What one wait costs: the mechanism alone, with no server around it.
//!
//! Many sockets are watched and a few of them made ready before each wait; only the wait and the
//! handing out of its events are timed. This is how the papers' arguments about a single system
//! call are measured (provos sections 3.1 to 3.3), and in the guest kernel, where an instruction is
//! a nanosecond, it repeats to the per cent.

use anyhow::Context as _;
use pollux_event::{Interest, Mechanism, MechanismSpec, Token, registry, sys};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value as Json, json};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    time::{Duration, Instant},
};

/// The most waits that are timed; each keeps four bytes.
const MAX_WAITS: usize = 4_000_000;
/// Waits before the timed ones: caches and allocations settle.
const WARM_UP: usize = 20;
/// How long a wait may take until something is wrong: what was made ready is ready.
const LIMIT: Duration = Duration::from_secs(10);
/// The most waits until all that was made ready has been reported.
const MAX_WAITS_PER_ROUND: usize = 100_000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct WaitCost {
    /// The mechanism.
    pub mechanism: MechanismSpec,
    /// How many TCP sockets are watched for reading.
    pub watched: usize,
    /// How many of them are made ready before each wait.
    pub ready: usize,
    /// How long to measure.
    pub duration: Duration,
    /// Decides which are made ready.
    pub seed: u64,
    /// The CPU to run on.
    pub cpu: Option<u32>,
}

/// Measures, and returns one JSON document: `valid`, `mechanism_spec`, `waits`, `events`, `wait_ns`
/// (`mean`, `p50`, `p90`, `p99`, `max`), `system_calls` and the mechanism's own `details`.
///
/// # Errors
/// When the mechanism is not there or cannot hold so many, when descriptors run out, or when it
/// does not report what is ready.
pub fn measure(what: &WaitCost) -> anyhow::Result<Json> {
    anyhow::ensure!(what.watched >= 1, "--watched: at least one");
    anyhow::ensure!(
        (1..=what.watched).contains(&what.ready),
        "--ready {}: from 1 to --watched {}",
        what.ready,
        what.watched
    );
    if let Some(cpu) = what.cpu {
        let mut set = rustix::thread::CpuSet::new();
        anyhow::ensure!(
            (cpu as usize) < rustix::thread::CpuSet::MAX_CPU,
            "--pin {cpu}: no such CPU"
        );
        set.set(cpu as usize);
        rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("--pin {cpu}"))?;
    }
    // Where it stays as it is, the sockets will say whether it is enough.
    let _ = sys::raise_descriptor_limit();
    registry::with_mechanism(&what.mechanism.name, Measurement(what))?
}

struct Measurement<'a>(&'a WaitCost);

impl registry::Visitor for Measurement<'_> {
    type Output = anyhow::Result<Json>;

    fn visit<M: Mechanism>(self) -> Self::Output {
        let what = self.0;
        // The set first: `select` wants the low descriptors for what it watches.
        let mut set = M::open(&what.mechanism.options())?;
        let mut sockets = Sockets::open(what.watched)?;
        let mut tokens = Vec::with_capacity(what.watched);
        for socket in &sockets.all[..what.watched] {
            tokens.push(set.add(socket.as_fd(), Interest::READ)?);
        }
        let index: BTreeMap<i32, usize> =
            sockets.all.iter().enumerate().map(|(index, s)| (s.as_raw_fd(), index)).collect();
        let mut random = StdRng::seed_from_u64(what.seed);
        let mut samples: Vec<u32> = Vec::with_capacity(1 << 16);
        let (mut events, mut rounds) = (0u64, 0);
        let mut reported: Vec<Token> = Vec::with_capacity(what.watched);
        let mut before = sys::counters();
        let mut own_before = set.statistics();
        let mut deadline = Instant::now() + LIMIT;
        while rounds < WARM_UP || (Instant::now() < deadline && samples.len() < MAX_WAITS) {
            if rounds == WARM_UP {
                samples.clear();
                events = 0;
                before = sys::counters();
                own_before = set.statistics();
                deadline = Instant::now() + what.duration;
            }
            rounds += 1;
            let mut missing = sockets.make_ready(what.ready, &mut random)?;
            let mut waits = 0;
            while missing > 0 {
                waits += 1;
                anyhow::ensure!(
                    waits <= MAX_WAITS_PER_ROUND,
                    "{} of {} ready sockets were not reported in {MAX_WAITS_PER_ROUND} waits",
                    missing,
                    what.ready
                );
                reported.clear();
                let started_at = Instant::now();
                set.wait(Some(LIMIT))?;
                while let Some(event) = set.next_event() {
                    reported.push(event.token);
                }
                let took = started_at.elapsed();
                anyhow::ensure!(took < LIMIT, "{} does not report what is ready", what.mechanism);
                samples.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
                events += reported.len() as u64;
                for token in &reported {
                    missing -= sockets.read(index[&token.fd])?;
                }
            }
        }
        let calls = sys::counters().since(&before);
        let details: BTreeMap<_, _> = set
            .statistics()
            .into_iter()
            .zip(own_before)
            .map(|((name, after), (_, before))| (name, after.saturating_sub(before)))
            .collect();
        for (token, socket) in tokens.into_iter().zip(sockets.all) {
            set.close(token, socket.into())?;
        }
        Ok(document(what, &mut samples, events, &calls, details))
    }
}

fn document(
    what: &WaitCost,
    samples: &mut [u32],
    events: u64,
    calls: &sys::Counters,
    details: BTreeMap<&'static str, u64>,
) -> Json {
    samples.sort_unstable();
    let at = |share: f64| samples[((samples.len() - 1) as f64 * share).round() as usize];
    let total: u64 = samples.iter().map(|&ns| u64::from(ns)).sum();
    let kinds: BTreeMap<_, _> = calls
        .iter()
        .map(|(call, count, time)| {
            (call.name(), json!({"count": count, "ns": time.as_nanos() as u64}))
        })
        .collect();
    json!({
        "valid": true,
        "invalid_reason": null,
        "mechanism_spec": what.mechanism.to_string(),
        "watched": what.watched,
        "ready": what.ready,
        "waits": samples.len(),
        "events": events,
        "wait_ns": {
            "mean": total as f64 / samples.len() as f64,
            "p50": at(0.5),
            "p90": at(0.9),
            "p99": at(0.99),
            "max": at(1.0),
        },
        "system_calls": kinds,
        "details": details,
        "seed": what.seed,
    })
}

/// TCP sockets over loopback, each the peer of its neighbour: 2i and 2i + 1 are connected. When an
/// odd number is watched, one more is there and not watched.
struct Sockets {
    all: Vec<TcpStream>,
    watched: usize,
}

impl Sockets {
    fn open(watched: usize) -> anyhow::Result<Self> {
        let shortage = || {
            format!("{watched} sockets (is the limit on open files high enough? `pollux doctor`)")
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let mut sockets = Vec::with_capacity(watched + 1);
        while sockets.len() < watched {
            let near = TcpStream::connect(address).with_context(shortage)?;
            let (far, _) = listener.accept().with_context(shortage)?;
            for socket in [near, far] {
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                // Closed by a reset: no TIME_WAIT is left behind for the next run.
                rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
                sockets.push(socket);
            }
        }
        Ok(Self { all: sockets, watched })
    }

    /// Makes `count` different sockets among those watched readable; returns how many.
    fn make_ready(&mut self, count: usize, random: &mut StdRng) -> anyhow::Result<usize> {
        // Neighbours in a random place: different by construction, at no cost of memory.
        let start = random.random_range(0..self.watched);
        for step in 0..count {
            let peer = ((start + step) % self.watched) ^ 1;
            (&self.all[peer]).write_all(b"x").context("one byte to a peer")?;
        }
        Ok(count)
    }

    /// Takes the byte of the socket at `index`, if it has one: 1 or 0.
    fn read(&mut self, index: usize) -> anyhow::Result<usize> {
        let mut byte = [0];
        match (&self.all[index]).read(&mut byte) {
            Ok(count) => Ok(count),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error).context("reading a reported socket"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(mechanism: &str, watched: usize, ready: usize) -> anyhow::Result<Json> {
        measure(&WaitCost {
            mechanism: mechanism.parse()?,
            watched,
            ready,
            duration: Duration::from_millis(20),
            seed: 1,
            cpu: None,
        })
    }

    #[test]
    fn every_mechanism_here_reports_all_that_is_ready() {
        for entry in registry::ALL {
            let spec: MechanismSpec = entry.name.parse().unwrap();
            if let Err(reason) = registry::probe(&spec) {
                eprintln!("{} skipped: {reason}", entry.name);
                continue;
            }
            let json = cost(entry.name, 33, 7).unwrap_or_else(|e| panic!("{}: {e:#}", entry.name));
            assert!(json["waits"].as_u64().unwrap() > 0, "{}", entry.name);
            assert!(json["events"].as_u64().unwrap() >= 7, "{}", entry.name);
            assert!(json["wait_ns"]["p50"].as_u64().unwrap() > 0, "{}", entry.name);
        }
    }

    #[test]
    fn a_scan_costs_more_the_more_is_watched() {
        // A factor of 200 in what is watched: no load on the machine hides it.
        let p50 =
            |watched| cost("poll", watched, 1).unwrap()["wait_ns"]["p50"].as_u64().unwrap() as f64;
        let (few, many) = (p50(2), p50(400));
        assert!(many > 2.0 * few, "{few} ns with 2, {many} ns with 400");
    }

    #[test]
    fn limits_are_named() {
        let said = |watched, ready| format!("{:#}", cost("poll", watched, ready).unwrap_err());
        assert_eq!(said(0, 0), "--watched: at least one");
        assert_eq!(said(5, 6), "--ready 6: from 1 to --watched 5");
        let select = format!("{:#}", cost("select", 1_100, 1).unwrap_err());
        assert!(select.contains("select holds descriptors below 1024"), "{select}");
    }
}
