//! Three hubs on one Redis, while hubs are killed, Redis restarts, and Redis cannot be reached.

#[path = "hub_cluster/checker.rs"]
mod checker;

use checker::{Arrivals, Attempt, check_the_checker};
use pollux_testkit::{http::Client, redis::Redis, serve::Serve};
use rustix::process::Signal;
use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const BINARY: &str = env!("CARGO_BIN_EXE_pollux");
const PATH: &str = "/.well-known/mercure";
const HUBS: usize = 3;
/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The identifier of the last update, after which no subscriber reads.
const LAST: &str = "last";

/// The current addresses of the hubs, and the results that publishers have seen.
struct Cluster {
    addresses: [Mutex<SocketAddr>; HUBS],
    acknowledged: AtomicUsize,
    refused: AtomicUsize,
    has_ended: AtomicBool,
}

fn start(redis: &Redis) -> Serve {
    let store = format!("redis://127.0.0.1:{}", redis.port);
    let directory = redis.directory.path();
    let flags = ["--hub-anonymous", "--hub-publish-anonymous", "--hub-heartbeat", "1s"];
    let history = ["--hub-history", "1000000", "--hub-history-bytes", "1G"];
    let all =
        [&["--hub", "--hub-store", &store, "--workers", "2"], &flags[..], &history[..]].concat();
    Serve::start(BINARY, directory, &all)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !is_so() {
        assert!(started_at.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

impl Cluster {
    fn address(&self, hub: usize) -> SocketAddr {
        *self.addresses[hub].lock().unwrap()
    }

    /// Waits until this many further updates are acknowledged.
    fn wait_for_progress(&self, updates: usize) {
        let wanted = self.acknowledged.load(Ordering::SeqCst) + updates;
        wait_until("publishers to make progress", || {
            self.acknowledged.load(Ordering::SeqCst) >= wanted
        });
    }

    /// Publishes one update after the other at a hub. No update is sent twice.
    fn publish(&self, publisher: usize, pause: Duration) -> Vec<Attempt> {
        let mut attempts = Vec::new();
        let mut connection = None;
        while !self.has_ended.load(Ordering::SeqCst) {
            let id = format!("{publisher}-{}", attempts.len());
            let status = post(&mut connection, self.address(publisher % HUBS), &id);
            let is_acknowledged = status == Some(200);
            assert!(matches!(status, None | Some(200 | 503)), "{status:?}");
            let counter = if is_acknowledged { &self.acknowledged } else { &self.refused };
            counter.fetch_add(1, Ordering::SeqCst);
            attempts.push(Attempt { id, is_acknowledged });
            thread::sleep(pause);
        }
        attempts
    }

    /// Reads until the last update. Returns the updates that arrived and the number of connections
    /// that the subscriber made: when a connection ends, the subscriber connects to the next hub.
    fn subscribe(&self, subscriber: usize) -> (Arrivals, usize) {
        let (mut arrivals, mut connections) = (Vec::new(), 0);
        let started_at = Instant::now();
        loop {
            assert!(started_at.elapsed() < 4 * PATIENCE, "subscriber {subscriber} reads in vain");
            let hub = (subscriber + connections) % HUBS;
            let last = arrivals.last().map_or("earliest", String::as_str).to_owned();
            match self.read(hub, &last, &mut arrivals) {
                Some(true) => return (arrivals, connections + 1),
                Some(false) | None => connections += 1,
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Reads the updates after `last` from a hub. Returns whether the last update of all has arrived;
    /// `None` if the connection or the request failed.
    fn read(&self, hub: usize, last: &str, arrivals: &mut Arrivals) -> Option<bool> {
        let mut socket = TcpStream::connect(self.address(hub)).ok()?;
        socket.set_read_timeout(Some(PATIENCE)).ok()?;
        // Events in HTTP/1.0 are sent without chunks.
        let request = format!("GET {PATH}?match=* HTTP/1.0\r\nLast-Event-ID: {last}\r\n\r\n");
        socket.write_all(request.as_bytes()).ok()?;
        let mut lines = BufReader::new(socket).lines().map_while(Result::ok);
        if !lines.next()?.contains(" 200 ") {
            return Some(false);
        }
        let mut id = None;
        for line in lines {
            assert!(!line.contains("skipped"), "{line}");
            if let Some(text) = line.strip_prefix("id: ") {
                id = Some(text.to_owned());
            } else if line.is_empty()
                && let Some(id) = id.take()
            {
                if id == LAST {
                    return Some(true);
                }
                arrivals.push(id);
            }
        }
        Some(false)
    }
}

/// Posts an update, and returns the status if there is one.
fn post(connection: &mut Option<TcpStream>, address: SocketAddr, id: &str) -> Option<u16> {
    let mut socket = match connection.take() {
        Some(socket) => socket,
        None => TcpStream::connect(address).ok()?,
    };
    socket.set_read_timeout(Some(PATIENCE)).ok()?;
    let form = format!("topic=a&data=x&id={id}");
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: {}\r\n\r\n{form}",
        form.len()
    );
    socket.write_all(head.as_bytes()).ok()?;
    let mut reader = BufReader::new(socket.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    std::io::Read::read_exact(&mut reader, &mut vec![0; length]).ok()?;
    *connection = Some(socket);
    Some(status)
}

/// Runs the cluster with this many subscribers at each hub and rounds of faults, and with this pause
/// between two updates of a publisher.
fn run(subscribers: usize, rounds: usize, is_long: bool, pause: Duration) {
    let Some(mut redis) = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]) else {
        return;
    };
    let mut hubs: Vec<_> = (0..HUBS).map(|_| start(&redis)).collect();
    let address = |hub: &Serve| hub.address().parse::<SocketAddr>().unwrap();
    let cluster = Arc::new(Cluster {
        addresses: std::array::from_fn(|hub| Mutex::new(address(&hubs[hub]))),
        acknowledged: AtomicUsize::new(0),
        refused: AtomicUsize::new(0),
        has_ended: AtomicBool::new(false),
    });
    let spawn_subscriber = |number| {
        let cluster = cluster.clone();
        thread::spawn(move || cluster.subscribe(number))
    };
    let readers: Vec<_> = (0..subscribers * HUBS).map(spawn_subscriber).collect();
    let writers: Vec<_> = (0..HUBS)
        .map(|number| {
            let cluster = cluster.clone();
            thread::spawn(move || cluster.publish(number, pause))
        })
        .collect();
    cluster.wait_for_progress(100);
    for round in 0..rounds {
        // The last hub is never killed: its subscribers stay connected, also when Redis fails.
        let killed = round % (HUBS - 1);
        hubs[killed].signal(Signal::KILL);
        cluster.wait_for_progress(50);
        hubs[killed] = start(&redis);
        *cluster.addresses[killed].lock().unwrap() = address(&hubs[killed]);
        cluster.wait_for_progress(50);
        redis.kill();
        let refused = cluster.refused.load(Ordering::SeqCst);
        wait_until("a refusal", || cluster.refused.load(Ordering::SeqCst) > refused);
        redis.start_again();
        cluster.wait_for_progress(50);
        // Simulates a failure of the network: connections stay open, and no data passes.
        redis.pause(true);
        redis.wait_until_request_pending();
        if is_long {
            let refused = cluster.refused.load(Ordering::SeqCst);
            wait_until("a refusal", || cluster.refused.load(Ordering::SeqCst) > refused + HUBS);
        }
        redis.pause(false);
        cluster.wait_for_progress(50);
    }
    cluster.has_ended.store(true, Ordering::SeqCst);
    let mut publishers: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    wait_until("the last update", || post(&mut None, cluster.address(2), LAST) == Some(200));
    publishers.push(vec![Attempt { id: LAST.into(), is_acknowledged: false }]);
    let mut histories = Vec::new();
    for (number, reader) in readers.into_iter().enumerate() {
        let (arrivals, connections) = reader.join().unwrap();
        let was_killed = number % HUBS < rounds.min(HUBS - 1);
        assert_eq!(connections > 1, was_killed, "subscriber {number}: {connections} connections");
        histories.push(arrivals);
    }
    println!(
        "{} updates acknowledged, {} not, {} subscribers",
        cluster.acknowledged.load(Ordering::SeqCst),
        cluster.refused.load(Ordering::SeqCst),
        histories.len()
    );
    check_the_checker(&publishers, &histories);
    // A hub that starts now has the same history.
    let late = start(&redis);
    let reply = Client::connect(late.address()).request(
        "GET",
        &format!("{PATH}?match=*"),
        &["Prefer: wait=0", "Last-Event-ID: earliest"],
    );
    assert_eq!(reply.status, 200);
    assert!(reply.text().contains(&format!("id: {}\n", histories[0][0])));
}

#[test]
fn three_hubs_lose_and_repeat_nothing() {
    run(2, 1, false, Duration::from_millis(5));
}

#[test]
#[ignore = "takes minutes: kills and restarts eight times, with partitions that last"]
fn three_hubs_lose_and_repeat_nothing_for_long() {
    run(10, 8, true, Duration::from_millis(2));
}

/// If several hubs find no stream at the same time, only one of them begins a new stream: otherwise
/// subscribers would treat the epoch of the second stream as a loss, and would get a notice of missed
/// updates.
#[test]
fn one_hub_alone_begins_a_stream() {
    const ROUNDS: usize = 60;
    /// Counts the different epochs in the names (`EPOCH-NUMBER`) of all entries.
    const COUNT: &str = "EVAL \"local seen,n={},0 for _,entry in ipairs(redis.call('XRANGE',KEYS[1],'-','+')) do \
                         local name=string.match(entry[1],'^%d+') if not seen[name] then seen[name]=1 n=n+1 end end \
                         return n\" 1 pollux-hub:/.well-known/mercure";
    let Some(redis) = Redis::start(&[]) else { return };
    let hubs: Vec<_> = (0..HUBS).map(|_| start(&redis)).collect();
    for round in 0..ROUNDS {
        redis.command("DEL pollux-hub:/.well-known/mercure");
        let barrier = std::sync::Barrier::new(HUBS);
        thread::scope(|scope| {
            for (hub, serve) in hubs.iter().enumerate() {
                let (barrier, address) = (&barrier, serve.address().parse().unwrap());
                scope.spawn(move || {
                    barrier.wait();
                    let status = post(&mut None, address, &format!("{round}-{hub}"));
                    assert_eq!(status, Some(200), "{round}");
                });
            }
        });
        assert_eq!(redis.command(COUNT), ":1", "{round}");
    }
}
