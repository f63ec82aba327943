//! `pollux load --subscribe` by several ranks: each holds its part of the subscribers, and rank 0
//! publishes. All ranks have the same schedule and start, so each measures the latency of its own
//! deliveries.

use super::{
    Heartbeat, OWN_CLOCK, PeerResults, Ranks,
    clock::ClockReading,
    report::{ClockComparison, RankReport},
    share,
};
use crate::{
    idle::IdleReport,
    outcome::Requests,
    push::{self, PushConfig, PushReport, plan::PushPlan, record::SubscriberRecord},
};
use anyhow::{Context, Result, ensure};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A description of everything in `config` that must be the same on every rank; addresses and CPUs,
/// which belong to one host, are omitted.
pub fn push_task(config: &PushConfig) -> String {
    let common = PushConfig { sources: None, cpus: Vec::new(), progress: false, ..config.clone() };
    format!("load {common:?}")
}

/// Runs this rank's part of `config`. Rank 0 returns the report of all ranks, the others `None`.
///
/// # Errors
/// As [`crate::push::run()`], of any rank: rank 0 names the rank.
pub fn run_push(
    config: &PushConfig,
    ranks: &mut Ranks,
    stop: &AtomicBool,
) -> Result<Option<PushReport>> {
    match try_run(config, ranks, stop) {
        Ok(report) => Ok(report),
        Err(error) => ranks.give_up(error).map(|()| None),
    }
}

fn try_run(
    config: &PushConfig,
    ranks: &mut Ranks,
    stop: &AtomicBool,
) -> Result<Option<PushReport>> {
    config.check()?;
    ensure!(config.quiet_time.is_none(), "--quiet-time: for one process, not for several ranks");
    let (rank, size) = (ranks.rank(), ranks.size());
    let part = share::part(config.subscribers as u64, rank, size) as usize;
    ensure!(part > 0, "--subscribe {}: {size} ranks share them", config.subscribers);
    let own =
        PushConfig { subscribers: part, progress: config.progress && rank == 0, ..config.clone() };
    // The contents have the same mark on all ranks, and not that of another run: a server with a history
    // sends the updates of earlier runs to new subscribers.
    let plan = PushPlan::new(&own, ranks.run_number)?;
    let mut run = push::measure(
        plan,
        ranks.is_first(),
        stop,
        |_| (),
        |plan| {
            let progress = plan.progress.clone();
            ranks.heartbeat(move || Heartbeat {
                completed: progress.delivered.load(Relaxed),
                idle: IdleReport { held: progress.held.load(Relaxed), ..IdleReport::default() },
                ..Heartbeat::default()
            });
            let (_, at_ns) = ranks.ready(Heartbeat::default())?;
            let left_ns = at_ns.saturating_sub(ClockReading::now().monotonic_ns);
            // If the start was missed, the latencies show it.
            Ok(plan.now_ns().saturating_add_signed(left_ns))
        },
    )?;
    let interrupted = stop.load(Relaxed);
    let measured = postcard::to_stdvec(&run.threads).context("what was measured")?;
    let Some(PeerResults { peers, fault }) = ranks.finish(interrupted, measured)? else {
        return Ok(None);
    };
    let clock = ClockComparison::new(OWN_CLOCK);
    let mut members = vec![member(0, &ranks.host, std::process::id(), clock, &run.threads)];
    members[0].requests.sent = run.publisher.as_ref().map_or(0, |publisher| publisher.sent);
    for peer in &peers {
        let identity = &peer.identity;
        let Some(handed) = &peer.result else {
            members.push(peer.report_of_loss());
            continue;
        };
        let threads: Vec<SubscriberRecord> = postcard::from_bytes(&handed.measured)
            .with_context(|| format!("what rank {} ({}) measured", identity.rank, identity.host))?;
        let clock = ClockComparison::new(handed.clock);
        members.push(member(identity.rank, &identity.host, identity.pid, clock, &threads));
        run.threads.extend(threads);
    }
    let mut report = PushReport::new(run, stop.load(Relaxed));
    let ranks = ranks.report(members, fault);
    if let Some(reason) = ranks.invalid_reason(config.max_lag).or(report.invalid_reason.take()) {
        report.invalid_reason = Some(reason);
        report.valid = false;
    }
    report.ranks = Some(ranks);
    Ok(Some(report))
}

/// A rank's line: the deliveries are its completed requests, and its subscribers are held.
fn member(
    rank: u32,
    host: &str,
    pid: u32,
    clock: ClockComparison,
    threads: &[SubscriberRecord],
) -> RankReport {
    let sum = |count: fn(&SubscriberRecord) -> u64| threads.iter().map(count).sum::<u64>();
    let held = IdleReport {
        wanted: sum(|thread| thread.subscribers.wanted as u64) as usize,
        held: sum(|thread| thread.subscribers.at_end as u64) as usize,
        dropped: sum(|thread| thread.subscribers.dropped),
        ..IdleReport::default()
    };
    let delivered = sum(|thread| thread.delivered.iter().map(|&got| u64::from(got)).sum());
    let requests = Requests {
        scheduled: delivered,
        sent: 0,
        completed: delivered,
        failed: 0,
        unsent: 0,
        unfinished: 0,
    };
    RankReport { requests, ..RankReport::idle(rank, host, pid, clock, held) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Config, output, push::PublishOptions, ranks::tests::two_ranks, schedule::Length,
    };
    use std::{
        io::{BufRead, BufReader, Read, Write},
        net::{SocketAddr, TcpListener, TcpStream},
        sync::{Arc, Mutex},
        thread,
        time::Duration,
    };

    /// A push server: a GET is a subscription, a POST an update for all of them.
    #[derive(Default)]
    struct Hub {
        streams: Mutex<Vec<TcpStream>>,
        /// The addresses from which updates came.
        publishers: Mutex<Vec<SocketAddr>>,
    }

    impl Hub {
        fn start() -> (Arc<Self>, SocketAddr) {
            let hub = Arc::new(Self::default());
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let served = hub.clone();
            thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let hub = served.clone();
                    thread::spawn(move || hub.serve(&stream));
                }
            });
            (hub, address)
        }

        /// Answers the requests of a connection. Returns when it ends or is a subscription.
        fn serve(&self, stream: &TcpStream) -> Option<()> {
            let mut reader = BufReader::new(stream);
            loop {
                let (mut head, mut length) = (Vec::new(), 0);
                while head.last().is_none_or(|line| line != "\r\n") {
                    let mut line = String::new();
                    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
                    if let Some(value) = line.strip_prefix("Content-Length: ") {
                        length = value.trim().parse().ok()?;
                    }
                    head.push(line);
                }
                let mut writer = stream;
                if head[0].starts_with("GET ") {
                    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                                 Transfer-Encoding: chunked\r\n\r\n";
                    // Updates wait for the lock, so that each subscriber that has the head gets all.
                    let mut streams = self.streams.lock().unwrap();
                    writer.write_all(head).ok()?;
                    // The history: an update of another run with the same seed.
                    let event = "data: pollux-00000001-0000000000-\n\n";
                    write!(writer, "{:x}\r\n{event}\r\n", event.len()).ok()?;
                    streams.push(stream.try_clone().ok()?);
                    return Some(());
                }
                let mut form = vec![0; length];
                reader.read_exact(&mut form).ok()?;
                let form = String::from_utf8(form).ok()?;
                let mut publishers = self.publishers.lock().unwrap();
                let event =
                    format!("id: {}\ndata: {}\n\n", publishers.len(), form.split_once("data=")?.1);
                publishers.push(stream.peer_addr().ok()?);
                for mut stream in self.streams.lock().unwrap().iter() {
                    let _ = write!(stream, "{:x}\r\n{event}\r\n", event.len());
                }
                drop(publishers);
                writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nid").ok()?;
            }
        }
    }

    #[test]
    fn two_ranks_share_the_subscribers_and_the_first_one_publishes() {
        let (hub, address) = Hub::start();
        let url = |path: &str| format!("http://{address}{path}").parse().unwrap();
        let mut base = Config::new(url("/x"), 50.0, Duration::from_secs(1));
        base.length = Length::Requests(20);
        base.timeout = Duration::from_secs(60);
        // Tests run on busy machines.
        base.max_lag = Duration::from_secs(3600);
        let body = "topic=t&data={data}".into();
        let publish = PublishOptions { url: url("/hub"), headers: Vec::new(), body };
        let config = PushConfig { intervals: true, ..PushConfig::new(&base, 11, publish).unwrap() };
        let [first, second] =
            two_ranks(&push_task(&config), |ranks, stop| run_push(&config, ranks, stop).unwrap());
        assert!(second.is_none(), "rank 0 reports for both");
        let report = first.unwrap();
        assert!(report.valid && report.is_complete(), "{report:?}");
        assert_eq!((report.subscribers.wanted, report.subscribers.at_end), (11, 11));
        assert_eq!((report.publications.sent, report.publications.acknowledged), (20, 20));
        assert_eq!((report.deliveries.expected, report.deliveries.delivered), (220, 220));
        // Regression: those of an earlier run with the same seed once counted, too.
        assert_eq!((report.deliveries.corrupt, report.deliveries.foreign), (0, 11));
        assert_eq!((report.latency_us.count, report.fan_out_us.count), (220, 20));
        let members = &report.ranks.as_ref().unwrap().members;
        let shares: Vec<_> =
            members.iter().map(|one| (one.rank, one.idle.held, one.requests.completed)).collect();
        assert_eq!(shares, [(0, 6, 120), (1, 5, 100)]);
        assert_eq!(members.iter().map(|one| one.requests.sent).collect::<Vec<_>>(), [20, 0]);
        assert_eq!(hub.publishers.lock().unwrap().len(), 20, "only one rank has published");
        let mut log = Vec::new();
        output::hdr::write_push(&report, &mut log).unwrap();
        let log = String::from_utf8(log).unwrap();
        let is_data = |line: &&str| line.starts_with(|first: char| first.is_ascii_digit());
        assert!(log.contains("Tag=publish") && log.lines().any(|line| is_data(&line)), "{log}");
    }

    #[test]
    fn a_rank_without_subscribers_ends_the_run_of_both() {
        let (_hub, address) = Hub::start();
        let url = |path: &str| format!("http://{address}{path}").parse().unwrap();
        let base = Config::new(url("/x"), 50.0, Duration::from_secs(1));
        let body = "data={data}".into();
        let publish = PublishOptions { url: url("/hub"), headers: Vec::new(), body };
        let config = PushConfig::new(&base, 1, publish).unwrap();
        let [first, second] = two_ranks(&push_task(&config), |ranks, stop| {
            run_push(&config, ranks, stop).map(|report| report.is_some())
        });
        let error = format!("{:#}", first.unwrap_err());
        assert!(error.contains("--subscribe 1: 2 ranks share them"), "{error}");
        assert!(!second.is_ok_and(|has_report| has_report));
    }
}
