//! Three hubs on one Redis, while hubs are killed, Redis restarts, and Redis or a hub cannot be reached.

#[path = "hub_cluster/checker.rs"]
mod checker;
#[path = "hub_cluster/partition.rs"]
mod partition;

use checker::{Arrivals, Attempt, check_the_checker};
use pollux_testkit::{becomes_true, http::Client, redis::Redis, serve::Serve, token};
use rustix::process::Signal;
use serde_json::json;
use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const BINARY: &str = env!("CARGO_BIN_EXE_pollux");
const PATH: &str = "/.well-known/mercure";
const HUBS: usize = 3;
/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The identifier of the last update, after which no subscriber reads.
const LAST: &str = "last";
/// The key with which publishers sign their tokens.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// The current addresses of the hubs, and the results that publishers have seen.
struct Cluster {
    addresses: [Mutex<SocketAddr>; HUBS],
    /// By publisher.
    acknowledged: [AtomicUsize; HUBS],
    refused: AtomicUsize,
    has_ended: AtomicBool,
    /// The connections that subscribers have made after their first one.
    reconnections: AtomicUsize,
}

fn start(redis: &Redis) -> Serve {
    start_at(redis, "127.0.0.1", "127.0.0.1")
}

/// Starts a hub that reaches Redis at one address, and listens at another one.
fn start_at(redis: &Redis, store: &str, own: &str) -> Serve {
    let directory = redis.directory.path();
    let key = directory.join("hub.key");
    std::fs::write(&key, SECRET).unwrap();
    let store = format!("redis://{store}:{}", redis.port);
    let mut command = Command::new(BINARY);
    command.arg("serve").arg(directory).args(["--json", "--workers", "2"]);
    command.args(["--listen", &format!("{own}:0"), "--hub", "--hub-store", &store]);
    command.args(["--hub-anonymous", "--hub-heartbeat", "1s", "--hub-jwt-key"]).arg(key);
    command.args(["--hub-history", "1000000", "--hub-history-bytes", "1G"]);
    Serve::start_command(command)
}

fn wait_until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(becomes_true(PATIENCE, is_so), "waited in vain for {what}");
}

impl Cluster {
    fn new(hubs: &[Serve]) -> Arc<Self> {
        Arc::new(Self {
            addresses: std::array::from_fn(|hub| Mutex::new(address_of(&hubs[hub]))),
            acknowledged: std::array::from_fn(|_| AtomicUsize::new(0)),
            refused: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
            reconnections: AtomicUsize::new(0),
        })
    }

    fn address(&self, hub: usize) -> SocketAddr {
        *self.addresses[hub].lock().unwrap()
    }

    fn acknowledged(&self) -> usize {
        self.acknowledged.iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }

    /// Waits until this many further updates are acknowledged.
    fn wait_for_progress(&self, updates: usize) {
        let wanted = self.acknowledged() + updates;
        wait_until("publishers to make progress", || self.acknowledged() >= wanted);
    }

    /// Waits until this many further updates are refused.
    fn wait_for_refusals(&self, updates: usize) {
        let wanted = self.refused.load(Ordering::SeqCst) + updates;
        wait_until("a refusal", || self.refused.load(Ordering::SeqCst) >= wanted);
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
            let acknowledged = &self.acknowledged[publisher];
            let counter = if is_acknowledged { acknowledged } else { &self.refused };
            counter.fetch_add(1, Ordering::SeqCst);
            attempts.push(Attempt { id, is_acknowledged });
            // The pace of the publisher.
            thread::sleep(pause);
        }
        attempts
    }

    /// Reads until the last update. Returns the updates that arrived and the number of connections
    /// that the subscriber made: when a connection ends, or is silent for `patience`, the subscriber
    /// connects to the next hub.
    fn subscribe(&self, subscriber: usize, patience: Duration) -> (Arrivals, usize) {
        let (mut arrivals, mut connections) = (Vec::new(), 0);
        let started_at = Instant::now();
        loop {
            assert!(started_at.elapsed() < 4 * PATIENCE, "subscriber {subscriber} reads in vain");
            let hub = (subscriber + connections) % HUBS;
            let last = arrivals.last().map_or("earliest", String::as_str).to_owned();
            match self.read(hub, &last, patience, &mut arrivals) {
                Some(true) => return (arrivals, connections + 1),
                Some(false) | None => connections += 1,
            }
            self.reconnections.fetch_add(1, Ordering::SeqCst);
            // As a client does, the subscriber pauses before it connects again.
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Reads the updates after `last` from a hub. Returns whether the last update of all has arrived;
    /// `None` if the connection or the request failed.
    fn read(
        &self,
        hub: usize,
        last: &str,
        patience: Duration,
        arrivals: &mut Arrivals,
    ) -> Option<bool> {
        let mut socket = TcpStream::connect_timeout(&self.address(hub), patience).ok()?;
        socket.set_read_timeout(Some(patience)).ok()?;
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

fn address_of(hub: &Serve) -> SocketAddr {
    hub.address().parse().unwrap()
}

fn publisher_token() -> String {
    token::sign(&json!({}), &json!({"mercure": {"publish": ["*"]}}), SECRET)
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
         Authorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{form}",
        publisher_token(),
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

type Reader = JoinHandle<(Arrivals, usize)>;
type Writer = JoinHandle<Vec<Attempt>>;

fn reader(cluster: &Arc<Cluster>, number: usize, patience: Duration) -> Reader {
    let cluster = cluster.clone();
    thread::spawn(move || cluster.subscribe(number, patience))
}

fn writer(cluster: &Arc<Cluster>, number: usize, pause: Duration) -> Writer {
    let cluster = cluster.clone();
    thread::spawn(move || cluster.publish(number, pause))
}

/// Ends the publishers, publishes the last update, and checks what reached the subscribers. Returns the
/// arrivals and the number of connections of each subscriber.
fn finish(
    cluster: &Cluster,
    writers: Vec<Writer>,
    readers: Vec<Reader>,
) -> (Vec<Arrivals>, Vec<usize>) {
    cluster.has_ended.store(true, Ordering::SeqCst);
    let mut publishers: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    wait_until("the last update", || post(&mut None, cluster.address(2), LAST) == Some(200));
    publishers.push(vec![Attempt { id: LAST.into(), is_acknowledged: false }]);
    let (histories, connections): (Vec<_>, Vec<_>) =
        readers.into_iter().map(|reader| reader.join().unwrap()).unzip();
    println!(
        "{} updates acknowledged, {} not, {} subscribers",
        cluster.acknowledged(),
        cluster.refused.load(Ordering::SeqCst),
        histories.len()
    );
    check_the_checker(&publishers, &histories);
    (histories, connections)
}

/// Runs the cluster with this many subscribers at each hub and rounds of faults, and with this pause
/// between two updates of a publisher.
fn run(subscribers: usize, rounds: usize, is_long: bool, pause: Duration) {
    let Some(mut redis) = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]) else {
        return;
    };
    let mut hubs: Vec<_> = (0..HUBS).map(|_| start(&redis)).collect();
    let cluster = Cluster::new(&hubs);
    let readers: Vec<_> =
        (0..subscribers * HUBS).map(|number| reader(&cluster, number, PATIENCE)).collect();
    let writers: Vec<_> = (0..HUBS).map(|number| writer(&cluster, number, pause)).collect();
    cluster.wait_for_progress(100);
    for round in 0..rounds {
        // The last hub is never killed: its subscribers stay connected, also when Redis fails.
        let killed = round % (HUBS - 1);
        hubs[killed].signal(Signal::KILL);
        cluster.wait_for_progress(50);
        hubs[killed] = start(&redis);
        *cluster.addresses[killed].lock().unwrap() = address_of(&hubs[killed]);
        cluster.wait_for_progress(50);
        redis.kill();
        cluster.wait_for_refusals(1);
        redis.start_again();
        cluster.wait_for_progress(50);
        // Simulates a failure of the network: connections stay open, and no data passes.
        redis.pause(true);
        redis.wait_until_request_pending();
        if is_long {
            cluster.wait_for_refusals(HUBS + 1);
        }
        redis.pause(false);
        cluster.wait_for_progress(50);
    }
    let (histories, connections) = finish(&cluster, writers, readers);
    for (number, connections) in connections.into_iter().enumerate() {
        let was_killed = number % HUBS < rounds.min(HUBS - 1);
        assert_eq!(connections > 1, was_killed, "subscriber {number}: {connections} connections");
    }
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
#[ignore = "slow: kills and restarts four times, with partitions that last"]
fn three_hubs_lose_and_repeat_nothing_for_long() {
    // Each of the hubs that are killed is killed twice.
    run(10, 4, true, Duration::from_millis(2));
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
