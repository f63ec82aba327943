use crate::harness::{Harness, reply, request};

const FRESH: &str = "Cache-Control: max-age=60\r\n";

/// Returns which of three stored URLs remain after the exchange.
fn left(line: &str, wire: &str) -> Vec<&'static str> {
    let mut harness = Harness::default();
    let paths = ["/a", "/b", "/x/c"];
    for path in paths {
        harness.get(path, "", &reply(200, FRESH, "x"));
    }
    harness.exchange(&request(line, ""), Some(wire));
    let mut is_there = |path: &str| harness.get(path, "", &reply(500, "", "")).is_hit();
    paths.into_iter().filter(|path| is_there(path)).collect()
}

#[test]
fn rfc_9111_4_4_unsafe_methods_invalidate() {
    let ok = reply(200, "", "");
    for method in ["POST", "PUT", "DELETE", "PATCH", "PURGE", "WHATEVER"] {
        assert_eq!(left(&format!("{method} /a"), &ok), ["/b", "/x/c"], "{method}");
    }
    for method in ["OPTIONS", "TRACE", "HEAD"] {
        assert_eq!(left(&format!("{method} /a"), &ok), ["/a", "/b", "/x/c"], "{method}");
    }
    assert_eq!(left("POST /a", &reply(303, "", "")), ["/b", "/x/c"]);
    assert_eq!(left("POST /a", &reply(404, "", "")), ["/a", "/b", "/x/c"]);
    assert_eq!(left("POST /a", &reply(500, "", "")), ["/a", "/b", "/x/c"]);
}

#[test]
fn rfc_9111_4_4_locations_of_the_same_origin_are_invalidated() {
    for (location, expected) in [
        ("Location: /b\r\n", vec!["/a", "/x/c"]),
        ("Content-Location: http://A/b\r\n", vec!["/a", "/x/c"]),
        ("Location: c\r\n", vec!["/a", "/b"]),
        ("Location: /a\r\nContent-Location: /b\r\n", vec!["/x/c"]),
        ("Location: https://a/b\r\n", vec!["/a", "/x/c"]),
        ("Location: ../b\r\n", vec!["/a", "/x/c"]),
        ("Location: http://evil/b\r\n", vec!["/a", "/b", "/x/c"]),
    ] {
        assert_eq!(left("POST /x/form", &reply(201, location, "")), expected, "{location}");
    }
    assert_eq!(left("POST /x/form", &reply(500, "Location: /b\r\n", "")), ["/a", "/b", "/x/c"]);
    let mut harness = Harness::default();
    harness.get("/form?b", "", &reply(200, FRESH, "x"));
    harness.exchange(&request("POST /form?a", ""), Some(&reply(201, "Location: ?b\r\n", "")));
    assert!(!harness.get("/form?b", "", &reply(500, "", "")).is_hit());
}

#[test]
fn rfc_9111_4_4_a_fetch_begun_before_is_not_stored() {
    let mut harness = Harness::default();
    let head = request("GET /a", "");
    let pollux_cache::Decision::Fetch(fetch) = harness.lookup(&head, Some(1), false) else {
        panic!()
    };
    harness.exchange(&request("POST /a", ""), Some(&reply(200, "", "")));
    let got = harness.complete_fetch(&head, fetch, Some(&reply(200, FRESH, "old")));
    assert_eq!(got.text(), "old");
    assert!(!harness.get("/a", "", &reply(200, "", "new")).is_hit());
}
