//! Error messages for wrong command lines, and the effect of options.

use super::{BINARY, INDEX, serve, site};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::{Command, Stdio},
};

/// The exit status when a server cannot start, and when the command line is invalid.
const CANNOT: i32 = 1;
const USAGE: i32 = 2;

/// Runs a server that must refuse to start with this exit status; returns its error output.
fn refusal(directory: &Path, arguments: &[&str], status: i32) -> String {
    let output = Command::new("timeout")
        .args(["20", BINARY, "serve"])
        .arg(directory)
        .args(["--listen", "127.0.0.1:0"])
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {stderr}");
    stderr
}

/// Regression: the launcher of upgrades, which had just been forked, sometimes added that it could not run because its
/// parent had ended.
#[test]
fn a_failure_at_the_start_is_the_last_message() {
    for _ in 0..30 {
        let text = refusal(Path::new("/nonexistent/site"), &[], CANNOT);
        let last = text.lines().last().unwrap_or_default();
        assert!(last.starts_with("pollux: cannot serve /nonexistent/site"), "{text}");
    }
}

#[test]
fn refusals_name_what_is_at_fault() {
    let site = site(0);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (status, arguments, words) in [
        (CANNOT, &["--listen", &address][..], &["cannot listen", &address, "in use"][..]),
        (CANNOT, &["--listen", &address, "--workers", "2"], &["cannot listen", &address, "in use"]),
        (USAGE, &["--mechanism", "kqueue"], &["kqueue", "epoll-et"]),
        (USAGE, &["--mechanism", "epoll:x=1"], &["epoll", "no options"]),
        (CANNOT, &["--pin", "100000"], &["CPU 100000"]),
        (USAGE, &["--accept-limit", "0"], &["--accept-limit", "inf"]),
        (USAGE, &["--cache-size", "lots"], &["--cache-size", "64M"]),
        (USAGE, &["--keep-alive", "soon"], &["--keep-alive", "10s"]),
        (USAGE, &["--header", "Date: now"], &["Date"]),
        (CANNOT, &["--access-log", "/nonexistent/log"], &["/nonexistent/log"]),
        (USAGE, &["--json", "--access-log", "-"], &["--json", "--access-log"]),
        (USAGE, &["--listen", "nowhere"], &["--listen", "ADDRESS:PORT"]),
        (USAGE, &["--architecture", "forking", "--pool", "3"], &["--pool", "forking"]),
        (USAGE, &["--architecture", "preforked", "--mechanism", "poll"], &["--mechanism"]),
        (USAGE, &["--guestbook", "book"], &["slash", "DIR"]),
        (USAGE, &["--guestbook", "/a b"], &["/a b"]),
        (USAGE, &["--guestbook", "--guestbook-shown", "0"], &["--guestbook-shown", "10000"]),
        (
            USAGE,
            &["--guestbook", "--store", "file:/x/y", "--store-connections", "one"],
            &["--store-connections"],
        ),
        (
            CANNOT,
            &["--guestbook", "--store", "file:/x/y", "--guestbook-template", "/nonexistent/t"],
            &["/nonexistent/t"],
        ),
    ] {
        let stderr = refusal(site.path(), arguments, status);
        for word in words {
            assert!(stderr.contains(word), "{arguments:?}: no {word:?} in {stderr:?}");
        }
    }
    let stderr = refusal(&site.path().join("none"), &[], CANNOT);
    assert!(stderr.contains("none"), "{stderr}");
    let stderr = refusal(&site.path().join("index.html"), &[], CANNOT);
    assert!(stderr.contains("index.html"), "{stderr}");
}

/// Root may read every directory, unless it has given up that capability.
#[test]
fn a_directory_without_permission_is_reported_as_such() {
    let site = site(0);
    let closed = site.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o0)).unwrap();
    let mut command = Command::new("timeout");
    command.arg("20");
    if rustix::process::geteuid().is_root() {
        let rights = "-dac_override,-dac_read_search";
        command.args(["setpriv", "--bounding-set", rights, "--inh-caps", rights, "--"]);
    }
    command.arg(BINARY).arg("serve").arg(&closed).args(["--listen", "127.0.0.1:0"]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for word in ["closed", "permission denied", "EACCES", "chmod"] {
        assert!(stderr.contains(word), "no {word:?} in {stderr}");
    }
    assert!(!stderr.contains("openat2"), "{stderr}");
}

#[test]
fn the_holder_of_a_port_is_named() {
    let site = site(0);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let stderr = refusal(site.path(), &["--listen", &address.to_string()], CANNOT);
    let me = format!("(process {})", std::process::id());
    let held = format!("port {} is held by ", address.port());
    assert!(stderr.contains(&held) && stderr.contains(&me), "{stderr}");
}

#[test]
fn a_privileged_port_and_a_strange_address_have_a_way_out() {
    let site = site(0);
    // 192.0.2.0/24 is for documentation (RFC 5737): no machine has such an address.
    let stderr = refusal(site.path(), &["--listen", "192.0.2.1:8080"], CANNOT);
    assert!(stderr.contains("no interface here has the address 192.0.2.1"), "{stderr}");
    // The server runs as another user, without the right to bind such a port, in a network namespace
    // where the port is free.
    let output = Command::new("unshare")
        .args(["--net", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["--inh-caps=-all", BINARY, "serve", "/", "--listen", "127.0.0.1:80"])
        .output();
    let Ok(output) = output else { return eprintln!("skipped: no unshare here") };
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("unshare:") || stderr.contains("setpriv:") {
        return eprintln!("skipped: {stderr}");
    }
    assert!(stderr.contains("ports below 1024 are for root"), "{stderr}");
    assert!(stderr.contains("cap_net_bind_service"), "{stderr}");
    let advice = stderr.lines().filter(|line| line.starts_with("  "));
    assert!(advice.clone().count() > 1 && advice.clone().all(|line| line.len() <= 80), "{stderr}");
}

#[test]
fn two_servers_of_several_workers_do_not_share_a_port_by_accident() {
    let site = site(0);
    let first = serve(site.path(), &["--workers", "2"]);
    let stderr = refusal(site.path(), &["--workers", "2", "--listen", first.address()], CANNOT);
    assert!(stderr.contains("in use"), "{stderr}");
}

#[test]
fn it_listens_at_every_configured_address() {
    let site = site(0);
    let path = site.path().join("socket");
    let unix = format!("unix:{}", path.display());
    let has_ipv6 = TcpListener::bind("[::1]:0").is_ok();
    let mut arguments = vec!["--listen", &unix, "--workers", "2"];
    if has_ipv6 {
        arguments.extend(["--listen", "[::1]:0"]);
    } else {
        eprintln!("skipped: no IPv6 here");
    }
    for _ in 0..2 {
        // The second server finds the socket file that the killed one left behind.
        let server = serve(site.path(), &arguments);
        let addresses = server.listening()["addresses"].as_array().unwrap();
        assert_eq!(addresses.len(), if has_ipv6 { 3 } else { 2 }, "{addresses:?}");
        for address in addresses.iter().map(|address| address.as_str().unwrap()) {
            if address.starts_with("unix:") {
                let mut stream = UnixStream::connect(&path).unwrap();
                stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
                let mut reply = String::new();
                stream.read_to_string(&mut reply).unwrap();
                assert!(reply.ends_with(INDEX), "{reply}");
            } else {
                assert_eq!(pollux_testkit::http::Client::connect(address).get("/").text(), INDEX);
            }
        }
    }
    let server = serve(site.path(), &arguments);
    assert!(server.stop().0.success());
    assert!(!path.exists(), "the socket's file is removed at the end");
}

#[test]
fn fields_can_be_added_and_the_server_field_left_out() {
    let site = site(0);
    let server = serve(site.path(), &["--no-server-header", "--header", "X-Frame-Options: DENY"]);
    for path in ["/", "/none"] {
        let reply = server.client().get(path);
        assert_eq!(reply.field("server"), None);
        assert_eq!(reply.field("x-frame-options"), Some("DENY"));
    }
    let server = serve(site.path(), &["--max-requests", "2"]);
    assert_eq!(server.client().get("/").field("server"), Some("pollux"));
    let mut client = server.client();
    assert_eq!(client.get("/").field("connection"), None);
    assert_eq!(client.get("/").field("connection"), Some("close"));
    assert!(client.is_closed());
}

#[test]
fn every_worker_has_a_thread_on_its_cpu() {
    let site = site(0);
    let server = serve(site.path(), &["--workers", "3", "--pin", "0"]);
    let workers = server.listening()["workers"].as_array().unwrap().clone();
    assert_eq!(workers.len(), 3);
    for worker in workers {
        assert_eq!(worker["cpu"], 0);
        let status = std::fs::read_to_string(format!(
            "/proc/{}/task/{}/status",
            server.pid(),
            worker["tid"]
        ))
        .unwrap();
        assert!(status.contains("Cpus_allowed_list:\t0\n"), "{status}");
    }
}

/// Starts a server of two sites, one of which serves every name without its own site, and ends the
/// server when it has listed both.
#[test]
fn the_start_names_each_of_several_sites_once() {
    let (first, second) = (site(0), site(0));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pollux.toml");
    let text = format!(
        "listen = [\"127.0.0.1:0\"]\nredirect-http = \"127.0.0.1:0\"\ntls = \"self-signed\"\n\
         [[site]]\nnames = [\"one.test\"]\nroot = {:?}\norigin = [\"/api=http://127.0.0.1:9\"]\n\
         [[site]]\nnames = [\"two.test\", \"*.two.test\"]\nroot = {:?}\n",
        first.path(),
        second.path()
    );
    fs::write(&path, text).unwrap();
    let mut command = Command::new(BINARY);
    command.arg("serve").arg("--config").arg(&path).stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let last = format!("two.test, *.two.test: {}", second.path().display());
    let mut lines = Vec::new();
    for line in BufReader::new(server.stderr.take().unwrap()).lines() {
        lines.push(line.unwrap());
        if lines.last() == Some(&last) {
            break;
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let count = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
    let default = format!("one.test, and every other name: {}", first.path().display());
    assert_eq!(lines.last(), Some(&last), "{lines:#?}");
    assert_eq!(count("pollux serves 2 sites on https://127.0.0.1:"), 1, "{lines:#?}");
    assert_eq!(count(&default), 1, "{lines:#?}");
    assert_eq!(count("  /api/ is passed on to http://127.0.0.1:9"), 1, "{lines:#?}");
    assert_eq!(count("--mechanism auto chose"), 1, "{lines:#?}");
}
