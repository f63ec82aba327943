//! The admin listener: the information that it serves, and bad clients, which must not affect other
//! clients.

use pollux_server::{
    Server, Settings,
    config::{Architecture, HubConfig, Listen},
};
use pollux_testkit::{wait_for, wait_until};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);

struct Site {
    server: Server,
    directory: tempfile::TempDir,
}

fn site(change: impl FnOnce(&mut Settings)) -> Site {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("index.html"), "a page").unwrap();
    let mut config = Settings::new(directory.path());
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.admin = Some("127.0.0.1:0".parse().unwrap());
    change(&mut config);
    Site { server: Server::start(config).unwrap(), directory }
}

fn tcp(listen: &Listen) -> SocketAddr {
    let Listen::Tcp(address) = listen else { panic!("no TCP address: {listen}") };
    *address
}

impl Site {
    fn admin(&self) -> SocketAddr {
        tcp(self.server.admin_address().unwrap())
    }

    fn site(&self) -> SocketAddr {
        tcp(&self.server.addresses()[0])
    }

    /// Checks that the site answers.
    fn check(&self) {
        let reply = exchange(self.site(), "GET / HTTP/1.0\r\n\r\n");
        assert!(reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("a page"), "{reply}");
    }
}

fn exchange(address: SocketAddr, request: impl AsRef<[u8]>) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(request.as_ref());
    let mut reply = Vec::new();
    // The connection may also end with a reset after the reply.
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8(reply).unwrap()
}

fn get(address: SocketAddr, path: &str) -> String {
    exchange(address, format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
}

#[test]
fn figures_are_served_in_every_format() {
    for architecture in [Architecture::Event, Architecture::Prethreaded] {
        let site = site(|config| {
            config.architecture = architecture;
            config.pool = (architecture == Architecture::Prethreaded).then_some(2);
        });
        for _ in 0..3 {
            site.check();
        }
        // Blocking workers publish their statistics just before they wait again, so the figures may
        // come late.
        let metrics = wait_for("the count of the requests", || {
            let metrics = get(site.admin(), "/metrics");
            metrics.contains("\npollux_http_requests_total 3\n").then_some(metrics)
        });
        assert!(metrics.contains("Content-Type: text/plain; version=0.0.4"), "{metrics}");
        let build = format!("architecture=\"{}\"}} 1\n", architecture.name());
        for line in [
            &build,
            "# TYPE pollux_http_requests_total counter\n",
            "\npollux_connections_accepted_total 3\n",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }
        for line in [
            "# TYPE pollux_http_request_duration_seconds histogram\n",
            "pollux_http_request_duration_seconds_bucket{le=\"+Inf\"} 3\n",
            "pollux_http_request_duration_seconds_count 3\n",
            "pollux_tls_handshakes_total 0\n",
        ] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }
        let accept =
            "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text\r\n\r\n";
        let metrics = exchange(site.admin(), accept);
        assert!(metrics.ends_with("# EOF\n") && metrics.contains("openmetrics-text"), "{metrics}");

        let json = get(site.admin(), "/stats.json");
        let (_, line) = json.split_once("\r\n\r\n").unwrap();
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["requests"], 3);

        let page = get(site.admin(), "/");
        assert!(page.contains("<dt>so far<dd id=requests>3</div>"), "{page}");
        assert!(page.len() < 8 << 10, "a few KB, not {}", page.len());
        assert!(!page.contains("//"), "nothing from elsewhere: {page}");
        site.server.stop(Duration::ZERO).unwrap();
    }
}

#[test]
fn health_is_served_and_events_arrive() {
    let site = site(|_| {});
    assert!(get(site.admin(), "/healthz").ends_with("\r\n\r\nok\n"));
    assert!(get(site.admin(), "/readyz").ends_with("\r\n\r\nready\n"));
    let mut stream = TcpStream::connect(site.admin()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut text = String::new();
    while text.matches("\n\n").count() < 2 {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "it ended: {text}");
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
    let (_, event) = text.split_once("data: ").unwrap();
    let event: serde_json::Value = serde_json::from_str(event.lines().next().unwrap()).unwrap();
    assert_eq!(event["workers"], "1 of 1");
    // An open stream must not keep the server from stopping.
    site.server.stop(Duration::ZERO).unwrap();
}

#[test]
fn readiness_ends_when_a_stop_is_requested() {
    let mut site = site(|_| {});
    // This incomplete request keeps the server running until the grace period is over.
    let mut slow = TcpStream::connect(site.site()).unwrap();
    slow.write_all(b"GET / HT").unwrap();
    until_metrics(&site, &["pollux_connections{state=\"active\"} 1"]);
    site.server.begin_stop(PATIENCE);
    let reply = get(site.admin(), "/readyz");
    assert!(reply.starts_with("HTTP/1.1 503 "), "{reply}");
    drop(slow);
    site.server.wait().unwrap();
}

/// Waits until the metrics have each of these lines.
fn until_metrics(site: &Site, lines: &[&str]) {
    wait_until(&format!("the metrics {lines:?}"), || {
        let text = get(site.admin(), "/metrics");
        lines.iter().all(|line| text.contains(&format!("\n{line}\n")))
    });
}

#[test]
fn connections_are_counted_by_state_and_rejections_by_reason() {
    let site = site(|config| {
        let mut hub = HubConfig::new("/hub");
        (hub.anonymous, hub.publish_anonymous) = (true, true);
        config.hub = Some(Arc::new(hub));
    });
    let state =
        |state: &str, count: u32| format!("pollux_connections{{state=\"{state}\"}} {count}");
    let mut one = TcpStream::connect(site.site()).unwrap();
    let mut other = TcpStream::connect(site.site()).unwrap();
    for stream in [&mut one, &mut other] {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
    }
    until_metrics(&site, &[&state("idle", 2), &state("active", 0), &state("stream", 0)]);
    // A part of a request.
    one.write_all(b"GET / HT").unwrap();
    until_metrics(&site, &[&state("idle", 1), &state("active", 1)]);
    one.write_all(b"TP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until_metrics(&site, &[&state("idle", 2), &state("active", 0)]);
    one.write_all(b"GET /hub?match=a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until_metrics(&site, &[&state("idle", 1), &state("active", 0), &state("stream", 1)]);
    drop(one);
    until_metrics(&site, &[&state("idle", 1), &state("stream", 0)]);
    let _ = exchange(site.site(), "GET\r\n\r\n");
    let page = get(site.admin(), "/");
    assert!(page.contains("malformed request: 1") && page.contains("median time"), "{page}");
    until_metrics(&site, &["pollux_upgrades_total{outcome=\"failed\"} 0"]);
}

#[test]
fn the_page_has_rows_of_the_hub_where_there_is_one() {
    let without = site(|_| {});
    let page = get(without.admin(), "/");
    assert!(!page.contains("<h2>Hub</h2>") && !page.contains("id=hub_"), "{page}");
    let site = site(|config| {
        let mut hub = HubConfig::new("/hub");
        (hub.anonymous, hub.publish_anonymous) = (true, true);
        config.hub = Some(Arc::new(hub));
    });
    let mut stream = TcpStream::connect(site.site()).unwrap();
    stream.write_all(b"GET /hub?match=a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until_metrics(&site, &["pollux_hub_subscribers{kind=\"stream\"} 1"]);
    for _ in 0..2 {
        let update = "POST /hub HTTP/1.0\r\nHost: a\r\nContent-Length: 14\r\n\
                      Content-Type: application/x-www-form-urlencoded\r\n\r\ntopic=a&data=x";
        let reply = exchange(site.site(), update);
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    }
    until_metrics(&site, &["pollux_hub_deliveries_total 2"]);
    let page = get(site.admin(), "/");
    for row in [
        "<h2>Hub</h2><dl><div><dt>subscribers<dd id=hub_subscribers>1</div>",
        "<dd id=hub_updates>2</div>",
        "<dd id=hub_deliveries>2</div>",
        "<dd id=hub_ended_token>0</div>",
        "<dt>connection to the store<dd id=hub_store>–</div>",
    ] {
        assert!(page.contains(row), "{row} in {page}");
    }
    assert!(page.len() < 8 << 10, "a few KB, not {}", page.len());
    // The events, which keep the page up to date, contain the same figures.
    let mut events = TcpStream::connect(site.admin()).unwrap();
    events.set_read_timeout(Some(PATIENCE)).unwrap();
    events.write_all(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut text = String::new();
    while !text.contains("}\n\n") {
        let mut buffer = [0; 4096];
        let count = events.read(&mut buffer).unwrap();
        assert!(count > 0, "it ended: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    assert!(text.contains("\"hub_deliveries\":\"2\""), "{text}");
    site.server.stop(Duration::ZERO).unwrap();
}

/// Regression: workers without connections end during a stop, and `/healthz` then answered 503, which means that the
/// server has to be restarted.
#[test]
fn a_stop_is_no_failure_of_workers() {
    let mut site = site(|config| config.workers = 3);
    let large = std::fs::File::create(site.directory.path().join("large")).unwrap();
    large.set_len(256 << 20).unwrap();
    // A download that its client does not go on reading keeps one worker until the grace is over.
    let mut client = TcpStream::connect(site.site()).unwrap();
    client.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.read_exact(&mut [0; 9]).unwrap();
    site.server.begin_stop(PATIENCE * 3);
    let metrics = wait_for("two workers to end", || {
        let metrics = get(site.admin(), "/metrics");
        metrics.contains("\npollux_workers 1\n").then_some(metrics)
    });
    // The alert PolluxWorkersEnded compares these two.
    assert!(metrics.contains("\npollux_workers_started 1\n"), "{metrics}");
    assert!(get(site.admin(), "/healthz").ends_with("\r\n\r\nok\n"));
    assert!(get(site.admin(), "/readyz").ends_with("\r\n\r\nstopping\n"));
    drop(client);
    site.server.stop(Duration::ZERO).unwrap();
}

#[test]
fn a_unix_socket_is_removed_at_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin");
    let site = site(|config| config.admin = Some(Listen::Unix(path.clone())));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.ends_with("ok\n"), "{reply}");
    site.server.stop(Duration::ZERO).unwrap();
    assert!(!path.exists());
    drop(site.directory);
}

#[test]
fn bad_requests_are_refused() {
    let site = site(|_| {});
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(5000));
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(2000));
    for (request, status) in [
        ("GET /etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        ("GET /../../metrics HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        ("GET //metrics HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        ("GET /metrics%00 HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 405),
        ("DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\n\r\n", 505),
        ("\x16\x03\x01\x02\0\x01\0\x01\u{7f}", 400),
        (&long, 414),
        (&many, 431),
    ] {
        let reply = exchange(site.admin(), request);
        let shown = &request[..request.len().min(60)];
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {reply}");
    }
    // RFC 9110 §9.3.2: no response to HEAD has content. Regression: errors had.
    for (request, status) in [
        ("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        ("HEAD /events HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        ("HEAD /none HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        ("HEAD / HTTP/1.1\r\n\r\n", 400),
    ] {
        let head = exchange(site.admin(), request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {head}");
        assert!(head.ends_with("\r\n\r\n"), "{request:?}: {head}");
        assert_eq!(head.contains("Content-Length"), !request.contains("/events"), "{head}");
    }
    site.check();
    site.server.stop(Duration::ZERO).unwrap();
}

#[test]
fn clients_that_hang_do_not_delay_others() {
    let site = site(|_| {});
    // Half of the clients send nothing; the others request events and never read them.
    let mut hanging: Vec<TcpStream> = Vec::new();
    for index in 0..40 {
        let Ok(mut stream) = TcpStream::connect(site.admin()) else { break };
        if index % 2 == 1 {
            let _ = stream.write_all(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        hanging.push(stream);
    }
    let begun = Instant::now();
    site.check();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    // Silent clients are closed after some seconds, and there is room again.
    wait_until("room for another client", || {
        let reply = get(site.admin(), "/healthz");
        let is_well = reply.starts_with("HTTP/1.1 200 ");
        assert!(is_well || reply.is_empty() || reply.starts_with("HTTP/1.1 503 "), "{reply}");
        is_well
    });
    site.server.stop(Duration::ZERO).unwrap();
}

#[test]
fn processes_have_no_admin_listener() {
    let mut config = Settings::new(".");
    config.admin = Some("127.0.0.1:0".parse().unwrap());
    config.architecture = Architecture::Preforked;
    let error = config.check().unwrap_err().to_string();
    assert!(error.starts_with("--admin:"), "{error}");
}
