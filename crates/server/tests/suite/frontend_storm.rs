//! A storm: clients send requests without end while origins answer badly, are killed and restarted.
//! Each body contains its URL and its version, so that the test detects a wrong, mixed or incomplete
//! body that looks complete. The test runs in its own process, because the memory of other tests would
//! be counted too.
//!
//! The test usually takes some seconds; `POLLUX_STORM_REQUESTS=1000000` selects the long form.

use pollux_cache::Store;
use pollux_server::{Server, Settings, config::Listen, settings::FrontendConfig};
use pollux_testkit::{http::PATIENCE, wait_for, wait_until};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

/// How long the short form runs.
const SHORT: Duration = Duration::from_secs(3);
const CLIENTS: u64 = 12;
const URLS: u64 = 300;

/// A generator of pseudorandom numbers: a run can be repeated as far as the scheduling of the threads
/// allows.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Returns the content of a URL in a version. Its length depends on the URL, and it repeats the URL
/// and the version throughout.
fn content(url: &str, version: u64) -> String {
    let number: usize = url.trim_start_matches('/').parse().unwrap();
    let copies = match number % 10 {
        0 => 4000,
        1 => 300,
        _ => 3,
    };
    format!("{url} {version};").repeat(copies)
}

/// Returns the version if `body` is the complete content of `url`.
fn version_of(url: &str, body: &str) -> Option<u64> {
    let first = body.split(';').next()?;
    let version = first.strip_prefix(url)?.strip_prefix(' ')?.parse().ok()?;
    (content(url, version) == body).then_some(version)
}

#[test]
fn a_body_that_is_anothers_torn_or_mixed_is_seen() {
    for url in ["/1", "/2", "/10"] {
        let good = content(url, 7);
        assert_eq!(version_of(url, &good), Some(7));
        assert_eq!(version_of("/3", &good), None);
        assert_eq!(version_of(url, &good[..good.len() - 1]), None);
        let (a, b) = (content(url, 8), good.len() / 2);
        assert_eq!(version_of(url, &format!("{}{}", &a[..b], &good[b..])), None);
    }
}

/// An origin that can be killed.
struct Origin {
    address: SocketAddr,
    shared: Arc<OriginState>,
    life: Mutex<Option<Life>>,
}

#[derive(Default)]
struct OriginState {
    version: AtomicU64,
    behaves: AtomicBool,
    seed: AtomicU64,
}

/// The listener and the connections of an origin until it is killed.
struct Life {
    listener: TcpListener,
    connections: Arc<Mutex<HashMap<u64, TcpStream>>>,
    is_over: Arc<AtomicBool>,
}

impl Origin {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let origin = Self { address, shared: Arc::default(), life: Mutex::default() };
        origin.live(listener);
        origin
    }

    fn live(&self, listener: TcpListener) {
        let (connections, is_over) =
            (Arc::<Mutex<HashMap<u64, TcpStream>>>::default(), Arc::default());
        let life = Life {
            listener: listener.try_clone().unwrap(),
            connections: connections.clone(),
            is_over: Arc::clone(&is_over),
        };
        *self.life.lock().unwrap() = Some(life);
        let shared = self.shared.clone();
        thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming()) {
                if is_over.load(SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                connections.lock().unwrap().insert(number, stream.try_clone().unwrap());
                let (shared, connections) = (shared.clone(), connections.clone());
                thread::spawn(move || {
                    serve(&stream, &shared);
                    // The connection is closed when its last descriptor is closed.
                    connections.lock().unwrap().remove(&number);
                });
            }
        });
    }

    /// Stops listening, and resets all connections.
    fn kill(&self) {
        let Some(life) = self.life.lock().unwrap().take() else { return };
        life.is_over.store(true, SeqCst);
        socket2::SockRef::from(&life.listener).shutdown(Shutdown::Both).unwrap();
        for (_, stream) in life.connections.lock().unwrap().drain() {
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn revive(&self) {
        let what = format!("the address {}", self.address);
        self.live(wait_for(&what, || TcpListener::bind(self.address).ok()));
    }
}

fn serve(stream: &TcpStream, shared: &OriginState) {
    let mut dice = Dice(shared.seed.fetch_add(0x9e37_79b9, SeqCst) | 1);
    let mut input = BufReader::new(stream);
    let mut output = stream;
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(PATIENCE));
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if input.read_until(b'\n', &mut head).is_ok_and(|count| count > 0) {
                continue;
            }
            return;
        }
        let head = String::from_utf8(head).unwrap();
        let url = head.split(' ').nth(1).unwrap();
        let body = content(url, shared.version.load(SeqCst));
        let behaves = shared.behaves.load(SeqCst);
        let mood = if behaves { 99 } else { dice.below(100) };
        let control = match dice.below(4) {
            0 => "max-age=1, stale-while-revalidate=5, stale-if-error=60",
            1 => "max-age=0, stale-if-error=60",
            2 => "private",
            _ => "max-age=1",
        };
        let head = format!("HTTP/1.1 200 OK\r\nCache-Control: {control}\r\n");
        let reply = if dice.below(2) == 0 {
            format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())
        } else {
            let (first, second) = body.split_at(body.len() / 3);
            let size = (first.len(), second.len());
            format!(
                "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
                size.0, size.1
            )
        };
        let sent = match mood {
            // No reply: an end of stream, or a reset.
            0..3 => return,
            3..5 => {
                let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
                return;
            }
            // A part of the reply.
            5..10 => {
                let part = dice.below(reply.len() as u64) as usize;
                let _ = output.write_all(&reply.as_bytes()[..part]);
                return;
            }
            10..12 => output.write_all(b"HTTP/1.1 503 X\r\nContent-Length: 6\r\n\r\nfailed"),
            12..14 => output.write_all(b"SSH-2.0-nonsense\r\n\r\n"),
            14..17 => {
                let (first, second) = reply.split_at(reply.len() / 2);
                output.write_all(first.as_bytes()).and_then(|()| {
                    // A slow origin.
                    thread::sleep(Duration::from_millis(5));
                    output.write_all(second.as_bytes())
                })
            }
            _ => output.write_all(reply.as_bytes()),
        };
        if sent.is_err() || mood < 14 || mood == 20 {
            return;
        }
    }
}

/// The result of a request.
enum Outcome {
    /// A complete response: its status and its body.
    Whole(u16, String),
    /// The connection ended before the response was complete.
    Torn,
}

fn fetch(stream: &mut BufReader<TcpStream>, url: &str, fields: &str) -> Outcome {
    let request = format!("GET {url} HTTP/1.1\r\nHost: storm\r\n{fields}\r\n");
    if stream.get_mut().write_all(request.as_bytes()).is_err() {
        return Outcome::Torn;
    }
    read(stream).map_or(Outcome::Torn, |(status, body)| Outcome::Whole(status, body))
}

fn line(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    match stream.read_line(&mut line) {
        Ok(_) => line.strip_suffix("\r\n").map(Into::into),
        Err(error) => {
            let is_late = matches!(
                error.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
            );
            assert!(!is_late, "it hangs");
            None
        }
    }
}

fn read(stream: &mut BufReader<TcpStream>) -> Option<(u16, String)> {
    let status = line(stream)?.split(' ').nth(1)?.parse().ok()?;
    let (mut length, mut is_chunked) = (0, false);
    loop {
        let field = line(stream)?.to_ascii_lowercase();
        if field.is_empty() {
            break;
        }
        if let Some(value) = field.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
        is_chunked |= field == "transfer-encoding: chunked";
    }
    let mut body = Vec::new();
    loop {
        if is_chunked {
            length = usize::from_str_radix(&line(stream)?, 16).unwrap();
        }
        let start = body.len();
        body.resize(start + length, 0);
        if let Err(error) = stream.read_exact(&mut body[start..]) {
            assert!(error.kind() != std::io::ErrorKind::WouldBlock, "it hangs");
            return None;
        }
        if is_chunked {
            line(stream)?;
        }
        if !is_chunked || length == 0 {
            return Some((status, String::from_utf8(body).unwrap()));
        }
    }
}

/// The number of requests with each result, and the number of kills of origins.
#[derive(Default)]
struct Count {
    sent: AtomicU64,
    good: AtomicU64,
    failed: AtomicU64,
    torn: AtomicU64,
    kills: AtomicU64,
}

impl Count {
    /// Returns whether each kind of result and a kill have occurred, so that the run was a storm.
    fn is_storm(&self) -> bool {
        [&self.good, &self.failed, &self.torn, &self.kills].iter().all(|one| one.load(SeqCst) > 0)
    }
}

/// Sends requests until `is_enough` returns true.
fn client(
    address: SocketAddr,
    seed: u64,
    versions: &[Arc<OriginState>],
    count: &Count,
    is_enough: impl Fn() -> bool,
) {
    let mut dice = Dice(seed | 1);
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        BufReader::new(stream)
    };
    let mut stream = connect();
    while !is_enough() {
        let url = format!("/{}", dice.below(URLS));
        // Half of the requests must be confirmed by the origin.
        let fields = if dice.below(2) == 0 { "Cache-Control: no-cache\r\n" } else { "" };
        match fetch(&mut stream, &url, fields) {
            Outcome::Whole(200, body) => {
                count.good.fetch_add(1, SeqCst);
                let newest = versions.iter().map(|one| one.version.load(SeqCst)).max().unwrap();
                let version = version_of(&url, &body);
                let start: String = body.chars().take(60).collect();
                assert!(version.is_some_and(|it| it <= newest), "{url} has {start}");
            }
            Outcome::Whole(502..=504, _) => {
                count.failed.fetch_add(1, SeqCst);
            }
            Outcome::Whole(status, body) => panic!("{url}: {status} {body}"),
            Outcome::Torn => {
                count.torn.fetch_add(1, SeqCst);
                stream = connect();
            }
        }
        if dice.below(200) == 0 {
            // The client disconnects before it has read the response.
            let _ = stream.get_mut().write_all(b"GET /10 HTTP/1.1\r\nHost: storm\r\n\r\n");
            stream = connect();
        }
    }
}

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn storm(requests: Option<u64>) {
    let origins: Arc<Vec<Origin>> = Arc::new((0..2).map(|_| Origin::start()).collect());
    let urls = origins.iter().map(|one| format!("http://{}", one.address).parse().unwrap());
    let mut frontend = FrontendConfig::new(urls.collect());
    let store = Store::new(pollux_cache::Config { limit_bytes: 4 << 20, ..Default::default() });
    frontend.cache = Some(store.clone());
    let mut config = Settings::without_files(frontend);
    config.workers = 2;
    let server = Server::start(config).unwrap();
    let Listen::Tcp(address) = server.addresses()[0] else { panic!("no TCP address") };

    let is_over = Arc::new(AtomicBool::new(false));
    let count = Arc::new(Count::default());
    let killer = thread::spawn({
        let (origins, is_over, count) = (origins.clone(), is_over.clone(), count.clone());
        move || {
            let mut dice = Dice(4711);
            while !is_over.load(SeqCst) {
                // Origins change, end and begin at random times.
                thread::sleep(Duration::from_millis(dice.below(200)));
                let one = &origins[dice.below(2) as usize];
                for one in origins.iter() {
                    one.shared.version.fetch_add(1, SeqCst);
                }
                if dice.below(3) == 0 {
                    one.kill();
                    // The origin is down for a random time.
                    thread::sleep(Duration::from_millis(dice.below(80)));
                    one.revive();
                    count.kills.fetch_add(1, SeqCst);
                }
            }
        }
    });
    let (start, early) = (Instant::now(), AtomicU64::new(0));
    let versions: Vec<_> = origins.iter().map(|one| one.shared.clone()).collect();
    let enough = || {
        let sent = count.sent.fetch_add(1, SeqCst);
        let part = match requests {
            Some(requests) => sent as f64 / requests as f64,
            None => start.elapsed().div_duration_f64(SHORT),
        };
        if part > 0.3 && early.load(SeqCst) == 0 {
            early.store(resident() as u64, SeqCst);
        }
        // On a busy machine it may take longer until every kind of result has occurred.
        part >= 1.0 && (count.is_storm() || start.elapsed() > 2 * PATIENCE)
    };
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (versions, count, enough) = (&versions, &*count, &enough);
            scope.spawn(move || client(address, number * 7919 + 13, versions, count, enough));
        }
    });
    let grown = resident().saturating_sub(early.load(SeqCst) as usize);
    is_over.store(true, SeqCst);
    killer.join().unwrap();
    let [good, failed, torn, kills] =
        [&count.good, &count.failed, &count.torn, &count.kills].map(|one| one.load(SeqCst));
    eprintln!(
        "{good} good, {failed} failed, {torn} torn, {kills} kills, {:?}, {grown} bytes \
         more than at 30 %; {:?}",
        start.elapsed(),
        store.statistics()
    );
    assert!(count.is_storm(), "it was no storm");
    assert!(grown < 24 << 20, "{grown} bytes");

    // After the storm, every URL must be served correctly, and no fetch may be stuck.
    versions.iter().for_each(|one| one.behaves.store(true, SeqCst));
    for number in 0..URLS {
        let url = format!("/{number}");
        wait_until(&format!("a right reply for {url}"), || {
            let mut stream = BufReader::new(TcpStream::connect(address).unwrap());
            stream.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
            matches!(fetch(&mut stream, &url, ""), Outcome::Whole(200, body) if version_of(&url, &body).is_some())
        });
    }
    wait_until("the end of all fetches", || store.statistics().fetching == 0);
    server.stop(Duration::from_secs(10)).unwrap();
    origins.iter().for_each(Origin::kill);
}

#[test]
fn nothing_is_wrong_in_a_storm() {
    pollux_testkit::alone!(nothing_is_wrong_in_a_storm);
    let requests = std::env::var("POLLUX_STORM_REQUESTS").ok();
    storm(requests.map(|number| number.parse().expect("a number of requests")));
}
