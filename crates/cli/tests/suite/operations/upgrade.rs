//! SIGUSR2 and `pollux ctl upgrade`: a new process takes over.

mod cache;
mod clients;
mod failures;
mod hub;
mod tls;
mod user;

pub(crate) use failures::replace as replace_program;

use super::*;
use pollux_testkit::{limits, origin::Origin, serve::Process, stays_true, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::{io::Read, time::Duration};

const UPGRADES: usize = 5;
const IDLE: usize = 2_000;

/// Waits for the server that took over last.
fn successor(server: &mut Serve) -> Process {
    let process = server.next_process();
    let addresses = process.listening()["addresses"].as_array().unwrap();
    assert!(addresses.iter().any(|address| address == server.address()), "{addresses:?}");
    process
}

/// Returns how many idle connections `pollux ctl upgrade` reports as handed over.
fn handed_over(text: &str) -> usize {
    let line = text.lines().find_map(|line| line.strip_prefix("idle connections handed over: "));
    line.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// Sends a request on a kept connection. Returns the round in the response, which shows the process
/// that serves the connection.
fn round_of(client: &mut Client) -> usize {
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let reply = client.reply();
    assert_eq!((reply.status, reply.text().as_str()), (200, "site a\n"));
    assert_eq!(reply.field("connection"), None, "it is kept");
    reply.field("x-round").expect("a round").parse().unwrap()
}

/// Opens connections that are idle after a request, whose response has this round.
fn idle_clients(server: &Serve, count: usize, round: usize) -> Vec<Client> {
    let mut clients: Vec<_> = (0..count).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(round_of(client), round));
    clients
}

/// Puts the program into the directory, where a test may replace it.
fn own_program(folder: &Folder) -> PathBuf {
    let program = folder.0.path().join("pollux");
    if fs::hard_link(BINARY, &program).is_err() {
        fs::copy(BINARY, &program).unwrap();
    }
    program
}

/// Returns the last statistics of the process that `is_wanted` accepts: processes print them at their ends, in any
/// order.
fn statistics_of(server: &mut Serve, is_wanted: impl Fn(&Value) -> bool) -> Value {
    std::iter::repeat_with(|| server.last_statistics()).find(is_wanted).expect("it goes on")
}

fn end(processes: Vec<Process>) {
    processes.last().expect("a process").signal(Signal::TERM);
    processes.iter().for_each(Process::wait);
}

#[test]
fn five_upgrades_fail_no_request_and_lose_no_idle_connection() {
    limits::raise_descriptor_limit();
    let folder = Folder::new();
    let write = |round: usize| {
        let site = format!("root = \"a\"\nheader = [\"X-Round: {round}\"]");
        folder.write("keep-alive = \"10m\"\nheader-timeout = \"10m\"", &site);
    };
    write(0);
    let mut server = folder.serve(&["--workers", "2"]);
    let mut idle: Vec<_> = (0..IDLE).map(|_| server.client()).collect();
    // One half of the connections have made a request, the other half have not.
    idle.iter_mut().step_by(2).for_each(|client| assert_eq!(round_of(client), 0));
    let load = Load::start(server.address());
    let mut processes = Vec::new();
    for round in 1..=UPGRADES {
        write(round);
        let text = printed(&folder.ctl("upgrade"));
        let process = successor(&mut server);
        assert!(text.contains(&format!(" -> {}\n", process.pid())), "{text}");
        assert!(handed_over(&text) >= IDLE, "{text}");
        assert_eq!(round_of(&mut server.client()), round);
        idle.iter_mut().skip(round).step_by(100).for_each(|one| assert_eq!(round_of(one), round));
        processes.push(process);
    }
    assert!(load.end() > 0);
    idle.iter_mut().for_each(|client| assert_eq!(round_of(client), UPGRADES));
    end(processes);
}

/// The number of workers changes, one listener is removed and one is added; `--control` and `--admin`
/// stay.
#[test]
fn the_configuration_may_change_with_it() {
    let folder = Folder::new();
    let admin = folder.0.path().join("admin");
    let path = folder.0.path().join("listener");
    let unix = format!("\"unix:{}\"", path.display());
    let write = |listen: &[&str], workers: usize| {
        let listen = listen.join(", ");
        let admin = admin.display();
        folder.write(
            &format!("listen = [{listen}]\nworkers = {workers}\nadmin = \"unix:{admin}\""),
            "root = \"a\"\nheader = [\"X-Round: 0\"]",
        );
    };
    let command = |folder: &Folder| {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--json", "--config"]).arg(folder.config());
        command.arg("--control").arg(folder.control());
        Serve::start_command(command)
    };
    let [kept, dropped] = ["\"127.0.0.1:0\"", "\"[::1]:0\""];
    write(&[kept, dropped], 3);
    let mut server = command(&folder);
    let dropped_address = server.listening()["addresses"][1].as_str().unwrap().to_owned();
    let mut idle = idle_clients(&server, 30, 0);
    let mut processes = Vec::new();
    for (listen, workers) in [(vec![kept, &unix], 1), (vec![kept, &unix], 4), (vec![kept], 2)] {
        write(&listen, workers);
        assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), 30);
        processes.push(successor(&mut server));
        idle.iter_mut().for_each(|client| assert_eq!(round_of(client), 0));
        (0..8).for_each(|_| assert_eq!(round_of(&mut server.client()), 0));
        assert_eq!(path.exists(), listen.len() == 2);
        assert!(std::os::unix::net::UnixStream::connect(&admin).is_ok());
    }
    // The first process ends when it has accepted the connections that waited at the removed listener.
    server.wait_for_end();
    assert!(std::net::TcpStream::connect(&dropped_address).is_err());
    end(processes);
    wait_until("the end of the sockets, which the last process removes", || {
        !admin.exists() && !folder.control().exists()
    });
}

/// The process that has begun to send a response completes it; then the connection follows to the new
/// process.
#[test]
fn an_exchange_in_progress_ends_in_the_old_process() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"\nheader = [\"X-Round: 0\"]");
    let mut server = folder.serve(&[]);
    let mut client = server.client();
    client.send(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut first = [0; 64];
    client.socket().read_exact(&mut first).unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200 OK\r\n"));
    server.signal(Signal::USR2);
    let process = successor(&mut server);
    assert!(server.is_running(), "it has a response to send");
    folder.write("", "root = \"a\"\nheader = [\"X-Round: 1\"]");
    let mut left = Vec::new();
    while !left.ends_with(&[b'l'; 4096]) || left.iter().filter(|&&b| b == b'l').count() < 4 << 20 {
        let mut piece = vec![0; 1 << 20];
        let read = client.socket().read(&mut piece).unwrap();
        assert!(read > 0, "the whole response");
        left.extend_from_slice(&piece[..read]);
    }
    // These requests use the same connection.
    assert_eq!(round_of(&mut client), 0);
    server.wait_for_end();
    assert_eq!(round_of(&mut client), 0);
    end(vec![process]);
}

/// Regression: the old process took the first signal for a second one, and broke its responses off.
#[test]
fn the_old_process_completes_its_responses_after_a_signal_to_stop() {
    let (release, wait) = gate();
    let slow = Origin::start(move |request| {
        wait();
        request.say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow")
    });
    let folder = Folder::new();
    folder.write("grace = \"60s\"", &format!("origin = [\"{}\"]", slow.url()));
    let mut server = folder.serve(&[]);
    let mut client = server.client();
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    wait_until("the request at the origin", || slow.requests() == 1);
    printed(&folder.ctl("upgrade"));
    let process = successor(&mut server);
    server.signal_and_wait(Signal::TERM);
    assert!(stays_true(Duration::from_millis(300), || server.is_running()));
    release.send(()).unwrap();
    assert_eq!(client.reply().text(), "slow");
    server.wait_for_end();
    end(vec![process]);
}
