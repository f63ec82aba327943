//! Logs: their formats, their targets, slow requests.

use super::{BINARY, assert_serves, sandbox, serve, site};
use pollux_testkit::{http::PATIENCE, origin::Origin, serve::Serve};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::Path,
    time::{Duration, Instant},
};

/// Workers with event loops: only they have origins.
const EVENT: &[&str] = &["--workers", "2"];
/// The architectures: with workers, with threads, and with a process that writes the log.
const ALL: [&[&str]; 3] =
    [EVENT, &["--architecture", "prethreaded"], &["--architecture", "preforked"]];

fn objects(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_line_of_json_has_what_the_client_has_sent_and_stays_one_line() {
    for architecture in ALL {
        let site = site(0);
        let log = site.path().join("log");
        let flags = ["--access-log", log.to_str().unwrap(), "--log-format", "json"];
        let server = serve(site.path(), &[architecture, &flags].concat());
        let agents = ["User-Agent: \"},{\\\u{9b}", "User-Agent: \x1b[31m"];
        for agent in agents {
            server.client().request("GET", "/?%0a", &[agent, "Referer: http://a/\tb"]);
        }
        server.client().request("GET", "/none", &[]);
        let mut client = server.client();
        client.send("nonsense\r\n\r\n");
        client.read_to_end_or_reset();
        assert!(server.stop().0.success());
        let lines = objects(&log);
        let mut statuses: Vec<_> = lines.iter().map(|line| line["status"].as_u64()).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [Some(200), Some(400), Some(400), Some(404)], "{lines:?}");
        let answered = |status| lines.iter().find(|line| line["status"] == status).unwrap();
        assert_eq!(answered(200)["user_agent"], "\"},{\\\u{9b}");
        assert_eq!(answered(200)["target"], "/?%0a");
        assert_eq!(answered(404)["target"], "/none");
        assert_eq!(answered(404)["user_agent"], Value::Null);
        assert_eq!(answered(404)["client"], "127.0.0.1");
        assert!(answered(404)["duration_ms"].is_u64(), "{lines:?}");
        assert_eq!(answered(400)["method"], Value::Null);
        let text = fs::read_to_string(&log).unwrap();
        assert!(!text.contains('\x1b') && !text.contains('\u{9b}'), "{text}");
    }
}

/// Regression: the line showed the target of the rewrite.
#[test]
fn a_rewritten_request_is_logged_as_the_client_sent_it() {
    for architecture in ALL {
        let site = site(0);
        let log = site.path().join("log");
        let flags = ["--access-log", log.to_str().unwrap(), "--rewrite", "/old/* /*"];
        let server = serve(site.path(), &[architecture, &flags].concat());
        let mut client = server.client();
        for path in ["/old/?a=1", "/", "/old/none"] {
            client.get(path);
        }
        drop(client);
        assert!(server.stop().0.success());
        let text = fs::read_to_string(&log).unwrap();
        let requests: Vec<_> = text.lines().filter_map(|line| line.split('"').nth(1)).collect();
        let expected = ["GET /old/?a=1 HTTP/1.1", "GET / HTTP/1.1", "GET /old/none HTTP/1.1"];
        assert_eq!(requests, expected, "{architecture:?}");
    }
}

#[test]
fn the_combined_format_and_chosen_fields_come_from_a_file_too() {
    let site = site(0);
    let [combined, json] = ["combined", "json"].map(|name| site.path().join(name));
    let file = site.path().join("p.toml");
    let text = format!(
        "access-log = \"json\"\nlog-format = \"json\"\nlog-fields = [\"status\", \"header:x-a\"]\n\
         [[site]]\nroot = {:?}\n",
        site.path()
    );
    fs::write(&file, text).unwrap();
    let flags = ["--access-log", combined.to_str().unwrap(), "--log-format", "combined"];
    for arguments in [&flags[..], &["--config", file.to_str().unwrap()]] {
        let server = Serve::start(BINARY, site.path(), arguments);
        let fields = ["Referer: http://b/", "User-Agent: a\"b", "X-A: \"c"];
        assert_eq!(server.client().request("GET", "/", &fields).status, 200);
        assert!(server.stop().0.success());
    }
    let text = fs::read_to_string(combined).unwrap();
    assert!(text.ends_with("\"GET / HTTP/1.1\" 200 18 \"http://b/\" \"a\\\"b\"\n"), "{text}");
    let text = fs::read_to_string(json).unwrap();
    assert_eq!(text, "{\"status\":200,\"header:x-a\":\"\\\"c\"}\n");
}

#[test]
fn a_request_that_waits_long_is_in_the_log_of_slow_ones() {
    let origin = Origin::start(|request| request.after(Duration::from_millis(400)).ok("ok"));
    let site = site(0);
    let slow = site.path().join("slow");
    let route = format!("/slow={}", origin.url());
    let flags = ["--origin", &route, "--slow-log", slow.to_str().unwrap()];
    let flags = [&flags[..], &["--slow-threshold", "200ms", "--log-format", "json"]].concat();
    let server = serve(site.path(), &flags);
    let mut client = server.client();
    assert_eq!(client.get("/").status, 200);
    let reply = client.request("GET", "/slow", &["User-Agent: patient"]);
    assert_eq!((reply.status, &*reply.text()), (200, "ok"));
    assert!(server.stop().0.success());
    let lines = objects(&slow);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(
        (&lines[0]["target"], &lines[0]["user_agent"]),
        (&"/slow".into(), &"patient".into())
    );
    let duration = lines[0]["duration_ms"].as_u64().unwrap();
    assert!((300..20_000).contains(&duration), "{lines:?}");
}

#[test]
fn lines_go_to_the_sockets_of_the_system() {
    for architecture in ALL {
        for protocol in ["syslog", "journald"] {
            let site = site(0);
            let path = site.path().join("socket");
            let receiver = UnixDatagram::bind(&path).unwrap();
            receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let target = format!("{protocol}:{}", path.display());
            let server = serve(site.path(), &[architecture, &["--access-log", &target]].concat());
            assert_serves(&server);
            let mut buffer = [0; 4096];
            let length = receiver.recv(&mut buffer).unwrap();
            let message = String::from_utf8_lossy(&buffer[..length]);
            let (start, end) = match protocol {
                "syslog" => ("<30>", "\"GET / HTTP/1.1\" 200 18"),
                _ => ("PRIORITY=6\n", "\"GET / HTTP/1.1\" 200 18\n"),
            };
            assert!(message.starts_with(start) && message.ends_with(end), "{message}");
            assert!(server.stop().0.success());
        }
    }
}

/// A receiver that does not read, and one that has ended: clients are served, and lost lines are
/// counted.
#[test]
fn a_log_that_takes_no_lines_costs_no_client_anything() {
    let site = site(0);
    let path = site.path().join("socket");
    let receiver = UnixDatagram::bind(&path).unwrap();
    let target = format!("syslog:{}", path.display());
    let mut server = serve(site.path(), &["--access-log", &target]);
    assert_serves(&server);
    let began_at = Instant::now();
    let mut client = server.client();
    for _ in 0..200 {
        client.send("GET /none HTTP/1.1\r\nHost: a\r\n\r\n".repeat(20));
        for _ in 0..20 {
            assert_eq!(client.reply().status, 404);
        }
    }
    assert!(began_at.elapsed() < Duration::from_secs(60));
    drop(receiver);
    fs::remove_file(&path).unwrap();
    server.wait_until("lines to be counted", |statistics| {
        statistics["log_lines_dropped"].as_u64() > Some(0)
    });
    assert!(server.stop().0.success());
}

#[test]
fn a_request_has_one_identifier_at_the_client_the_origin_and_in_the_log() {
    for architecture in ALL {
        let origin = Origin::start(|request| {
            let id = request.field("x-request-id").unwrap_or_default().to_owned();
            let head = format!("HTTP/1.1 200 OK\r\nX-Request-Id: own\r\nX-Seen: {id}\r\n");
            request.say(format!("{head}Content-Length: 2\r\n\r\nok"))
        });
        let site = site(100_000);
        let log = site.path().join("log");
        let route = format!("/api={}", origin.url());
        let has_origin = architecture == EVENT;
        let origin_flags = if has_origin { &["--origin", &route][..] } else { &[] };
        let flags = ["--access-log", log.to_str().unwrap(), "--log-format", "json"];
        let ids = ["--log-fields", "request_id,target,traceparent", "--request-id=accept"];
        let server = serve(site.path(), &[architecture, origin_flags, &flags, &ids].concat());
        let mut client = server.client();
        let fields = ["X-Request-Id: of-client", "traceparent: 00-1-2-01"];
        let mut expected = Vec::new();
        for (path, fields) in [
            ("/", &fields[..]),
            ("/large.bin", &fields[..]),
            ("/none", &fields[..]),
            ("/", &["X-Request-Id: not well"][..]),
            ("/api", &fields[..]),
            ("/api", &[][..]),
        ] {
            let reply = client.request("GET", path, fields);
            let ids: Vec<_> =
                reply.fields.iter().filter(|(name, _)| name == "x-request-id").collect();
            assert_eq!(ids.len(), 1, "{path}: {:?}", reply.fields);
            let id = ids[0].1.clone();
            assert_eq!(id == "of-client", fields.len() == 2, "{path}");
            if path == "/api" && has_origin {
                assert_eq!(reply.field("x-seen"), Some(&*id));
                assert_eq!(origin.last_head().contains("00-1-2-01"), fields.len() == 2);
            }
            expected.push((id, path));
        }
        assert!(server.stop().0.success());
        let lines = objects(&log);
        let logged: Vec<_> = lines
            .iter()
            .map(|line| (line["request_id"].as_str().unwrap(), line["target"].as_str().unwrap()))
            .collect();
        let expected: Vec<_> = expected.iter().map(|(id, path)| (&**id, *path)).collect();
        assert_eq!(logged, expected);
        assert_eq!(lines[0]["traceparent"], "00-1-2-01");
    }
}

/// In the sandbox, the slow log can be opened again, and a restarted receiver gets the next lines.
#[test]
fn logs_work_in_the_sandbox() {
    if !sandbox::is_possible() {
        return;
    }
    let origin = Origin::start(|request| request.after(Duration::from_millis(100)).ok("ok"));
    let route = format!("/slow={}", origin.url());
    for architecture in ALL {
        let has_origin = architecture == EVENT;
        let origin_flags = if has_origin { &["--origin", &route][..] } else { &[] };
        for protocol in ["syslog", "journald"] {
            let (site, folder) = (site(0), tempfile::tempdir().unwrap());
            let [path, slow, moved] =
                ["socket", "slow", "slow.1"].map(|name| folder.path().join(name));
            let bind = || {
                let receiver = UnixDatagram::bind(&path).unwrap();
                receiver.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                receiver
            };
            let mut receiver = bind();
            let target = format!("{protocol}:{}", path.display());
            let logs = ["--access-log", &target, "--slow-log", slow.to_str().unwrap()];
            let flags = ["--sandbox", "kill", "--slow-threshold", "50ms", "--request-id"];
            let server = serve(site.path(), &[architecture, origin_flags, &logs, &flags].concat());
            for restart in [false, true] {
                if restart {
                    drop(receiver);
                    fs::remove_file(&path).unwrap();
                    receiver = bind();
                    fs::rename(&slow, &moved).unwrap();
                    server.signal_and_wait(Signal::HUP);
                }
                let began_at = Instant::now();
                loop {
                    assert_serves(&server);
                    if has_origin {
                        assert_eq!(server.client().get("/slow").text(), "ok");
                    }
                    // A line is written a moment after its response was sent.
                    let text = fs::read_to_string(&slow).unwrap_or_default();
                    let is_written = slow.exists() && text.contains("GET /slow ") == has_origin;
                    if receiver.recv(&mut [0; 4096]).is_ok() && is_written {
                        break;
                    }
                    assert!(
                        began_at.elapsed() < PATIENCE,
                        "{architecture:?} {}",
                        server.stderr_text()
                    );
                }
            }
            let (status, _) = server.stop();
            assert!(status.success(), "{architecture:?}: {status}");
            for path in [&moved, &slow] {
                let text = fs::read_to_string(path).unwrap();
                assert_eq!(text.contains("GET /slow "), has_origin, "{architecture:?}: {text}");
            }
        }
    }
}
