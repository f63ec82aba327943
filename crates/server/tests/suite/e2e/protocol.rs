//! Methods, versions, conditions, ranges.

use super::Fixture;
use pollux_server::stats::Counter;
use socket2::{Domain, Socket, Type};
use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

fn fixture() -> Fixture {
    Fixture::new(&[("index.html", b"<p>hi</p>"), ("digits", b"0123456789")], |_| {})
}

#[test]
fn the_methods_that_there_are() {
    let fixture = fixture();
    let mut client = fixture.client();
    let get = client.get("/");
    let head = client.request("HEAD", "/", &[]);
    assert_eq!((get.status, head.status), (200, 200));
    let without_date = |fields: &[(String, String)]| -> Vec<(String, String)> {
        fields.iter().filter(|(name, _)| name != "date").cloned().collect()
    };
    assert_eq!(without_date(&get.fields), without_date(&head.fields));
    let missing = client.request("HEAD", "/none", &[]);
    assert_eq!(missing.status, 404);
    assert_ne!(missing.field("content-length"), Some("0"));
    for target in ["*", "/", "/none"] {
        let options = client.request("OPTIONS", target, &[]);
        assert_eq!(options.status, 204, "{target}");
        assert_eq!(options.field("allow"), Some("GET, HEAD, OPTIONS"), "{target}");
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE"] {
        let reply = client.request(method, "/", &[]);
        assert_eq!(reply.status, 405, "{method}");
        assert_eq!(reply.field("allow"), Some("GET, HEAD, OPTIONS"), "{method}");
    }
    assert_eq!(client.request("BREW", "/", &[]).status, 501);
    // The connection is still usable after all these requests.
    assert_eq!(client.get("/digits").text(), "0123456789");
}

#[test]
fn connections_live_as_long_as_their_version_says() {
    let fixture = fixture();
    for (request, connection, is_kept) in [
        ("GET / HTTP/1.1\r\nHost: test\r\n\r\n", None, true),
        ("GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", Some("close"), false),
        ("GET / HTTP/1.0\r\n\r\n", Some("close"), false),
        ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", Some("keep-alive"), true),
        ("GET http://test/ HTTP/1.1\r\nHost: other\r\n\r\n", None, true),
    ] {
        let mut client = fixture.client();
        client.send(request);
        let reply = client.reply();
        assert_eq!((reply.status, reply.field("connection")), (200, connection), "{request}");
        if is_kept {
            assert_eq!(client.get("/digits").status, 200, "{request}");
        } else {
            assert!(client.is_closed(), "{request}");
        }
    }
}

#[test]
fn what_the_client_has_is_not_sent_again() {
    let fixture = fixture();
    let mut client = fixture.client();
    let first = client.get("/digits");
    let etag = first.field("etag").unwrap().to_owned();
    let date = first.field("last-modified").unwrap().to_owned();
    for (field, status) in [
        (format!("If-None-Match: {etag}"), 304),
        ("If-None-Match: *".into(), 304),
        ("If-None-Match: \"other\"".into(), 200),
        (format!("If-Modified-Since: {date}"), 304),
        ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT".into(), 200),
        (format!("If-Match: {etag}"), 200),
        ("If-Match: \"other\"".into(), 412),
        ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT".into(), 412),
    ] {
        let reply = client.request("GET", "/digits", &[&field]);
        assert_eq!(reply.status, status, "{field}");
        if status == 304 {
            assert_eq!(reply.field("etag"), Some(&*etag), "{field}");
            assert!(reply.field("date").is_some() && reply.field("content-length").is_none());
        }
    }
    assert_eq!(client.request("HEAD", "/digits", &[&format!("If-None-Match: {etag}")]).status, 304);
}

#[test]
fn ranges_of_a_file() {
    let large: Vec<u8> = (0..400_000u32).map(|i| (i / 3) as u8).collect();
    let fixture = Fixture::new(&[("digits", b"0123456789"), ("large", &large)], |_| {});
    let mut client = fixture.client();
    for (range, status, content_range, body) in [
        ("bytes=2-4", 206, Some("bytes 2-4/10"), "234"),
        ("bytes=7-", 206, Some("bytes 7-9/10"), "789"),
        ("bytes=-2", 206, Some("bytes 8-9/10"), "89"),
        ("bytes=0-99", 206, Some("bytes 0-9/10"), "0123456789"),
        ("lines=1-2", 200, None, "0123456789"),
        ("bytes=4-2", 200, None, "0123456789"),
    ] {
        let reply = client.request("GET", "/digits", &[&format!("Range: {range}")]);
        assert_eq!((reply.status, reply.text().as_str()), (status, body), "{range}");
        assert_eq!(reply.field("content-range"), content_range, "{range}");
    }
    let reply = client.request("GET", "/digits", &["Range: bytes=10-"]);
    assert_eq!((reply.status, reply.field("content-range")), (416, Some("bytes */10")));
    assert_eq!(client.request("HEAD", "/digits", &["Range: bytes=2-4"]).status, 200);
    let reply = client.request("GET", "/large", &["Range: bytes=100000-299999"]);
    assert!(reply.status == 206 && reply.body == large[100_000..300_000]);
    // A range if the client's copy is current, otherwise the whole content.
    let etag = client.get("/digits").field("etag").unwrap().to_owned();
    for (validator, status) in [(&*etag, 206), ("\"other\"", 200)] {
        let fields = ["Range: bytes=0-1", &format!("If-Range: {validator}")];
        assert_eq!(client.request("GET", "/digits", &fields).status, status, "{validator}");
    }
}

#[test]
fn several_ranges_are_parts_of_one_body() {
    let large: Vec<u8> = (0..400_000u32).map(|i| (i / 3) as u8).collect();
    let fixture = Fixture::new(&[("digits.txt", b"0123456789"), ("large", &large)], |_| {});
    let mut client = fixture.client();
    let reply = client.request("GET", "/digits.txt", &["Range: bytes=0-1,4-5,-1"]);
    assert_eq!(reply.status, 206);
    let content_type = reply.field("content-type").unwrap().to_owned();
    let boundary = content_type.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let part = |range: &str, text: &str| {
        format!(
            "--{boundary}\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Range: bytes {range}/10\r\n\r\n{text}\r\n"
        )
    };
    let parts = part("0-1", "01") + &part("4-5", "45") + &part("9-9", "9");
    assert_eq!(reply.text(), format!("{parts}--{boundary}--\r\n"));
    // The same for a file that is not held in memory; the next response on the connection is correct.
    let reply = client.request("GET", "/large", &["Range: bytes=5-100004,200000-299999"]);
    let find = |part: &[u8]| reply.body.windows(part.len()).any(|window| window == part);
    assert!(find(&large[5..100_005]) && find(&large[200_000..300_000]));
    assert_eq!(client.get("/digits.txt").text(), "0123456789");
}

/// Regression: the connection of a slow reader was reset. Its socket was not reported writable within
/// the timeout, because that requires a third of the kernel's buffer to be free.
#[test]
fn a_slow_reader_with_a_small_buffer_is_served_to_the_end() {
    const LEN: usize = 24 << 20;
    let large: Vec<u8> = (0..LEN as u32).map(|i| (i / 7) as u8).collect();
    let fixture = Fixture::new(&[("large", &large)], |config| {
        config.timeouts.send = Duration::from_secs(2);
    });
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.connect(&fixture.address().into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    // 160 kB/s: twenty times the rate that the timeout requires, but less than a third of the buffer
    // within the timeout.
    let started_at = Instant::now();
    let mut received = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    while started_at.elapsed() < Duration::from_secs(6) {
        stream.read_exact(&mut buffer).expect("a slow reader is not reset");
        received.extend_from_slice(&buffer);
        // The pace of the slow reader.
        thread::sleep(Duration::from_millis(100));
    }
    stream.read_to_end(&mut received).expect("all of it comes");
    assert!(received.ends_with(&large), "{} bytes", received.len());
    assert_eq!(fixture.stop().count(Counter::TimedOut), 0);
}
