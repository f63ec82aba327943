//! `--sandbox`: the server works inside the sandbox, and can do nothing else.

use super::{BINARY, INDEX, assert_serves, content, serve, site};
use pollux_testkit::{
    guestbook::is_a_guestbook, origin::Origin, redis::Redis, serve::Serve, threads::fields,
    wait_for, wait_until,
};
use rustix::process::Signal;
use std::{fs, net::TcpListener, path::Path, process::Command};

const ARCHITECTURES: [&str; 5] = ["iterative", "forking", "preforked", "threaded", "prethreaded"];

/// Returns whether this kernel supports all parts of the sandbox; prints why a test is skipped.
pub(crate) fn is_possible() -> bool {
    /// The first ABI of Landlock that limits signals.
    const ABI: u32 = 6;
    match pollux_sys::landlock_abi() {
        Ok(abi) if abi >= ABI => return true,
        Ok(abi) => eprintln!("skipped: Landlock has ABI {abi}, and not {ABI}"),
        Err(error) => eprintln!("skipped: no Landlock: {error}"),
    }
    false
}

/// Checks that the server sends a short and a long file, prints its statistics, and ends successfully.
fn works(mut server: Serve, what: &str) {
    let sandbox = &server.listening()["sandbox"];
    assert_eq!(sandbox["seccomp"], "kill", "{what}: {sandbox}");
    assert_serves(&server);
    assert_eq!(server.client().get("/large.bin").body, content(300_000), "{what}");
    assert_eq!(server.client().get("/none").status, 404, "{what}");
    server.wait_until(what, |all| all["requests"].as_u64() >= Some(3));
    let said = server.stderr_text();
    assert!(said.contains("in force: Landlock ABI") && said.contains("seccomp (kill)"), "{said}");
    let children = format!("/proc/{0}/task/{0}/children", server.pid());
    let children = fs::read_to_string(children).unwrap();
    let (status, _) = server.stop();
    assert!(status.success(), "{what}: {status}: {said}");
    for child in children.split_whitespace() {
        assert!(!Path::new("/proc").join(child).exists(), "{what}: it leaves {child} behind");
    }
}

#[test]
fn every_mechanism_serves_in_it() {
    if !is_possible() {
        return;
    }
    let site = site(300_000);
    for mechanism in pollux_event::registry::ALL {
        let spec = mechanism.name.parse().unwrap();
        if let Err(error) = pollux_event::registry::probe(&spec) {
            eprintln!("skipped: {}: {error}", mechanism.name);
            continue;
        }
        let arguments = ["--sandbox", "kill", "--mechanism", mechanism.name, "--workers", "2"];
        works(serve(site.path(), &arguments), mechanism.name);
    }
}

#[test]
fn every_architecture_serves_in_it() {
    if !is_possible() {
        return;
    }
    let site = site(300_000);
    for architecture in ARCHITECTURES {
        let mut arguments = vec!["--sandbox", "kill", "--architecture", architecture];
        if architecture.starts_with("pre") {
            arguments.extend(["--pool", "3"]);
        }
        works(serve(site.path(), &arguments), architecture);
    }
    let arguments = ["--architecture", "preforked", "--pool", "2", "--accept", "reuseport"];
    works(serve(site.path(), &[&["--sandbox", "kill"], &arguments[..]].concat()), "reuseport");
}

#[test]
fn a_request_still_needs_two_system_calls() {
    if !is_possible() {
        return;
    }
    const REQUESTS: u64 = 200;
    let site = site(0);
    let mut server = serve(site.path(), &["--sandbox", "kill"]);
    let mut client = server.client();
    client.get("/");
    let calls = |all: &serde_json::Value| -> u64 {
        let calls = all["system_calls"].as_object().unwrap();
        // The calls that wait are counted separately.
        let own = calls.iter().filter(|(name, _)| !name.starts_with("epoll"));
        own.map(|(_, call)| call["count"].as_u64().unwrap()).sum()
    };
    let before = calls(&server.wait_until("the first", |all| all["requests"] == 1));
    (0..REQUESTS).for_each(|_| assert_eq!(client.get("/").text(), INDEX));
    let all = server.wait_until("all", |all| all["requests"] == REQUESTS + 1);
    let made = calls(&all) - before;
    // Each command for statistics costs one or two.
    assert!((2 * REQUESTS..=2 * REQUESTS + 40).contains(&made), "{made}: {all}");
    assert!(server.stop().0.success());
}

#[test]
fn it_is_on_unless_it_is_switched_off() {
    if !is_possible() {
        return;
    }
    let site = site(0);
    let server = serve(site.path(), &[]);
    let sandbox = &server.listening()["sandbox"];
    assert_eq!(sandbox["seccomp"], "log", "{sandbox}");
    assert!(sandbox["landlock"].as_u64() >= Some(1), "{sandbox}");
    // Mode 2 is a filter (proc_pid_status(5)).
    assert!(fields(server.pid(), "Seccomp:").iter().all(|mode| mode == "2"));
    assert!(fields(server.pid(), "NoNewPrivs:").iter().all(|value| value == "1"));
    let server = serve(site.path(), &["--sandbox", "off"]);
    assert!(server.listening()["sandbox"].is_null());
    assert!(fields(server.pid(), "Seccomp:").iter().all(|mode| mode == "0"));
}

/// Lets a running server make `attempts`, and returns whether each was allowed, as the server reports.
/// The site is named by the flags or by a file.
fn outcomes(mode: &str, has_file: bool, site: &Path, attempts: &[String]) -> Vec<bool> {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pollux.toml");
    fs::write(&config, format!("[[site]]\nroot = \"{}\"\n", site.display())).unwrap();
    let mut command = Command::new(BINARY);
    command.arg("serve");
    match has_file {
        true => command.arg("--config").arg(&config),
        false => command.arg(site),
    };
    command.args(["--json", "--listen", "127.0.0.1:0", "--sandbox", mode]);
    command.env("POLLUX_TEST_ATTEMPTS", attempts.join(","));
    let server = Serve::start_command(command);
    let outcome = |attempt: &String| {
        let label = format!("attempt {attempt}: ");
        wait_for(&format!("the outcome of the attempt {attempt}"), || {
            let said = server.stderr_text();
            let (_, outcome) = said.lines().find_map(|line| line.split_once(&label))?;
            Some(outcome.starts_with("allowed"))
        })
    };
    let all = attempts.iter().map(outcome).collect();
    assert_serves(&server);
    assert!(server.stop().0.success());
    all
}

#[cfg_attr(not(debug_assertions), ignore = "the hook is in debug builds alone")]
#[test]
fn files_ports_and_programs_outside_are_out_of_reach() {
    if !is_possible() {
        return;
    }
    let (app, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let site = app.path().join("public");
    fs::create_dir(&site).unwrap();
    fs::write(site.join("index.html"), INDEX).unwrap();
    let [secret, above] = [other.path().join("secret"), app.path().join(".env")];
    for file in [&secret, &above] {
        fs::write(file, "").unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut attempts = vec![
        format!("read:{}", secret.display()),
        format!("read:{}", above.display()),
        format!("connect:{port}"),
        "exec:/bin/true".into(),
    ];
    if rustix::process::geteuid().is_root() {
        attempts.push("read:/etc/shadow".into());
    }
    let allowed = outcomes("off", false, &site, &attempts);
    assert!(allowed.iter().all(|allowed| *allowed), "{attempts:?} {allowed:?}");
    for (mode, has_file) in
        [("auto", false), ("auto", true), ("log", false), ("kill", false), ("kill", true)]
    {
        let allowed = outcomes(mode, has_file, &site, &attempts);
        for (attempt, allowed) in attempts.iter().zip(allowed) {
            assert!(!allowed, "{mode}, file: {has_file}: {attempt}");
        }
    }
}

#[test]
fn a_front_end_has_its_origin_its_cache_and_its_log() {
    if !is_possible() {
        return;
    }
    let origin = Origin::start(|request| {
        request
            .say("HTTP/1.1 200 OK\r\nContent-Length: 6\r\nCache-Control: max-age=60\r\n\r\norigin")
    });
    let folder = tempfile::tempdir().unwrap();
    let [cache, log, moved] = ["cache", "log", "log.1"].map(|name| folder.path().join(name));
    let site = site(0);
    // The origin is given by name, which is looked up in the sandbox.
    let url = format!("/api={}", origin.url().replace("127.0.0.1", "localhost"));
    let server = serve(
        site.path(),
        &[
            "--sandbox",
            "kill",
            "--origin",
            &url,
            "--cache",
            "1M",
            "--cache-dir",
            cache.to_str().unwrap(),
            "--access-log",
            log.to_str().unwrap(),
        ],
    );
    for _ in 0..2 {
        assert_eq!(server.client().get("/api/a").text(), "origin");
    }
    assert_serves(&server);
    fs::rename(&log, &moved).unwrap();
    server.signal_and_wait(Signal::HUP);
    wait_until("the new log", || log.exists());
    assert!(server.stop().0.success());
    assert!(fs::read_to_string(&moved).unwrap().contains("GET /api/a "));
    let stored = fs::read_dir(&cache).unwrap().count();
    assert!(stored > 1, "more than the lock: {stored}");
}

#[test]
fn a_guestbook_has_its_file_and_its_redis() {
    if !is_possible() {
        return;
    }
    let (site, folder) = (site(0), tempfile::tempdir().unwrap());
    let redis = Redis::start(&[]);
    let file = format!("file:{}", folder.path().join("book").display());
    let redis = redis.as_ref().map(|redis| format!("redis://localhost:{}", redis.port));
    for store in std::iter::once(file).chain(redis) {
        for architecture in ["event", "preforked"] {
            let arguments = [
                "--sandbox",
                "kill",
                "--guestbook",
                "--store",
                &store,
                "--architecture",
                architecture,
            ];
            let server = serve(site.path(), &arguments);
            is_a_guestbook(&|| server.client(), INDEX);
            assert!(server.stop().0.success(), "{store} {architecture}");
        }
    }
}

#[test]
fn a_hub_has_its_store() {
    if !is_possible() {
        return;
    }
    let (site, folder) = (site(0), tempfile::tempdir().unwrap());
    let redis = Redis::start(&[]);
    let file = format!("file:{}", folder.path().join("hub").display());
    let redis = redis.as_ref().map(|redis| format!("redis://127.0.0.1:{}", redis.port));
    for store in std::iter::once(file).chain(redis) {
        let arguments =
            ["--hub", "--hub-anonymous", "--hub-publish-anonymous", "--hub-store", &store];
        let server = serve(site.path(), &[&["--sandbox", "kill"], &arguments[..]].concat());
        let url = format!("http://{}", server.address());
        let mut push = Command::new(BINARY);
        push.args(["push", &url, "--topic", "a", "--data", "one"]);
        let output = push.output().unwrap();
        assert!(output.status.success(), "{store}: {output:?} {}", server.stderr_text());
        assert!(server.stop().0.success(), "{store}");
    }
}

/// The certificates are replaced by other files with the same names, as certbot does.
#[test]
fn certificates_are_read_again() {
    if !is_possible() {
        return;
    }
    let (site, folder) = (site(0), tempfile::tempdir().unwrap());
    crate::tls::openssl(folder.path(), "a", "localhost");
    let [chain, key] = ["a.pem", "a.key"].map(|name| folder.path().join(name));
    let arguments = ["--tls-cert", chain.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let server = serve(site.path(), &[&["--sandbox", "kill"], &arguments[..]].concat());
    let curl = || {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--cacert"]);
        command.arg(&chain).arg(format!("https://{}/", server.address()));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(curl(), INDEX);
    fs::remove_file(&chain).unwrap();
    fs::remove_file(&key).unwrap();
    crate::tls::openssl(folder.path(), "a", "localhost");
    server.signal_and_wait(Signal::HUP);
    wait_until("the new certificate", || curl() == INDEX);
    assert!(server.stop().0.success());
}

#[test]
fn root_gives_its_rights_up_as_well() {
    if !is_possible() || !rustix::process::geteuid().is_root() {
        return;
    }
    let site = site(0);
    fs::set_permissions(site.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let server = serve(site.path(), &["--sandbox", "kill", "--user", "nobody", "--workers", "2"]);
    assert_eq!(server.listening()["sandbox"]["user"], "nobody");
    assert_serves(&server);
    assert!(
        server.stderr_text().contains("user nobody without capabilities"),
        "{}",
        server.stderr_text()
    );
    assert!(server.stop().0.success());
}
