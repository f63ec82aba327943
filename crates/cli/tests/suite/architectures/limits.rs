//! Servers that cannot get, or must not have, another process, thread or descriptor.

use super::{BINARY, LAST, in_each, serve, site, stop, tree};
use pollux_testkit::{denied, growth_within, http::Client, serve::Serve, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use std::{
    fs,
    fs::File,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

/// Returns the command of `pollux serve` as a user that has no other process and may have at most
/// `most` processes (RLIMIT_NPROC does not limit root). `number` gives different users to tests that
/// run at the same time. The program is opened before the change of user, because that user may have
/// no access to it.
fn as_another_user(number: u32, most: u32, directory: &Path, arguments: &[&str]) -> Command {
    let user = 61_000 + std::process::id() % 500 * 8 + number;
    let mut command = Command::new("sh");
    command.args(["-c", "exec 9<\"$0\" && exec \"$@\"", BINARY, "setpriv"]);
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
    command.args(["--clear-groups", "--inh-caps=-all", "prlimit"]);
    command.arg(format!("--nproc={most}:{most}")).args(["/proc/self/fd/9", "serve"]);
    command.arg(directory).args(["--json", "--listen", "127.0.0.1:0", "--keep-alive", "300s"]);
    command.args(arguments);
    command
}

/// Returns whether these tests can change the user here, and prints the reason if not.
fn can_change_user() -> bool {
    let works = |output: Output| output.status.success();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=60999", "--regid=60999", "--clear-groups", "--inh-caps=-all"]);
    let can = command.args(["prlimit", "--nproc=5:5", "true"]).output().is_ok_and(works);
    if !can {
        eprintln!("skipped: this needs root, setpriv and prlimit");
    }
    can
}

fn open_site() -> tempfile::TempDir {
    let site = site(0);
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
    site
}

#[test]
fn whom_no_process_or_thread_can_be_had_for_waits_and_is_not_lost() {
    if !can_change_user() {
        return;
    }
    let site = open_site();
    in_each(&["forking", "threaded"], |architecture| {
        let number = u32::from(architecture == "forking");
        // The limit allows the program, or its two threads, and then as many workers as remain.
        let arguments = ["--architecture", architecture];
        let server = Serve::start_command(as_another_user(number, 4, site.path(), &arguments));
        let mut clients: Vec<_> = (0..7).map(|_| server.client()).collect();
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        }
        // When this message is logged, as many clients as possible have a worker.
        wait_until("the message that no worker can be started", || {
            server.stderr_text().contains("cannot be started")
        });
        let is_served = |client: &Client| {
            client.socket().set_nonblocking(true).unwrap();
            // The input that has arrived is read later.
            let has_come = client.socket().peek(&mut [0; 1]).is_ok();
            client.socket().set_nonblocking(false).unwrap();
            has_come
        };
        wait_until("a client that is served", || clients.iter().any(is_served));
        let (mut held, late): (Vec<_>, Vec<_>) = clients.into_iter().partition(is_served);
        assert!((1..=3).contains(&held.len()), "{architecture}: {} are served", held.len());
        for client in &mut held {
            assert_eq!(client.reply().text(), "hello", "{architecture}");
            assert_eq!(client.get("/").text(), "hello", "{architecture}: those go on");
        }
        drop(held);
        // Each client that disconnects makes room for the next one.
        for mut client in late {
            assert_eq!(client.reply().text(), "hello", "{architecture}");
        }
        let stderr = server.stderr_text();
        assert_eq!(stderr.matches("cannot be started").count(), 1, "{architecture}: {stderr}");
        assert!(stderr.contains("ulimit -u"), "{stderr}");
        let last = stop(server);
        assert_eq!(last["connections"]["accepted"], 7, "{last}");
        assert!(last["accept_pauses"].as_u64() > Some(0), "{last}");
    });
}

/// Regression: the size of the memory that workers share overflowed, and the server ended with a panic.
#[test]
fn a_very_large_number_of_connections_can_be_allowed() {
    let (site, most) = (site(0), i64::MAX.to_string());
    in_each(&["threaded", "forking"], |architecture| {
        let server = serve(site.path(), architecture, &["--max-connections", &most]);
        assert_eq!(server.client().get("/").text(), "hello");
        stop(server);
    });
}

#[test]
fn a_pool_that_cannot_be_started_is_reported_at_the_start() {
    if !can_change_user() {
        return;
    }
    let site = open_site();
    in_each(&["preforked", "prethreaded"], |architecture| {
        let number = 2 + u32::from(architecture == "preforked");
        let arguments = ["--architecture", architecture, "--pool", "12"];
        let output = as_another_user(number, 6, site.path(), &arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("of 12 (fewer: --pool)"), "{stderr}");
        assert!(stderr.contains("Resource temporarily unavailable"), "{stderr}");
    });
}

/// A worker that has ended cannot be replaced at first, because another process of the same user has
/// started.
#[test]
fn a_place_is_filled_when_it_can_be() {
    if !can_change_user() {
        return;
    }
    let site = open_site();
    let arguments = ["--architecture", "preforked", "--pool", "2"];
    let server = Serve::start_command(as_another_user(4, 3, site.path(), &arguments));
    let user = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let user = user.lines().find_map(|line| line.strip_prefix("Uid:\t")).unwrap();
    let user: u32 = user.split('\t').next().unwrap().parse().unwrap();
    // The process counts towards the user's limit; root may exceed that limit.
    let mut other = Command::new("setpriv")
        .args([&format!("--reuid={user}"), "--clear-groups", "sleep", "60"])
        .spawn()
        .unwrap();
    let is_theirs = |pid: u32| {
        fs::read_to_string(format!("/proc/{pid}/status"))
            .is_ok_and(|text| text.contains(&format!("Uid:\t{user}\t")))
    };
    wait_until("a process of the other user", || is_theirs(other.id()));
    let before = tree::children(server.pid());
    let victim = Pid::from_raw(before[0] as i32).unwrap();
    rustix::process::kill_process(victim, Signal::KILL).unwrap();
    wait_until("the message that the worker cannot be replaced", || {
        server.stderr_text().contains("cannot be replaced yet")
    });
    // The other worker serves in the meantime.
    let mut client = server.client();
    client.send(LAST);
    assert_eq!(client.reply().text(), "hello");
    assert_eq!(tree::children(server.pid()).len(), 1);
    other.kill().unwrap();
    other.wait().unwrap();
    wait_until("another process in its place", || tree::children(server.pid()).len() == 2);
    assert_eq!(
        server.stderr_text().matches("(Reported once.)").count(),
        1,
        "{}",
        server.stderr_text()
    );
    let mut rest = String::new();
    let mut client = server.client();
    client.send(LAST);
    client.socket().read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("hello"));
    stop(server);
}

/// Regression: each thread opened the directory for itself; from half of the limit on, connections
/// were accepted and closed without being served.
#[test]
fn with_few_descriptors_new_clients_wait_and_are_not_lost() {
    let site = site(0);
    in_each(&["threaded", "prethreaded"], |architecture| {
        let mut arguments = vec!["--architecture", architecture, "--header-timeout", "300s"];
        if architecture == "prethreaded" {
            // More workers than there is room for: each needs an epoll set and its connection.
            arguments.extend(["--pool", "30"]);
        }
        let server = Serve::start_limited(80, BINARY, site.path(), &arguments);
        let clients: Vec<_> = (0..40).map(|_| server.client()).collect();
        for mut client in clients {
            client.send(LAST);
            assert_eq!(client.reply().text(), "hello", "{architecture}");
        }
        let stderr = server.stderr_text();
        assert!(!stderr.contains("unserved"), "{architecture}: {stderr}");
        let is_cut = stderr.contains("a pool of 30 has no room");
        assert_eq!(is_cut, architecture == "prethreaded", "{stderr}");
        assert_eq!(stop(server)["connections"]["accepted"], 40, "{architecture}");
    });
}

/// Limits the number of descriptors of a process: `None` means the hard limit, which is that of the
/// test.
fn limit_descriptors(pid: u32, most: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: most.or(maximum), maximum };
    prlimit(Pid::from_raw(pid as i32), Resource::Nofile, limit).unwrap();
}

/// Regression: if a worker waited for a descriptor when it noticed a stop, it stopped accepting at
/// once, and the clients in the kernel's queue were lost.
#[test]
fn a_client_without_a_descriptor_at_a_stop_is_served_when_one_is_free() {
    let site = site(0);
    in_each(&["iterative", "forking", "preforked", "threaded", "prethreaded"], |architecture| {
        let mut arguments = vec!["--grace", "300s"];
        if architecture.starts_with("pre") {
            arguments.extend(["--pool", "1"]);
        }
        let mut server = serve(site.path(), architecture, &arguments);
        let accepts = match architecture {
            "preforked" => tree::children(server.pid())[0],
            _ => server.pid(),
        };
        limit_descriptors(accepts, Some(3));
        let mut clients: Vec<_> = (0..3).map(|_| server.client()).collect();
        for client in &mut clients {
            client.send(LAST);
        }
        wait_until("the message that accepting pauses", || {
            server.stderr_text().contains("accepting pauses")
        });
        server.signal_and_wait(Signal::TERM);
        // Usually the server has noticed the stop by now. If it has not, this test shows nothing, and
        // does not fail.
        thread::sleep(Duration::from_millis(200));
        limit_descriptors(accepts, None);
        // A worker that blocks in accept(2) already has a descriptor for the first connection, but
        // none for the file.
        let is_hello = |client: &mut Client| client.reply().text() == "hello";
        let answers: Vec<_> = clients.iter_mut().map(is_hello).collect();
        assert_eq!(answers[1..], [true; 2], "{architecture}");
        let (status, last) = server.wait();
        assert!(status.success(), "{architecture}");
        assert_eq!(last["connections"]["accepted"], 3, "{architecture}");
    });
}

/// Regression: each worker of the pool held as many files open as all workers together may. Then no
/// other file could be opened, and requests for files outside the cache were refused permanently.
#[test]
fn with_few_descriptors_a_pool_serves_more_files_than_it_can_hold_open() {
    const FILES: usize = 100;
    let site = site(0);
    for number in 0..FILES {
        // Too long to be held in memory.
        File::create(site.path().join(number.to_string())).unwrap().set_len(300 << 10).unwrap();
    }
    let arguments = ["--architecture", "prethreaded", "--pool", "8"];
    let server = Serve::start_limited(128, BINARY, site.path(), &arguments);
    for round in 0..2 {
        for number in 0..FILES {
            let reply =
                server.client().request("GET", &format!("/{number}"), &["Connection: close"]);
            assert_eq!((reply.status, reply.body.len()), (200, 300 << 10), "{number}, {round}");
        }
    }
    stop(server);
}

/// Regression: an unknown error was treated as an empty queue, and the next wait reported the
/// connection immediately.
#[test]
fn a_worker_that_may_not_accept_does_not_spin() {
    let site = site(0);
    in_each(&["iterative", "forking", "preforked", "threaded", "prethreaded"], |architecture| {
        let mut arguments = vec!["--grace", "1s"];
        if architecture.starts_with("pre") {
            arguments.extend(["--pool", "1"]);
        }
        let mut server = denied(libc::SYS_accept4, libc::ENOSYS, || {
            serve(site.path(), architecture, &arguments)
        });
        let _client = server.client();
        wait_until("the message that accepting pauses", || {
            server.stderr_text().contains("accepting pauses")
        });
        let started_at = Instant::now();
        let calls = growth_within(Duration::from_millis(500), || {
            server.statistics()["system_calls"]["accept4"]["count"].as_u64().unwrap_or(0)
        });
        let most = 2 + started_at.elapsed().as_secs();
        assert!(calls <= most, "{architecture}: {calls} calls of accept4 in a moment");
        assert!(
            server.stderr_text().contains("seccomp"),
            "{architecture}: {}",
            server.stderr_text()
        );
        stop(server);
    });
}
