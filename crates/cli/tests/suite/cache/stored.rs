//! Which responses are stored, as the command line selects them.

use super::{is_hit, serve};
use pollux_testkit::origin::Origin;

/// Starts an origin that answers with 404, or with short or long content, and gives a lifetime only
/// with content.
fn origin() -> Origin {
    Origin::start(|request| match request.target() {
        "/none" => request.say("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"),
        "/short" => request.say(long(1000)),
        _ => request.say(long(5000)),
    })
}

fn long(len: usize) -> String {
    let body = "x".repeat(len);
    format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {len}\r\n\r\n{body}")
}

/// Returns, for each path, whether the second of two requests is answered from the store.
fn hits(arguments: &[&str]) -> [bool; 3] {
    let origin = origin();
    let server = serve(&origin, arguments);
    let mut client = server.client();
    let hits = ["/none", "/short", "/long"].map(|target| {
        let first = client.get(target);
        assert!(!is_hit(&first), "{target}");
        let second = client.get(target);
        assert_eq!((second.status, &second.body), (first.status, &first.body), "{target}");
        is_hit(&second)
    });
    drop(client);
    assert!(server.stop().0.success());
    hits
}

#[test]
fn negative_replies_and_long_ones_are_kept_as_it_says() {
    assert_eq!(hits(&[]), [false, true, true]);
    assert_eq!(hits(&["--cache-negative", "60s", "--cache-object", "4K"]), [true, true, false]);
}

/// If an origin receives information about clients that they do not send themselves, its responses may
/// vary by facts that the cache cannot know.
#[test]
fn what_varies_by_the_client_is_kept_where_clients_identify_themselves() {
    for (policy, expected) in
        [("replace", false), ("append", false), ("keep", true), ("remove", true)]
    {
        let origin = Origin::start(|request| {
            let fields = "Cache-Control: max-age=60\r\nVary: X-Forwarded-For\r\n";
            request.say(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 1\r\n\r\nx"))
        });
        let server = serve(&origin, &["--forwarded", policy]);
        let mut client = server.client();
        assert!(!is_hit(&client.get("/")), "{policy}");
        assert_eq!(is_hit(&client.get("/")), expected, "{policy}");
        drop(client);
        assert!(server.stop().0.success());
    }
}
