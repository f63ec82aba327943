//! The instructions that a request, a wait and a delivery of the push hub cost, compared with the
//! figures in `instructions.toml`: a slow-down fails the build, on any machine.
//!
//! A sealed guest runs this program; the guest's clocks count instructions. If its kernel, the
//! compiler and QEMU are those of the committed figures, the margin is one per cent. Otherwise figures
//! are compared by their ratio to the floor server (`pollux lab floor`) in the same guest.
//!
//! `POLLUX_INSTRUCTIONS=write cargo test --package pollux --test suite instructions` writes new
//! figures; the difference belongs in the commit that causes it.
//!
//! # The measured program is the build for tests
//! This build is not optimised, and it is not shipped: the test detects a slow-down of the source, but
//! not one that an optimiser adds or removes. An optimised program costs 204 seconds of CPU time
//! without link-time optimisation, a quarter of the time that `make test` takes. To optimise five
//! crates of the build for tests costs a minute of CPU time for the program alone, and more for the
//! crates' tests.
//!
//! `POLLUX_INSTRUCTIONS_OF=$PWD/target/release/pollux cargo test --package pollux --test suite
//! instructions -- --nocapture` prints the figures of another program and judges nothing. The figures
//! of the release build of 2026-11-27 (`docs/runs/2026-11-27-instructions`), beside those of the build
//! for tests, with the compiler, kernel and QEMU that `instructions.toml` names:
//!
//! | | release | tests |
//! |---|---|---|
//! | a request to the floor | 18,699 | 20,682 |
//! | a request, `epoll-et` | 21,374 | 38,363 |
//! | a wait, `epoll-et` | 1,199 | 2,269 |
//! | a wait, `epoll` | 1,468 | 2,542 |
//! | a wait, `devpoll` | 1,254 | 2,386 |
//! | a wait, `poll` | 76,223 | 80,230 |
//! | a wait, `rtsig` | 1,949 | 4,078 |
//! | a wait, `hybrid` | 2,105 | 4,446 |
//!
//! Since 2026-11-25, TLS, several sites, shared counters, limits for clients and the histogram have
//! added 138 instructions to a request in the release build, 0.65 per cent.

use crate::guest;
use pollux_event::registry;
use pollux_lab::{environment, floor, sys::process_cpu_time};
use pollux_testkit::http::Client;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// The share by which a figure may be above the committed one under the same conditions.
const MARGIN: f64 = 0.01;
/// The same for the ratio of a figure to the floor, where the compiler, the kernel or the machine is
/// another one.
const MARGIN_OF_RATIO: f64 = 0.15;
/// The same for mechanisms that use other kernel code than the floor server, which sends no signals:
/// under 6.12 a wait of these mechanisms spends a fifth more instructions in that code than under 6.1.
const MARGIN_OF_SIGNALS: f64 = 0.3;
/// The number of requests before the counted ones, and of the counted ones.
const WARM_UP: usize = 100;
const REQUESTS: usize = 1_000;
const CONNECTIONS: usize = 8;
/// The number of subscribers of the hub, of updates to all of them before the counted ones, and of
/// counted updates.
const SUBSCRIBERS: usize = 200;
const FIRST_UPDATES: usize = 3;
const UPDATES: usize = 20;
/// The number of sockets that a wait watches, and of waits.
const WATCHED: u64 = 200;
const WAITS: u64 = 60;
/// The paths of the programs in the guest.
const POLLUX: &str = "/bin/pollux";
const DRIVER: &str = "/bin/driver";
/// The guest's speed, in millions of instructions per second of its clock. At this speed its boot
/// takes fewer instructions than at full speed, because the boot waits for devices by that clock.
const MIPS: &str = "250";
/// The environment variable that tells the test that it runs in the guest.
const IN_GUEST: &str = "POLLUX_INSTRUCTIONS_GUEST";

/// Numbers of instructions, by what they are spent on.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Figures {
    /// The conditions on which the figures depend.
    conditions: BTreeMap<String, String>,
    /// A request to the floor server.
    floor: f64,
    /// A request to `pollux serve`, by mechanism.
    request: BTreeMap<String, f64>,
    /// A wait that finds one ready descriptor, by mechanism.
    wait: BTreeMap<String, f64>,
    /// The delivery of an update to one of [`SUBSCRIBERS`], with its share of the publication, by
    /// mechanism.
    delivery: BTreeMap<String, f64>,
    /// Intentional slow-downs, which the test must detect: one additional system call for each
    /// request, wait and delivery.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    planted: BTreeMap<String, f64>,
}

/// Returns an error if a figure is too high. `floors` are the floor's figures of this run and of the
/// committed one, if only ratios to them can be compared.
fn judge(name: &str, now: f64, committed: f64, floors: Option<(f64, f64)>) -> Result<(), String> {
    let (ratio, margin) = match floors {
        None => (now / committed, MARGIN),
        Some((floor, old)) => {
            let of_signals = name.ends_with("rtsig") || name.ends_with("hybrid");
            let margin = if of_signals { MARGIN_OF_SIGNALS } else { MARGIN_OF_RATIO };
            ((now / floor) / (committed / old), margin)
        }
    };
    if ratio <= 1.0 + margin {
        return Ok(());
    }
    let how = if floors.is_some() { ", by their ratios to the floor" } else { "" };
    Err(format!(
        "{name}: {now:.0} instructions, {committed:.0} in instructions.toml: {:.1} % more{how} \
         (at most {:.0} %). If it is meant: POLLUX_INSTRUCTIONS=write cargo test --package pollux \
         --test suite instructions",
        (ratio - 1.0) * 100.0,
        margin * 100.0
    ))
}

#[test]
fn a_figure_is_judged_by_its_margin() {
    assert!(judge("x", 1009.0, 1000.0, None).is_ok() && judge("x", 500.0, 1000.0, None).is_ok());
    let message = judge("x", 1011.0, 1000.0, None).unwrap_err();
    assert!(
        message.starts_with("x: 1011 instructions, 1000 in instructions.toml: 1.1 % more"),
        "{message}"
    );
    // With another compiler all figures double: this is no slow-down.
    assert!(judge("x", 2000.0, 1000.0, Some((200.0, 100.0))).is_ok());
    assert!(judge("x", 2400.0, 1000.0, Some((200.0, 100.0))).is_err());
    assert!(judge("wait rtsig", 2400.0, 1000.0, Some((200.0, 100.0))).is_ok());
    assert!(judge("wait rtsig", 2700.0, 1000.0, Some((200.0, 100.0))).is_err());
}

/// Returns the absolute path of a program to measure in place of the one with which this test was
/// built.
fn other_program() -> Option<PathBuf> {
    std::env::var_os("POLLUX_INSTRUCTIONS_OF").map(PathBuf::from)
}

fn committed_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instructions.toml")
}

#[test]
#[ignore = "slow: a sealed guest"]
fn a_request_and_a_wait_cost_no_more_instructions_than_they_did() {
    let Some(now) = measured() else { return };
    eprintln!("{}", toml::to_string(&now).unwrap());
    assert_eq!(now.planted.len(), 3, "{now:?}");
    if other_program().is_some() {
        return;
    }
    if std::env::var("POLLUX_INSTRUCTIONS").is_ok_and(|wish| wish == "write") {
        let text = toml::to_string(&Figures { planted: BTreeMap::new(), ..now }).unwrap();
        let head = "# Instructions of a request to `pollux serve`, of a wait that finds one of 200 ready, and \
                    of the\n# delivery of an update to one of 200 subscribers, in the build that tests use. \
                    Written by\n# crates/cli/tests/suite/instructions.rs, which says how.\n";
        return fs::write(committed_file(), head.to_owned() + &text).unwrap();
    }
    let committed: Figures =
        toml::from_str(&fs::read_to_string(committed_file()).unwrap()).unwrap();
    let floors = (now.conditions != committed.conditions).then_some((now.floor, committed.floor));
    if floors.is_some() {
        eprintln!("other conditions than {:?}: ratios to the floor", committed.conditions);
    }
    let mut wrong = Vec::new();
    for (kind, now, committed) in [
        ("request", &now.request, &committed.request),
        ("wait", &now.wait, &committed.wait),
        ("delivery", &now.delivery, &committed.delivery),
    ] {
        assert!(now.keys().eq(committed.keys()), "{kind}: {now:?}, and committed {committed:?}");
        for (name, &figure) in now {
            wrong.extend(judge(&format!("{kind} {name}"), figure, committed[name], floors).err());
        }
    }
    // Positive controls: without them the test might not detect any slow-down.
    for (name, committed) in [
        ("request", committed.request["epoll-et"]),
        ("wait", committed.wait["epoll-et"]),
        ("delivery", committed.delivery["epoll-et"]),
    ] {
        let found = judge(name, now.planted[name], committed, floors);
        assert!(found.is_err(), "a planted slow-down was not found: {name} {:?}", now.planted);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the figures, measured in a guest. Where no guest can run, prints the reason and returns
/// `None`.
fn measured() -> Option<Figures> {
    let driver = std::env::current_exe().unwrap();
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kmod/devpoll");
    let program = other_program().unwrap_or_else(|| env!("CARGO_BIN_EXE_pollux").into());
    let carried = [(program.as_path(), POLLUX), (&driver, DRIVER)];
    let mut command =
        guest::pollux("vm", &["--deterministic", "--mips", MIPS, "--timeout", "600", "--module"]);
    command.arg(module);
    for (from, guest_path) in carried {
        command.arg("--carry").arg(format!("{}:{guest_path}", from.display()));
    }
    command.args(["--env", &format!("{IN_GUEST}=1"), "--"]);
    command.args([DRIVER, "--exact", "instructions::measured_in_the_guest", "--nocapture"]);
    let output = guest::success_of(&mut command)?;
    let text = String::from_utf8(output.stdout).unwrap();
    // The test harness prints before the JSON on its line.
    let json = text.lines().find_map(|line| line.find('{').map(|at| &line[at..]));
    let mut figures: Figures = serde_json::from_str(json.expect(&text)).unwrap();
    for (name, program) in [("rustc", "rustc"), ("qemu", "qemu-system-x86_64")] {
        let output = Command::new(program).arg("--version").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        figures.conditions.insert(name.into(), text.lines().next().unwrap_or_default().into());
    }
    Some(figures)
}

/// The part of the test that runs in the guest; elsewhere it does nothing.
#[test]
fn measured_in_the_guest() {
    if std::env::var_os(IN_GUEST).is_none() {
        return;
    }
    let mut figures = Figures::default();
    figures.conditions.insert("kernel".into(), environment::guest().unwrap());
    let site = tempfile::tempdir().unwrap();
    fs::write(site.path().join("a"), "x").unwrap();
    let reply = site.path().join("reply");
    fs::write(&reply, floor::reply(1)).unwrap();
    let floor = Server::start(Command::new(POLLUX).args(["lab", "floor"]).arg(reply));
    figures.floor = floor.instructions_per_request();
    let serve = |more: &[&str]| {
        let mut serve = Command::new(POLLUX);
        serve.arg("serve").arg(site.path()).args(["--listen", "127.0.0.1:0", "--json"]);
        // The kernel's filter of system calls (seccomp) is not the server's work, so the figures
        // exclude it.
        serve.args(["--mechanism", "epoll-et", "--sandbox", "off"]).args(more);
        Server::start(&mut serve)
    };
    let served = |interest: &str| serve(&["--interest", interest]).instructions_per_request();
    figures.request.insert("epoll-et".into(), served("eager"));
    figures.planted.insert("request".into(), served("per-state"));
    let hub = || serve(&["--hub", "--hub-anonymous", "--hub-publish-anonymous"]);
    figures.delivery.insert("epoll-et".into(), hub().instructions_per_delivery(1));
    figures.planted.insert("delivery".into(), hub().instructions_per_delivery(2));
    for entry in registry::ALL {
        figures.wait.insert(entry.name.into(), waited(entry.name, 0));
    }
    figures.planted.insert("wait".into(), waited("epoll-et", 1));
    println!("{}", serde_json::to_string(&figures).unwrap());
}

/// Returns the number of instructions in a time by this guest's clocks.
fn instructions(time_ns: f64) -> f64 {
    let mips = environment::guest_mips().expect("a guest whose clocks count instructions");
    time_ns * f64::from(mips) / 1e3
}

/// Returns the median number of instructions of a wait.
fn waited(mechanism: &str, changes: u64) -> f64 {
    let of = |number: u64| number.to_string();
    let output = Command::new(POLLUX)
        .args(["lab", "wait-cost", "--mechanism", mechanism, "--watched", &of(WATCHED)])
        .args(["--changes", &of(changes), "--waits", &of(WAITS), "--duration", "60s"])
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    let document: Result<serde_json::Value, _> = serde_json::from_slice(&output.stdout);
    let document = document.unwrap_or_else(|error| panic!("{mechanism}: {error}: {message}"));
    instructions(document["wait_ns"]["p50"].as_f64().unwrap())
}

/// A server under test, which is killed when this value is dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts the server and reads its address from its first line.
    fn start(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        // The pipe stays open as long as the child; later output is ignored.
        let mut out = BufReader::new(child.stdout.as_mut().unwrap());
        out.read_line(&mut line).unwrap();
        let listening: serde_json::Value = serde_json::from_str(&line).unwrap();
        Server { address: listening["addresses"][0].as_str().unwrap().to_owned(), child }
    }

    /// Sends one request after another, on the connections in turn.
    fn instructions_per_request(self) -> f64 {
        let mut clients: Vec<TcpStream> =
            (0..CONNECTIONS).map(|_| TcpStream::connect(&self.address).unwrap()).collect();
        for client in &clients {
            client.set_nodelay(true).unwrap();
        }
        let mut send = |count: usize| {
            for number in 0..count {
                exchange(&mut clients[number % CONNECTIONS]);
            }
        };
        send(WARM_UP);
        let before = process_cpu_time(self.child.id()).unwrap();
        send(REQUESTS);
        let used = process_cpu_time(self.child.id()).unwrap() - before;
        instructions(used.as_nanos() as f64) / REQUESTS as f64
    }

    /// Publishes one update after another, to subscribers with `streams` streams each.
    fn instructions_per_delivery(self, streams: usize) -> f64 {
        let mut streams: Vec<TcpStream> =
            (0..SUBSCRIBERS * streams).map(|_| self.stream()).collect();
        let mut publisher = Client::connect(&self.address);
        let mut publish = |count: usize| {
            for _ in 0..count {
                publisher.send(PUBLICATION);
                assert_eq!(publisher.reply().status, 200);
                streams.iter_mut().for_each(|stream| read_until(stream, b"\ndata: x\n\n\r\n"));
            }
        };
        publish(FIRST_UPDATES);
        let before = process_cpu_time(self.child.id()).unwrap();
        publish(UPDATES);
        let used = process_cpu_time(self.child.id()).unwrap() - before;
        instructions(used.as_nanos() as f64) / (SUBSCRIBERS * UPDATES) as f64
    }

    /// Opens a subscriber's connection.
    fn stream(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"GET /.well-known/mercure?match=a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        read_until(&mut stream, b"\r\n:\n\r\n");
        stream
    }
}

const PUBLICATION: &str = "POST /.well-known/mercure HTTP/1.1\r\nHost: a\r\n\
    Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 14\r\n\r\ntopic=a&data=x";

/// Reads from the stream until the received bytes end with `end`.
fn read_until(stream: &mut TcpStream, end: &[u8]) {
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    while !received.ends_with(end) {
        let length = stream.read(&mut buffer).unwrap();
        assert!(length > 0, "the server closed the connection: {}", received.escape_ascii());
        received.extend_from_slice(&buffer[..length]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request, and reads its reply of a head and one byte.
fn exchange(client: &mut TcpStream) {
    client.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut reply = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = client.read(&mut buffer).unwrap();
        assert!(length > 0, "the server closed the connection");
        reply.extend_from_slice(&buffer[..length]);
        let head = reply.windows(4).position(|end| end == b"\r\n\r\n");
        if head.is_some_and(|at| reply.len() == at + 5) {
            return assert!(reply.starts_with(b"HTTP/1.1 200 "), "{}", reply.escape_ascii());
        }
    }
}
