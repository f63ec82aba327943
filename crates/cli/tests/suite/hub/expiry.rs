//! Many streams whose tokens expire at the same time.

use super::{BINARY, metric};
use pollux_testkit::{growth_within, http::PATIENCE, serve::Serve, token::sign, with_descriptors};
use serde_json::json;
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Three calls of the hub end them.
const STREAMS: u64 = 700;
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const ENDED: &str = "pollux_hub_subscribers_disconnected_total{reason=\"token_expired\"} ";

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// A stream whose head has been read.
fn subscribe(address: &str, token: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET /.well-known/mercure?match=a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    .unwrap();
    let mut head = [0; 4096];
    let length = stream.read(&mut head).unwrap();
    let head = String::from_utf8_lossy(&head[..length]);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    stream
}

#[test]
fn streams_whose_tokens_expire_at_once_all_end_while_others_are_served() {
    if let Err(reason) = with_descriptors(2 * STREAMS) {
        return println!("skipped: {reason}");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("index.html"), "a page").unwrap();
    let key = directory.path().join("key");
    fs::write(&key, SECRET).unwrap();
    let key = key.to_str().unwrap();
    let flags = ["--hub", "--hub-jwt-key", key, "--admin", "127.0.0.1:0", "--workers", "1"];
    let server = Serve::start(BINARY, directory.path(), &flags);
    let admin = server.listening()["admin"].as_str().expect("an address").to_owned();

    let expires_at = since_1970().as_secs() + 12;
    let claims = json!({"mercure": {"subscribe": ["*"]}, "exp": expires_at});
    let token = sign(&json!({"typ": "JWT"}), &claims, SECRET);
    let streams: Vec<_> = (0..STREAMS).map(|_| subscribe(server.address(), &token)).collect();
    let claims = json!({"mercure": {"subscribe": ["*"]}, "exp": expires_at + 600});
    let token = sign(&json!({"typ": "JWT"}), &claims, SECRET);
    let _stayer = subscribe(server.address(), &token);

    let mut client = server.client();
    let mut longest = Duration::ZERO;
    let mut served_meanwhile = 0;
    loop {
        let sent_at = Instant::now();
        assert_eq!(client.get("/").text(), "a page");
        longest = longest.max(sent_at.elapsed());
        match metric(&admin, ENDED) {
            0 => assert!(since_1970().as_secs() < expires_at + 5, "no stream ends"),
            STREAMS => break,
            _ => served_meanwhile += 1,
        }
    }
    // Before the tokens expire; machines that test are busy.
    let late = since_1970().saturating_sub(Duration::from_secs(expires_at));
    assert!(late < Duration::from_millis(700), "{late:?} too late");
    assert!(longest < Duration::from_secs(3), "a client had to wait: {longest:?}");
    println!("{served_meanwhile} requests between the first and the last end");
    for mut stream in streams {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with("0\r\n\r\n"), "{rest:?}");
    }
    assert_eq!(metric(&admin, "pollux_hub_subscribers{kind=\"stream\"} "), 1, "of another token");
    // The worker waits again.
    let waits = growth_within(Duration::from_secs(2), || metric(&admin, "pollux_waits_total "));
    assert!(waits < 100, "{waits} waits in two seconds");
}
