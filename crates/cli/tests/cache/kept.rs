//! What is kept, as the command line says it.

use crate::{is_hit, serve};
use pollux_testkit::origin::Origin;

/// An origin that has nothing, or something long, and says how long for the latter alone.
fn origin() -> Origin {
    Origin::start(|asked| match asked.target() {
        "/none" => asked.say("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"),
        "/short" => asked.say(long(1000)),
        _ => asked.say(long(5000)),
    })
}

fn long(len: usize) -> String {
    let body = "x".repeat(len);
    format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: {len}\r\n\r\n{body}")
}

/// Whether the second one of two requests for each is answered from the store.
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
