//! systemd: the sockets that it passes, and the notifications that it receives.

use super::{BINARY, INDEX, site};
use pollux_testkit::http::Client;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::Write,
    net::{TcpListener, TcpStream},
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);
/// The time of the watchdog.
const WATCHDOG: Duration = Duration::from_secs(2);

/// Binds the socket of a service manager. Returns its directory, its path and the socket.
fn manager() -> (TempDir, PathBuf, UnixDatagram) {
    let directory = tempfile::tempdir().unwrap();
    let notify = directory.path().join("notify");
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    (directory, notify, manager)
}

/// Starts a server as a socket unit does: `socket` is descriptor 3, with this name.
fn start(socket: TcpListener, name: &str, notify: &Path, arguments: &[&str]) -> Child {
    start_program(Path::new(BINARY), socket, name, notify, arguments)
}

fn start_program(
    program: &Path,
    socket: TcpListener,
    name: &str,
    notify: &Path,
    arguments: &[&str],
) -> Child {
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    Command::new("sh")
        .args(["-c", script])
        .arg(program)
        .arg("serve")
        .args(arguments)
        .env("LISTEN_FDNAMES", name)
        .env("NOTIFY_SOCKET", notify)
        .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string())
        .stdin(Stdio::from(OwnedFd::from(socket)))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(child: Child) -> Output {
    child.wait_with_output().unwrap()
}

/// Receives messages until one contains `wanted`, and skips messages of the watchdog before it.
fn expect(manager: &UnixDatagram, wanted: &str) -> String {
    let mut buffer = [0; 1024];
    loop {
        let count = manager.recv(&mut buffer).expect(wanted);
        let message = String::from_utf8_lossy(&buffer[..count]).into_owned();
        if message.contains(wanted) {
            return message;
        }
        assert!(message.contains("WATCHDOG=1"), "{wanted} is wanted, not {message}");
    }
}

/// Returns the main process that a message announces.
fn main_process(message: &str) -> Option<Pid> {
    let number = message.lines().find_map(|line| line.strip_prefix("MAINPID="))?;
    Pid::from_raw(number.parse().unwrap())
}

#[test]
fn a_passed_socket_is_served_and_the_manager_is_notified() {
    for architecture in [&["--workers", "2"][..], &["--architecture", "preforked", "--pool", "2"]] {
        let site = site(10);
        let (_directory, notify, manager) = manager();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let directory = site.path().to_str().unwrap();
        let arguments = [&[directory, "--listen", "systemd:http"], architecture].concat();
        let server = start(socket, "http", &notify, &arguments);
        let pid = Pid::from_child(&server);

        expect(&manager, "READY=1");
        for _ in 0..4 {
            assert_eq!(Client::connect(address).get("/").text(), INDEX);
        }
        kill_process(pid, Signal::HUP).unwrap();
        assert!(expect(&manager, "RELOADING=1").contains("MONOTONIC_USEC="));
        expect(&manager, "READY=1");
        expect(&manager, "WATCHDOG=1");
        kill_process(pid, Signal::TERM).unwrap();
        expect(&manager, "STOPPING=1");
        let output = finish(server);
        assert!(output.status.success(), "{output:?}");
    }
}

/// Regression: workers that block shut the socket down, for the service manager and the next server as well.
#[test]
fn a_passed_socket_outlives_every_architecture() {
    for (architecture, more) in [
        ("event", ""),
        ("iterative", ""),
        ("threaded", ""),
        ("prethreaded", "--pool 2"),
        ("prethreaded", "--pool 2 --accept mutex"),
        ("forking", ""),
        ("preforked", "--pool 2"),
    ] {
        let site = site(10);
        let (_directory, notify, manager) = manager();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let site = site.path().to_str().unwrap();
        let first = [site, "--listen", "systemd:http", "--architecture", architecture];
        let arguments: Vec<_> = first.into_iter().chain(more.split_whitespace()).collect();
        let server = start(socket.try_clone().unwrap(), "http", &notify, &arguments);
        expect(&manager, "READY=1");
        assert_eq!(Client::connect(address).get("/").text(), INDEX);
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        let output = finish(server);
        assert!(output.status.success(), "{output:?}");
        let waiting = TcpStream::connect(address);
        assert!(waiting.is_ok(), "{architecture} {more}: {waiting:?}");
        assert!(socket.accept().is_ok(), "{architecture} {more}");
    }
}

/// Regression: the name of an abstract socket (sd_notify(3)), which a sandbox does not hide, was taken for
/// the path of a file.
#[test]
fn a_manager_at_an_abstract_socket_is_notified() {
    let site = site(10);
    let name = format!("pollux-test-notify-{}", std::process::id());
    let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let arguments = [site.path().to_str().unwrap(), "--listen", "systemd:http"];
    let notify = format!("@{name}");
    let server = start(socket, "http", Path::new(&notify), &arguments);
    expect(&manager, "READY=1");
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    expect(&manager, "STOPPING=1");
    let output = finish(server);
    assert!(output.status.success(), "{output:?}");
}

/// The new process is announced as the main process, and reports that it is ready. The order does not
/// matter, because the service is active all the time.
#[test]
fn an_upgrade_announces_the_new_main_process() {
    let site = site(10);
    let (_directory, notify, manager) = manager();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let arguments = [site.path().to_str().unwrap(), "--listen", "systemd:http"];
    let mut server = start(socket, "http", &notify, &arguments);
    expect(&manager, "READY=1");
    kill_process(Pid::from_child(&server), Signal::USR2).unwrap();
    let (mut main, mut is_ready) = (None, false);
    while main.is_none() || !is_ready {
        let message = expect(&manager, "=");
        main = main_process(&message).or(main);
        is_ready |= message.lines().any(|line| line == "READY=1");
    }
    let main = main.unwrap();
    assert_ne!(main, Pid::from_child(&server));
    assert!(server.wait().unwrap().success());
    assert_eq!(Client::connect(address).get("/").text(), INDEX);
    // The watchdog is now notified by the new process.
    expect(&manager, "WATCHDOG=1");
    kill_process(main, Signal::TERM).unwrap();
    expect(&manager, "STOPPING=1");
}

/// Regression: the old process went on to notify while it served its last requests, and the service manager logged each
/// time that it accepts no notification from this process.
#[test]
fn the_old_process_of_an_upgrade_notifies_nobody() {
    let site = site(10);
    let (_directory, notify, manager) = manager();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let site = site.path().to_str().unwrap();
    let arguments = [site, "--listen", "systemd:http", "--header-timeout", "300s"];
    let mut server = start(socket, "http", &notify, &arguments);
    expect(&manager, "READY=1");
    // The beginning of a second request keeps the old process.
    let mut client = Client::connect(address);
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n");
    assert_eq!(client.reply().text(), INDEX);
    kill_process(Pid::from_child(&server), Signal::USR2).unwrap();
    let main = loop {
        if let Some(main) = main_process(&expect(&manager, "=")) {
            break main;
        }
    };
    // From now on only the old process could notify; before, the new one may have.
    kill_process(main, Signal::STOP).unwrap();
    manager.set_read_timeout(Some(2 * WATCHDOG)).unwrap();
    let started_at = Instant::now();
    while manager.recv(&mut [0; 1024]).is_ok() {
        assert!(started_at.elapsed() < 3 * WATCHDOG, "the old process still notifies");
    }
    assert!(server.try_wait().unwrap().is_none(), "the old process has ended too early");
    kill_process(main, Signal::CONT).unwrap();
    client.send("Host: a\r\n\r\n");
    assert_eq!(client.reply().text(), INDEX);
    assert!(server.wait().unwrap().success());
    kill_process(main, Signal::TERM).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    while !expect(&manager, "=").contains("STOPPING=1") {}
}

/// Regression: the watchdog's time could end while the server waited for the new process.
#[test]
fn the_watchdog_is_notified_during_an_upgrade() {
    /// The time that the new process takes to fail.
    const START: Duration = Duration::from_secs(5);
    let site = site(10);
    let (directory, notify, manager) = manager();
    let program = directory.path().join("pollux");
    fs::hard_link(BINARY, &program).or_else(|_| fs::copy(BINARY, &program).map(drop)).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let arguments = [site.path().to_str().unwrap(), "--listen", "systemd:http"];
    let server = start_program(&program, socket, "http", &notify, &arguments);
    let pid = Pid::from_child(&server);
    expect(&manager, "READY=1");
    crate::operations::replace_program(&program, &format!("sleep {}", START.as_secs()));
    kill_process(pid, Signal::USR2).unwrap();
    let (started_at, mut notified_at) = (Instant::now(), Instant::now());
    while started_at.elapsed() < START {
        expect(&manager, "WATCHDOG=1");
        assert!(notified_at.elapsed() < WATCHDOG, "{:?}", notified_at.elapsed());
        notified_at = Instant::now();
    }
    kill_process(pid, Signal::TERM).unwrap();
    expect(&manager, "STOPPING=1");
    let output = finish(server);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("goes on serving"), "{said}");
}

/// Regression: the watchdog's time could end while a reload waited for a file or for the workers.
#[test]
fn the_watchdog_is_notified_during_a_reload() {
    /// The time that the server takes to read its file.
    const READING: Duration = Duration::from_secs(5);
    let site = site(10);
    let (directory, notify, manager) = manager();
    let file = directory.path().join("pollux.toml");
    let text = format!("[[site]]\nroot = \"{}\"\n", site.path().display());
    fs::write(&file, &text).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let arguments = ["--config", file.to_str().unwrap(), "--listen", "systemd:http"];
    let server = start(socket, "http", &notify, &arguments);
    let pid = Pid::from_child(&server);
    expect(&manager, "READY=1");
    // Nothing can be read from a FIFO before somebody writes into it, and it ends when its last writer
    // closes it.
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let mut fifo = fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    expect(&manager, "RELOADING=1");
    let (started_at, mut notified_at) = (Instant::now(), Instant::now());
    while started_at.elapsed() < READING {
        expect(&manager, "WATCHDOG=1");
        assert!(notified_at.elapsed() < WATCHDOG, "{:?}", notified_at.elapsed());
        notified_at = Instant::now();
    }
    fifo.write_all(text.as_bytes()).unwrap();
    drop(fifo);
    expect(&manager, "READY=1");
    kill_process(pid, Signal::TERM).unwrap();
    expect(&manager, "STOPPING=1");
    let output = finish(server);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("nothing has changed"), "{said}");
}

/// Regression: with another descriptor beside its socket, as by OpenFile= of the unit, a server did not start.
#[test]
fn a_descriptor_of_another_kind_matters_only_if_it_is_named() {
    let site = site(10);
    let directory = site.path().to_str().unwrap();
    let (_directory, notify, manager) = manager();
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let start = |listen: &str, socket: TcpListener| {
        let script =
            "exec 3<&0 4</dev/null </dev/null; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" \"$@\"";
        Command::new("sh")
            .args(["-c", script, BINARY, "serve", directory, "--listen", listen])
            .env("LISTEN_FDNAMES", "http:file")
            .env("NOTIFY_SOCKET", &notify)
            .stdin(Stdio::from(OwnedFd::from(socket)))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let server = start("systemd:http", socket.try_clone().unwrap());
    expect(&manager, "READY=1");
    assert_eq!(Client::connect(address).get("/").text(), INDEX);
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(finish(server).status.success());
    let output = finish(start("systemd:file", socket));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("systemd:file: it is neither"), "{text}");
}

#[test]
fn a_socket_of_another_name_is_not_taken() {
    let site = site(10);
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = site.path().to_str().unwrap();
    let none = Path::new("/nonexistent/notify");
    let server = start(socket, "http", none, &[directory, "--listen", "systemd:https"]);
    let output = finish(server);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no socket of this name") && text.contains("http"), "{text}");
}
