//! Processes of the server: processes that are killed, the end of the parent, and the descriptors of
//! each process.

use super::{BINARY, CONCURRENT, LAST, PROCESSES, in_each, serve, site, stop, tree};
use pollux_testkit::{denied_where, http::Client, serve::Serve, wait_for, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeSet,
    panic,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

fn kill(pid: u32) {
    send(pid, Signal::KILL);
}

/// Returns the process that serves a client's connection: the one that has a socket to it. While
/// sockets are created and closed, a reading of the kernel's table can miss some sockets, so the table
/// is read until it contains this one.
fn serving_pid(server: &Serve, client: &Client) -> u32 {
    let port = client.socket().local_addr().unwrap().port();
    let far = format!("{:08X}:{port:04X}", u32::from_le_bytes([127, 0, 0, 1]));
    wait_for("the process that has the connection", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let inode = table.lines().skip(1).find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            // A connection that has ended has no inode.
            (fields[2] == far && fields[9] != "0").then(|| format!("socket:[{}]", fields[9]))
        })?;
        let mut children = tree::children(server.pid()).into_iter();
        children.find(|&pid| tree::descriptors(pid).values().any(|name| *name == inode))
    })
}

/// Sets a flag at the end of a test, also after a panic, so that the threads that load the server end.
struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// One child is killed while all serve: its own connection ends, no other connection does, and soon
/// there are as many children as before.
#[test]
fn a_killed_child_ends_no_other() {
    let site = site(0);
    in_each(&PROCESSES, |architecture| {
        let is_pool = architecture == "preforked";
        // On a busy machine the load may occupy all other processes for a moment.
        let pool = ["--pool", "6", "--idle-eviction", "off"];
        let arguments: &[&str] = if is_pool { &pool } else { &[] };
        let mut server = serve(site.path(), architecture, arguments);
        let mut held: Vec<_> = (0..3).map(|_| server.client()).collect();
        for client in &mut held {
            assert_eq!(client.get("/").text(), "hello");
        }
        // A process that is killed before its next wait loses the statistics since its last wait.
        server.wait_until("all to be counted", |now| now["requests"] == 3);
        let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
        let address = server.address().to_owned();
        thread::scope(|scope| {
            let load = scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    let mut client = Client::connect(&address);
                    client.send(LAST);
                    assert_eq!(client.reply().text(), "hello");
                    answered.fetch_add(1, SeqCst);
                }
            });
            let end = AtTheEnd(&is_over);
            let mut victim = held.remove(0);
            let pid = serving_pid(&server, &victim);
            kill(pid);
            assert!(victim.read_to_end_or_reset().is_empty());
            wait_until("the end of the killed process", || !tree::is_alive(pid));
            for client in &mut held {
                assert_eq!(client.get("/").text(), "hello");
            }
            if is_pool {
                wait_until("another process in its place", || {
                    tree::children(server.pid()).len() == 6
                });
            }
            let until_now = answered.load(SeqCst);
            wait_until("more answers", || answered.load(SeqCst) > until_now + 10);
            drop(end);
            load.join().unwrap();
        });
        wait_until("the message about the killed process", || {
            server.stderr_text().contains("has ended (signal 9)")
        });
        drop(held);
        let last = stop(server);
        assert_eq!(last["connections"]["open"], 0, "{last}");
        assert_eq!(last["connections"]["accepted"], last["connections"]["closed"], "{last}");
        assert_eq!(last["workers"]["replaced"], 1, "{last}");
        // The statistics from before the kill are included.
        let (requests, accepted) = (&last["requests"], &last["connections"]["accepted"]);
        assert_eq!(requests.as_u64(), accepted.as_u64().map(|count| count + 2), "{last}");
    });
}

/// A process that is killed cannot report that its connection has ended.
#[test]
fn the_connection_of_a_killed_process_does_not_count_for_its_address() {
    let site = site(0);
    in_each(&PROCESSES, |architecture| {
        let mut server =
            serve(site.path(), architecture, &["--limit-connections-per-address", "1"]);
        let mut victim = server.client();
        assert_eq!(victim.get("/").text(), "hello");
        assert!(server.client().is_closed(), "{architecture}");
        let pid = serving_pid(&server, &victim);
        kill(pid);
        assert!(victim.read_to_end_or_reset().is_empty());
        server.wait_until("the end of the killed process to be noticed", |now| {
            now["workers"]["replaced"] == 1
        });
        assert_eq!(server.client().get("/").text(), "hello", "{architecture}");
        let last = stop(server);
        assert_eq!(last["clients"]["over_connections"], 1, "{architecture}: {last}");
    });
}

/// The whole pool is killed at once: the replacements serve the waiting clients.
#[test]
fn a_pool_that_is_killed_comes_back() {
    let site = site(0);
    for accept in ["exclusive", "blocking", "reuseport", "mutex"] {
        let server = serve(site.path(), "preforked", &["--pool", "3", "--accept", accept]);
        let before = tree::children(server.pid());
        assert_eq!(before.len(), 3);
        // A process that dies takes a connection that it has just accepted with it, so the test waits
        // until all are dead.
        before.iter().copied().for_each(kill);
        wait_until("the end of all workers", || !before.iter().any(|&pid| tree::is_alive(pid)));
        let mut late: Vec<_> = (0..9).map(|_| server.client()).collect();
        late.iter_mut().for_each(|client| client.send(LAST));
        for client in &mut late {
            assert_eq!(client.reply().text(), "hello", "{accept}");
        }
        // A third process may still be starting when two have served all clients.
        wait_until("the whole pool", || tree::children(server.pid()).len() == 3);
        assert_eq!(stop(server)["requests"], 9, "{accept}");
    }
}

/// A process that dies at each start is started at increasing intervals.
#[test]
fn a_crash_loop_does_not_spin() {
    let site = site(0);
    let mut server = serve(site.path(), "preforked", &["--pool", "1"]);
    // From now on no child can open the site.
    let moved = site.path().with_extension("moved");
    std::fs::rename(site.path(), &moved).unwrap();
    let [child] = tree::children(server.pid())[..] else { panic!("one child") };
    let started_at = Instant::now();
    kill(child);
    let ends = || server.stderr_text().matches("has ended (exit status 1)").count() as u32;
    wait_until("three ends of the process", || ends() >= 3);
    // Long enough for a server without pauses to start very many processes.
    thread::sleep(Duration::from_millis(500));
    // The next process is started at once, and then after 100, 200, 400, 800 ms, and so on.
    let (ends, took) = (ends(), started_at.elapsed());
    assert!(took >= Duration::from_millis(100) * (2u32.pow(ends - 1) - 1), "{ends} in {took:?}");
    assert!(server.is_running());
    std::fs::rename(&moved, site.path()).unwrap();
    let mut client = server.client();
    client.send(LAST);
    assert_eq!(client.reply().text(), "hello");
    stop(server);
}

#[test]
fn no_child_outlives_a_parent_that_is_killed() {
    let site = site(0);
    in_each(&PROCESSES, |architecture| {
        let log = site.path().join(format!("log-{architecture}"));
        let arguments = ["--access-log", log.to_str().unwrap()];
        let mut server = serve(site.path(), architecture, &arguments);
        let mut held: Vec<_> = (0..3).map(|_| server.client()).collect();
        for client in &mut held {
            assert_eq!(client.get("/").text(), "hello");
        }
        let children = tree::children(server.pid());
        assert!(children.len() >= 4, "three of connections, and the log's: {children:?}");
        server.signal(Signal::KILL);
        wait_until("the end of all children", || !children.iter().any(|&pid| tree::is_alive(pid)));
        assert!(held.iter_mut().all(|client| client.read_to_end_or_reset().is_empty()));
        wait_until("the end of the server", || !server.is_running());
    });
}

/// Returns the process that has the access log open.
fn log_writer_pid(server: &Serve, log: &Path) -> Option<u32> {
    let log = log.to_str().unwrap();
    let mut children = tree::children(server.pid()).into_iter();
    children.find(|&pid| tree::descriptors(pid).values().any(|name| name == log))
}

/// Waits until a process other than `former` has the access log open.
fn another_writes(server: &Serve, log: &Path, former: Option<u32>) -> u32 {
    wait_for("another process that writes", || {
        log_writer_pid(server, log).filter(|&writer| Some(writer) != former)
    })
}

fn log_lines(log: &Path) -> usize {
    std::fs::read_to_string(log).unwrap().lines().count()
}

/// The process that writes the access log is killed: another process replaces it, and later lines are
/// not lost.
#[test]
fn the_logs_process_is_replaced() {
    let site = site(0);
    in_each(&PROCESSES, |architecture| {
        let log = site.path().join(format!("log-{architecture}"));
        let server = serve(site.path(), architecture, &["--access-log", log.to_str().unwrap()]);
        let get = || {
            let mut client = server.client();
            client.send(LAST);
            assert_eq!(client.reply().text(), "hello");
            assert!(client.is_closed());
        };
        get();
        wait_until("the line of the request", || log_lines(&log) == 1);
        let first = log_writer_pid(&server, &log).expect("somebody writes");
        kill(first);
        // The lines that the process had received when it died are lost; later lines are not.
        wait_until("the end of the killed process", || !tree::is_alive(first));
        get();
        another_writes(&server, &log, Some(first));
        get();
        // Before the stop, after which the server waits only a few seconds for the lines: a disk can
        // stall for longer.
        wait_until("the lines of all requests", || log_lines(&log) == 3);
        stop(server);
        assert_eq!(log_lines(&log), 3);
    });
}

/// Starts a server with an access log, calls `before`, sends one request, stops the server, calls
/// `at_the_end`, and checks that the log contains the line of the request.
fn its_line_is_written(
    architecture: &str,
    before: impl Fn(&Serve, &Path),
    at_the_end: impl Fn(&Serve, &Path),
) {
    let started_at = Instant::now();
    loop {
        let site = site(0);
        let log = site.path().join("log");
        let arguments = ["--access-log", log.to_str().unwrap()];
        let mut server = serve(site.path(), architecture, &arguments);
        before(&server, &log);
        let mut client = server.client();
        client.send(LAST);
        assert_eq!(client.reply().text(), "hello");
        assert!(client.is_closed());
        server.signal(Signal::TERM);
        at_the_end(&server, &log);
        assert!(server.wait().0.success());
        let (lines, stderr) = (log_lines(&log), server.stderr_text());
        if lines == 1 {
            return;
        }
        // The server has a few seconds for this. If it reports that they were not enough, the machine
        // was too busy for the test.
        let had_time = !stderr.contains("its last lines are lost");
        let is_over = started_at.elapsed() > Duration::from_secs(30);
        assert!(!had_time && !is_over, "{architecture}: {lines} lines; {stderr}");
    }
}

/// Regression: the process that writes the access log has died so often that it is not replaced for a
/// while, and the server ends: the queued lines were lost without a message. They must be written.
#[test]
fn lines_that_wait_for_a_writer_are_written_at_the_end() {
    in_each(&PROCESSES, |architecture| {
        // After the sixth death the next process is started 1.6 s later.
        let kill_six = |server: &Serve, log: &Path| {
            for _ in 0..6 {
                let writer = another_writes(server, log, None);
                kill(writer);
                wait_until("the end of the killed process", || !tree::is_alive(writer));
            }
        };
        its_line_is_written(architecture, kill_six, |_, _| {});
    });
}

/// Regression: the process that writes the access log is killed when all other processes have ended:
/// the remaining lines were lost without a message. Another process must write them.
#[test]
fn a_writer_that_is_killed_at_the_end_is_replaced() {
    in_each(&PROCESSES, |architecture| {
        let stop_it = |server: &Serve, log: &Path| {
            let writer = another_writes(server, log, None);
            send(writer, Signal::STOP);
            wait_until("the stop of the process", || tree::is_stopped(writer));
        };
        let kill_it = |server: &Serve, log: &Path| {
            let writer = log_writer_pid(server, log).expect("it is there");
            wait_until("the end of all other processes", || {
                tree::children(server.pid()) == [writer]
            });
            kill(writer);
        };
        its_line_is_written(architecture, stop_it, kill_it);
    });
}

/// The parent's wait fails for lack of memory for a moment. Regression: the first failure ended the
/// parent, and with it all children.
#[test]
fn a_wait_of_the_parent_that_fails_ends_nothing() {
    let site = site(0);
    let started_at = Instant::now();
    loop {
        let tried_at = Instant::now();
        // Only the parent waits for three descriptors: signals and two listeners.
        let outcome = panic::catch_unwind(|| {
            let arguments = ["--listen", "127.0.0.1:0"];
            let server = denied_where((libc::SYS_ppoll, 1, 3), libc::ENOMEM, || {
                serve(site.path(), "forking", &arguments)
            });
            let mut client = server.client();
            client.send(LAST);
            assert_eq!(client.reply().text(), "hello");
            // The client may have connected before the first wait.
            wait_until("the message about the failed wait", || {
                server.stderr_text().contains("is tried again")
            });
            stop(server);
        });
        // A wait that fails for some seconds does end the parent: then the machine was too busy for
        // the test.
        let was_too_slow = outcome.is_err() && tried_at.elapsed() > Duration::from_secs(4);
        if !was_too_slow || started_at.elapsed() > Duration::from_secs(30) {
            return outcome.unwrap_or_else(|reason| panic::resume_unwind(reason));
        }
    }
}

/// A child has the standard descriptors, the descriptors with which it serves, and no others: no
/// connection of another child, no listener that it does not use, no descriptor with which the program
/// was started.
#[test]
fn children_have_nothing_that_is_not_theirs() {
    let site = site(0);
    in_each(&PROCESSES, |architecture| {
        // A careless shell may start the program like this: descriptor 7 is open.
        let mut command = Command::new("sh");
        command.args(["-c", "exec 7</etc/passwd && exec \"$0\" \"$@\"", BINARY, "serve"]);
        command.arg(site.path()).args(["--json", "--listen", "127.0.0.1:0"]);
        command.args(["--architecture", architecture, "--keep-alive", "300s"]);
        let server = Serve::start_command(command);
        assert!(tree::descriptors(server.pid()).values().any(|name| name == "/etc/passwd"));
        let mut held: Vec<_> = (0..4).map(|_| server.client()).collect();
        for client in &mut held {
            assert_eq!(client.get("/").text(), "hello");
        }
        let children = tree::children(server.pid());
        let mut connections = BTreeSet::new();
        for &child in &children {
            let all = tree::descriptors(child);
            assert!(!all.values().any(|name| name.contains("passwd")), "{all:?}");
            let sockets = tree::tcp_sockets(child);
            let listeners = sockets.iter().filter(|(_, listens)| *listens).count();
            assert_eq!(listeners, usize::from(architecture == "preforked"), "{sockets:?}");
            let own: Vec<_> = sockets.iter().filter(|(_, listens)| !listens).collect();
            assert!(own.len() <= 1, "{architecture}: connections of others: {own:?}");
            connections.extend(own.into_iter().map(|(name, _)| name.clone()));
            // Two notifiers, the site, an epoll set, the listener, the connection.
            assert!(all.len() <= 6, "{architecture}: {all:?}");
            assert!(!all.values().any(|name| name.contains("signalfd")), "{all:?}");
        }
        assert_eq!(connections.len(), held.len(), "each is one process' alone");
        // The parent has kept none either: a connection ends with its process.
        let kept = tree::tcp_sockets(server.pid());
        assert!(kept.iter().all(|(_, listens)| *listens), "{kept:?}");
        drop(held);
        stop(server);
    });
}

/// A stop signal is sent to all processes, as a terminal or an init system does.
#[test]
fn a_signal_to_the_whole_group_is_one_stop() {
    let site = site(6 << 20);
    in_each(&CONCURRENT, |architecture| {
        let mut server = serve(site.path(), architecture, &["--grace", "60s"]);
        let mut busy = server.client();
        busy.send(LAST.replace("GET /", "GET /large"));
        wait_until("the connection", || server.statistics()["connections"]["accepted"] == 1);
        for pid in tree::children(server.pid()).into_iter().chain([server.pid()]) {
            let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::INT);
        }
        assert_eq!(busy.reply().body.len(), 6 << 20, "{architecture}");
        let (status, last) = server.wait();
        assert!(status.success());
        assert_eq!(last["requests"], 1, "{architecture}: {last}");
    });
}

/// Regression: a password makes the parent draw a random number, and then all its children drew the same ones.
#[test]
fn processes_draw_random_numbers_of_their_own() {
    let site = site(0);
    let users = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        users.path(),
        "u:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n",
    )
    .unwrap();
    let area = format!("/none={}", users.path().display());
    in_each(&PROCESSES, |architecture| {
        let server = serve(site.path(), architecture, &["--basic-auth", &area, "--request-id"]);
        let mut clients = [(); 3].map(|()| server.client());
        let replies = clients.each_mut().map(|client| client.get("/"));
        let ids: BTreeSet<_> = replies.iter().map(|reply| reply.field("x-request-id")).collect();
        assert_eq!(ids.len(), 3, "{architecture}: {ids:?}");
        assert!(!ids.contains(&None), "{architecture}");
        stop(server);
    });
}

/// Regression: where the parent process ignored SIGCHLD, the exit statuses of children could not be
/// collected.
#[test]
fn an_ignored_sigchld_does_not_matter() {
    let site = site(0);
    // Not by a shell's trap: some shells need the signal themselves and do not ignore it.
    let mut command = Command::new("env");
    command.args(["--ignore-signal=CHLD", BINARY, "serve"]);
    command.arg(site.path()).args(["--json", "--listen", "127.0.0.1:0"]);
    command.args(["--architecture", "preforked", "--pool", "2"]);
    let server = Serve::start_command(command);
    let before = tree::children(server.pid());
    kill(before[0]);
    wait_until("another process in its place", || {
        let now = tree::children(server.pid());
        now.len() == 2 && !now.contains(&before[0])
    });
    stop(server);
}
