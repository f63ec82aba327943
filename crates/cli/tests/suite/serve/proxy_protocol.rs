//! The PROXY protocol, received and sent. The balancer of these tests has the address 127.0.0.1.

use super::{INDEX, serve, site};
use pollux_http::proxy_protocol::{Header, ParseStatus, Version, parse, write};
use pollux_testkit::http::Client;
use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread,
};

const ARCHITECTURES: [&[&str]; 7] = [
    &["--mechanism", "epoll-et"],
    &["--mechanism", "epoll"],
    &["--mechanism", "poll"],
    &["--mechanism", "rtsig"],
    &["--architecture", "preforked"],
    &["--architecture", "threaded"],
    &["--architecture", "iterative"],
];

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";

fn header(version: Version) -> Vec<u8> {
    let mut out = Vec::new();
    let (source, destination) = ("192.0.2.7:1234", "198.51.100.1:80");
    let header = Header::Proxied {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    };
    write(&mut out, version, header);
    out
}

#[test]
fn the_log_has_the_address_that_the_header_says_whole_or_in_pieces() {
    for architecture in ARCHITECTURES {
        let site = site(0);
        let log = site.path().join("log");
        let arguments = [
            architecture,
            &["--proxy-protocol", "127.0.0.0/8", "--access-log", log.to_str().unwrap()],
        ]
        .concat();
        let server = serve(site.path(), &arguments);
        for version in [Version::V1, Version::V2] {
            let mut client = server.client();
            client.send([&header(version), GET].concat());
            assert_eq!(client.reply().text(), INDEX, "{architecture:?}");
        }
        let mut slow = server.client();
        let whole = header(Version::V2);
        slow.send_slowly(std::time::Duration::from_millis(5), whole.chunks(5));
        slow.send(GET);
        assert_eq!(slow.reply().text(), INDEX, "{architecture:?}");
        let mut own = server.client();
        own.send([b"PROXY UNKNOWN\r\n", GET].concat());
        assert_eq!(own.reply().text(), INDEX, "{architecture:?}");
        let (status, _) = server.stop();
        assert!(status.success());
        let log = std::fs::read_to_string(log).unwrap();
        let mut addresses: Vec<&str> = log.lines().filter_map(|l| l.split(' ').next()).collect();
        addresses.sort_unstable();
        let expected = ["127.0.0.1", "192.0.2.7", "192.0.2.7", "192.0.2.7"];
        assert_eq!(addresses, expected, "{architecture:?}");
    }
}

#[test]
fn without_a_header_or_with_a_late_one_the_connection_is_closed_and_counted() {
    for architecture in ARCHITECTURES {
        let site = site(0);
        let arguments =
            [architecture, &["--proxy-protocol", "127.0.0.1", "--header-timeout", "200ms"]]
                .concat();
        let mut server = serve(site.path(), &arguments);
        let mut direct = server.client();
        direct.send(GET);
        assert!(direct.read_to_end_or_reset().is_empty(), "{architecture:?}");
        server.wait_until("it to be counted", |s| s["clients"]["proxy_malformed"] == 1);
        let mut silent = server.client();
        silent.send(b"PROXY TCP4 ");
        assert!(silent.read_to_end_or_reset().is_empty(), "{architecture:?}");
        server.wait_until("it to be counted", |s| s["connections"]["timed_out"] == 1);
        server.wait_until("all to be gone", |s| s["connections"]["open"] == 0);
    }
}

#[test]
fn from_other_sources_no_header_is_read_and_lists_see_the_client() {
    let site = site(0);
    let server = serve(site.path(), &["--proxy-protocol", "192.0.2.0/24"]);
    let mut client = server.client();
    client.send([&header(Version::V1), GET].concat());
    assert_eq!(client.reply().status, 400, "a header of no trusted source is no request");
    assert_eq!(server.client().get("/").text(), INDEX);
    for architecture in [&["--workers", "1"][..], &["--architecture", "threaded"]] {
        let arguments =
            [architecture, &["--proxy-protocol", "127.0.0.1", "--deny", "192.0.2.7"]].concat();
        let mut server = serve(site.path(), &arguments);
        let mut denied = server.client();
        denied.send([&header(Version::V1), GET].concat());
        assert!(denied.read_to_end_or_reset().is_empty());
        server.wait_until("it to be counted", |s| s["clients"]["denied"] == 1);
    }
}

#[test]
fn origins_get_a_header_for_each_connection() {
    for version in ["1", "2"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let site = site(0);
        let server = serve(
            site.path(),
            &["--origin", &format!("/api={origin}"), "--origin-proxy-protocol", version],
        );
        let client = Client::connect(server.address());
        let address = client.socket().local_addr().unwrap();
        let far = thread::spawn(move || {
            let mut client = client;
            (0..2).map(|_| client.get("/api").text()).collect::<Vec<_>>()
        });
        for _ in 0..2 {
            let (mut socket, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            let mut buffer = [0; 1024];
            let (header, len) = loop {
                let count = socket.read(&mut buffer).unwrap();
                assert!(count > 0);
                received.extend_from_slice(&buffer[..count]);
                if received.ends_with(b"\r\n\r\n") && received.len() > 40 {
                    match parse(&received).unwrap() {
                        ParseStatus::Complete(header, len) => break (header, len),
                        ParseStatus::Partial => {}
                    }
                }
            };
            let Header::Proxied { source, .. } = header else { panic!("{header:?}") };
            assert_eq!(source, address);
            assert!(received[len..].starts_with(b"GET /api HTTP/1.1\r\n"));
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        }
        assert_eq!(far.join().unwrap(), ["ok", "ok"]);
    }
}
