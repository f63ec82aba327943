//! Measures the cost of one wait: the mechanism alone, without a server.
//!
//! Many sockets are watched, and a few of them are made ready before each wait. Only the wait and the
//! delivery of its events are timed. The papers argue about the cost of a single system call (provos
//! sections 3.1 to 3.3); this module measures that cost. In the guest kernel, where an instruction takes a
//! nanosecond, repeated measurements differ by less than one per cent.
//!
//! Calls of kernel functions ([`crate::kernel_calls`]) are counted in further waits after the timed ones,
//! because the probes would slow these.

use crate::kernel_calls::KernelCalls;
use anyhow::Context as _;
use pollux_event::{Interest, Mechanism, MechanismSpec, Token, registry};
use pollux_sys as sys;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value as Json, json};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    str::FromStr,
    time::{Duration, Instant},
};

/// The most sockets that are watched; each needs four bytes, beside the kernel's memory.
const MAX_WATCHED: usize = 1 << 24;
/// The most timed waits; each needs four bytes.
const MAX_WAITS: usize = 4_000_000;
/// The number of waits before the timed ones, in which caches and allocations reach a steady state.
const WARM_UP: usize = 20;
/// The number of waits in which kernel calls are counted.
const COUNTED: usize = 20;
/// The longest wait: a longer one is an error, because sockets are ready.
const LIMIT: Duration = Duration::from_secs(10);
/// The most waits until all ready sockets have been reported.
const MAX_WAITS_PER_ROUND: usize = 100_000;

/// The sockets that are ready at each wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// This many sockets, different ones each time.
    Some(usize),
    /// One socket, the same each time.
    Same,
    /// Half of the sockets, different ones each time.
    Half,
    /// All sockets.
    All,
}

impl Ready {
    /// Returns how many of `watched` sockets are ready.
    pub fn of(self, watched: usize) -> usize {
        match self {
            Self::Some(count) => count,
            Self::Same => 1,
            Self::Half => watched.div_ceil(2),
            Self::All => watched,
        }
    }
}

impl FromStr for Ready {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "same" => Ok(Self::Same),
            "half" => Ok(Self::Half),
            "all" => Ok(Self::All),
            number => number
                .parse()
                .map(Self::Some)
                .map_err(|_| format!("{text:?} is no number, and not same, half or all")),
        }
    }
}

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct WaitCost {
    /// The mechanism.
    pub mechanism: MechanismSpec,
    /// How many TCP sockets are watched for reading.
    pub watched: usize,
    /// The sockets that are made ready before each wait.
    pub ready: Ready,
    /// How many interests are changed before each wait, as part of the timed section: this many are
    /// removed, and those removed before the previous wait are added again.
    pub changes: usize,
    /// The longest time of the measurement.
    pub duration: Duration,
    /// The most waits that are measured: with the same seed, every mechanism gets the same waits.
    pub waits: Option<u64>,
    /// Kernel functions whose calls are counted.
    pub kernel_calls: Vec<String>,
    /// The seed that determines which sockets are made ready.
    pub seed: u64,
    /// The CPU on which the measurement runs.
    pub cpu: Option<u32>,
}

impl WaitCost {
    /// Finds settings that contradict each other.
    ///
    /// # Errors
    /// An error that names the flag.
    pub fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            (1..=MAX_WATCHED).contains(&self.watched),
            "--watched {}: from 1 to {MAX_WATCHED}",
            self.watched
        );
        let ready = self.ready.of(self.watched);
        anyhow::ensure!(
            (1..=self.watched).contains(&ready),
            "--ready {ready}: from 1 to --watched {}",
            self.watched
        );
        anyhow::ensure!(
            self.changes <= self.watched - ready,
            "--changes {}: at most {}, those watched and not made ready",
            self.changes,
            self.watched - ready
        );
        anyhow::ensure!(self.waits != Some(0), "--waits 0: at least one");
        if let Some(cpu) = self.cpu {
            let is_possible = (cpu as usize) < rustix::thread::CpuSet::MAX_CPU;
            anyhow::ensure!(is_possible, "--pin {cpu}: no such CPU");
        }
        Ok(())
    }
}

/// Measures the wait and returns one JSON document: `valid`, `mechanism_spec`, `waits`, `events`, `wait_ns`
/// (`mean`, `p50`, `p90`, `p99`, `max`), `system_calls`, the mechanism's own `details`, and `counted`
/// (`waits`, `kernel_calls`).
///
/// # Errors
/// The errors of [`WaitCost::check`]; when the mechanism is not available or cannot watch so many sockets,
/// when there are too few descriptors, when the mechanism does not report a ready socket, or when the kernel
/// cannot count the calls.
pub fn measure(what: &WaitCost) -> anyhow::Result<Json> {
    what.check()?;
    if let Some(cpu) = what.cpu {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu as usize);
        rustix::thread::sched_setaffinity(None, &set).with_context(|| format!("--pin {cpu}"))?;
    }
    // If the limit cannot be raised, opening the sockets shows whether it is high enough.
    let _ = sys::raise_descriptor_limit();
    registry::with_mechanism(&what.mechanism.name, Measurement(what))?
}

struct Measurement<'a>(&'a WaitCost);

impl registry::Visitor for Measurement<'_> {
    type Output = anyhow::Result<Json>;

    fn visit<M: Mechanism>(self) -> Self::Output {
        let what = self.0;
        let mut rig = Rig::<M>::open(what)?;
        for _ in 0..WARM_UP {
            rig.round()?;
        }
        rig.samples.clear();
        rig.events = 0;
        let before = sys::counters();
        let own_before = rig.set.statistics();
        let deadline = Instant::now() + what.duration;
        let most = what.waits.map_or(MAX_WAITS, |waits| waits.min(MAX_WAITS as u64) as usize);
        while rig.samples.is_empty() || (rig.samples.len() < most && Instant::now() < deadline) {
            rig.round()?;
        }
        let calls = sys::counters().since(&before);
        let details: BTreeMap<_, _> = rig
            .set
            .statistics()
            .into_iter()
            .zip(own_before)
            .map(|((name, after), (_, before))| (name, after.saturating_sub(before)))
            .collect();
        let mut document = document(what, &mut rig.samples, rig.events, &calls, details);
        if !what.kernel_calls.is_empty() {
            document["counted"] = rig.count()?;
        }
        rig.close()?;
        Ok(document)
    }
}

/// An interest set with its sockets.
struct Rig<'a, M> {
    what: &'a WaitCost,
    set: M,
    sockets: Sockets,
    tokens: Vec<Token>,
    /// The index in `sockets` of each descriptor.
    index_of_fd: BTreeMap<i32, usize>,
    random: StdRng,
    /// The time of each wait, in nanoseconds.
    samples: Vec<u32>,
    events: u64,
    reported: Vec<Token>,
    /// The sockets whose interest was removed before the last wait.
    muted: Vec<usize>,
}

impl<'a, M: Mechanism> Rig<'a, M> {
    fn open(what: &'a WaitCost) -> anyhow::Result<Self> {
        // The set is opened first, because `select` needs the low descriptors for the watched sockets.
        let mut set = M::open(&what.mechanism.options())?;
        let sockets = Sockets::open(what.watched)?;
        let mut tokens = Vec::with_capacity(what.watched);
        for socket in &sockets.all[..what.watched] {
            tokens.push(set.add(socket.as_fd(), Interest::READ)?);
        }
        let index_of_fd =
            sockets.all.iter().enumerate().map(|(index, s)| (s.as_raw_fd(), index)).collect();
        Ok(Self {
            what,
            set,
            sockets,
            tokens,
            index_of_fd,
            random: StdRng::seed_from_u64(what.seed),
            samples: Vec::with_capacity(1 << 16),
            events: 0,
            reported: Vec::with_capacity(what.watched),
            muted: Vec::with_capacity(what.changes),
        })
    }

    /// Makes sockets ready and waits until all of them have been reported.
    fn round(&mut self) -> anyhow::Result<()> {
        let what = self.what;
        // Neighbouring sockets from a random start: they are different sockets by construction, and need no
        // memory.
        let is_same = what.ready == Ready::Same;
        let start = if is_same { 0 } else { self.random.random_range(0..what.watched) };
        let ready = what.ready.of(what.watched);
        self.sockets.make_ready(start, ready)?;
        let mut missing = ready;
        let mut waits = 0;
        while missing > 0 {
            waits += 1;
            anyhow::ensure!(
                waits <= MAX_WAITS_PER_ROUND,
                "{} of {} ready sockets were not reported in {MAX_WAITS_PER_ROUND} waits",
                missing,
                ready
            );
            self.reported.clear();
            let started_at = Instant::now();
            if waits == 1 {
                self.change_interests(start + ready)?;
            }
            self.set.wait(Some(LIMIT))?;
            while let Some(event) = self.set.next_event() {
                self.reported.push(event.token);
            }
            let took = started_at.elapsed();
            anyhow::ensure!(took < LIMIT, "{} does not report what is ready", what.mechanism);
            self.samples.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
            self.events += self.reported.len() as u64;
            for token in &self.reported {
                missing -= self.sockets.take_byte(self.index_of_fd[&token.fd])?;
            }
        }
        Ok(())
    }

    /// Changes interests before a wait, beginning with the socket `from`: none of them is ready.
    fn change_interests(&mut self, from: usize) -> anyhow::Result<()> {
        while let Some(index) = self.muted.pop() {
            self.set.modify(self.tokens[index], Interest::READ)?;
        }
        for step in 0..self.what.changes {
            let index = (from + step) % self.what.watched;
            self.set.modify(self.tokens[index], Interest::empty())?;
            self.muted.push(index);
        }
        Ok(())
    }

    /// Makes further waits in which the kernel's calls are counted.
    fn count(&mut self) -> anyhow::Result<Json> {
        self.samples.clear();
        let calls = KernelCalls::of_this_thread(&self.what.kernel_calls)?;
        for _ in 0..COUNTED {
            self.round()?;
        }
        Ok(json!({"waits": self.samples.len(), "kernel_calls": calls.read()?}))
    }

    fn close(mut self) -> anyhow::Result<()> {
        for (token, socket) in self.tokens.into_iter().zip(self.sockets.all) {
            self.set.close(token, socket.into())?;
        }
        Ok(())
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
        "ready": what.ready.of(what.watched),
        "changes": what.changes,
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

/// TCP sockets over loopback, each connected to its neighbour: 2i and 2i + 1. If an odd number is watched,
/// there is one more socket that is not watched.
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
                // Closing with a reset leaves no connection in TIME_WAIT for the next run.
                rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
                sockets.push(socket);
            }
        }
        Ok(Self { all: sockets, watched })
    }

    /// Makes `count` of the watched sockets readable, beginning with `start`.
    fn make_ready(&mut self, start: usize, count: usize) -> anyhow::Result<()> {
        for step in 0..count {
            let peer = ((start + step) % self.watched) ^ 1;
            (&self.all[peer]).write_all(b"x").context("one byte to a peer")?;
        }
        Ok(())
    }

    /// Reads the byte of the socket at `index`, if there is one. Returns the number of bytes: 1 or 0.
    fn take_byte(&mut self, index: usize) -> anyhow::Result<usize> {
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

    fn what(mechanism: &str, watched: usize, ready: usize) -> WaitCost {
        WaitCost {
            mechanism: mechanism.parse().unwrap(),
            watched,
            ready: Ready::Some(ready),
            changes: 0,
            // Enough waits that the median is not a wait that was delayed by the CPU scheduler.
            waits: Some(200),
            kernel_calls: Vec::new(),
            duration: Duration::from_secs(60),
            seed: 1,
            cpu: None,
        }
    }

    fn cost(mechanism: &str, watched: usize, ready: usize) -> anyhow::Result<Json> {
        measure(&what(mechanism, watched, ready))
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
        // The number of watched sockets differs by a factor of 200, which no load on the machine can hide.
        let p50 =
            |watched| cost("poll", watched, 1).unwrap()["wait_ns"]["p50"].as_u64().unwrap() as f64;
        let (few, many) = (p50(2), p50(400));
        assert!(many > 2.0 * few, "{few} ns with 2, {many} ns with 400");
    }

    #[test]
    fn changes_and_a_number_of_waits() {
        for mechanism in ["poll", "epoll", "epoll-et", "select"] {
            let changing = |changes| WaitCost { changes, waits: Some(50), ..what(mechanism, 9, 2) };
            let json = measure(&changing(3)).unwrap();
            let waits = json["waits"].as_u64().unwrap();
            // A round may take two waits, and is always completed.
            assert!((50..=51).contains(&waits), "{mechanism}: {json}");
            assert!(json["counted"].is_null());
            let error = measure(&changing(8)).unwrap_err().to_string();
            assert_eq!(error, "--changes 8: at most 7, those watched and not made ready");
        }
    }

    #[test]
    fn limits_are_named() {
        let message = |watched, ready| format!("{:#}", cost("poll", watched, ready).unwrap_err());
        assert_eq!(message(0, 0), "--watched 0: from 1 to 16777216");
        assert_eq!(message(5, 6), "--ready 6: from 1 to --watched 5");
        let select = format!("{:#}", cost("select", 1_100, 1).unwrap_err());
        assert!(select.contains("select holds descriptors below 1024"), "{select}");
    }
}
