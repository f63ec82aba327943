//! Responses after which no further request of the connection is answered.

use super::*;

/// Creates a connection to a listener that redirects every request to HTTPS.
fn https_redirect() -> Bench<Hosts> {
    Bench::new(files(), |config, rules| {
        let mut config = config.clone();
        config.site.directory = None;
        config.https_redirect = Some(443);
        Hosts::open(&config, rules, Contents::new(config.site.cache_bytes, 1)).unwrap()
    })
}

/// Regression: after a CONNECT that the listener of `--redirect-http`, a password or a limit for clients refused, the
/// next bytes were read as requests.
#[test]
fn what_follows_a_connect_is_no_request() {
    let mut bench = https_redirect();
    bench.receive("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(bench.work_fast(), Need::Linger);
    let text = bench.text();
    assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{text}");
    assert!(text.starts_with("HTTP/1.1 405 ") && text.contains("Connection: close\r\n"), "{text}");
}

/// Regression: responses of redirects to HTTPS, the guestbook and the hub did not say that the connection ends
/// after them (RFC 9112 §9.6).
#[test]
fn a_final_response_instead_of_100_continue_announces_the_end() {
    let mut bench = https_redirect();
    bench
        .receive("PUT /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(bench.work_fast(), Need::Linger);
    let text = bench.text();
    assert!(text.starts_with("HTTP/1.1 308 ") && text.contains("Connection: close\r\n"), "{text}");
    // A client that does not wait keeps its connection.
    let mut bench = https_redirect();
    bench.receive("PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
    assert_eq!(bench.work_fast(), Need::Receive(Awaits::Next));
    assert!(!bench.text().contains("Connection:"), "{}", bench.text());
}
