//! Responses after which no further request of the connection is answered.

use super::*;

/// Regression: after a CONNECT that the listener of `--redirect-http`, a password or a limit for clients refused, the next
/// bytes were read as requests.
#[test]
fn what_follows_a_connect_is_no_request() {
    let mut bench = Bench::new(files(), |config, rules| {
        let mut config = config.clone();
        config.site.directory = None;
        config.https_redirect = Some(443);
        Hosts::open(&config, rules, Contents::new(config.site.cache_bytes, 1)).unwrap()
    });
    bench.receive("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(bench.work_fast(), Need::Linger);
    let text = bench.text();
    assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{text}");
    assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("Connection: close\r\n"), "{text}");
}
