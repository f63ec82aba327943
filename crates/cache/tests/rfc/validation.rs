use crate::bench::{Bench, START, at, reply, request};

const STALE: &str = "Cache-Control: max-age=1\r\n";
const FRESH: &str = "Cache-Control: max-age=60\r\n";

/// A bench with a response to `/` that is stale.
fn with_stale(fields: &str) -> Bench {
    let mut bench = Bench::default();
    bench.get("/", "", &reply(200, &format!("{STALE}{fields}"), "old"));
    bench.now += 10;
    bench
}

#[test]
fn rfc_9111_4_3_1_both_validators_are_sent() {
    let changed = at(START - 9000);
    for (fields, expected) in [
        ("ETag: \"a\"\r\n".into(), "If-None-Match: \"a\"\r\n".into()),
        ("ETag: W/\"a\"\r\n".into(), "If-None-Match: W/\"a\"\r\n".into()),
        (format!("Last-Modified: {changed}\r\n"), format!("If-Modified-Since: {changed}\r\n")),
        (
            format!("ETag: \"a\"\r\nLast-Modified: {changed}\r\n"),
            format!("If-None-Match: \"a\"\r\nIf-Modified-Since: {changed}\r\n"),
        ),
        (String::new(), String::new()),
        ("ETag: a\r\n".into(), String::new()),
    ] {
        let mut bench = with_stale(&fields);
        let got = bench.get("/", "If-None-Match: \"client\"\r\n", &reply(200, FRESH, "new"));
        assert_eq!(got.conditions, Some(expected), "{fields}");
        assert_eq!(got.text(), "new");
        assert_eq!(bench.get("/", "", "").text(), "new");
    }
}

#[test]
fn rfc_9111_4_3_4_a_304_freshens_what_is_stored() {
    let mut bench = with_stale(
        "ETag: \"a\"\r\nX-A: 1\r\nX-B: 1\r\nContent-Type: text/a\r\nContent-Encoding: gzip\r\n",
    );
    let fields = format!(
        "{FRESH}ETag: \"a\"\r\nX-A: 2\r\nX-C: 1\r\nContent-Type: text/b\r\nContent-Encoding: br\r\n\
         Content-Length: 99\r\n"
    );
    let wire = format!("HTTP/1.1 304 X\r\n{fields}\r\n");
    let first = bench.get("/", "", &wire);
    assert_eq!(first.field("cache-status"), Some("Pollux; fwd=stale; fwd-status=304; ttl=60"));
    bench.now += 5;
    let second = bench.get("/", "", "");
    assert_eq!((first.asked, second.asked), (1, 0));
    assert_eq!((first.field("age"), second.field("age")), (Some("0"), Some("5")));
    for got in [first, second] {
        assert_eq!((got.status, got.text()), (200, "old"));
        let fields = ["x-a", "x-b", "x-c", "content-type", "content-encoding", "content-length"];
        let values = fields.map(|name| got.field(name).unwrap());
        assert_eq!(values, ["2", "1", "1", "text/b", "gzip", "3"]);
        assert_eq!(got.head.matches("X-A").count(), 1);
        assert_eq!(got.field("date"), Some(&at(START + 10)[..]));
        assert_eq!(got.field("cache-control"), Some("max-age=60"));
    }
}

#[test]
fn rfc_9111_4_3_4_a_304_that_forbids_storing_is_the_last_one() {
    let mut bench = with_stale("ETag: \"a\"\r\n");
    let got = bench.get("/", "", &reply(304, "ETag: \"a\"\r\nCache-Control: no-store\r\n", ""));
    assert_eq!((got.status, got.text()), (200, "old"));
    let got = bench.get("/", "", &reply(200, "", "new"));
    assert_eq!((got.text(), got.conditions.as_deref()), ("new", None));
}

#[test]
fn rfc_9111_4_3_4_a_304_about_something_else_is_no_answer() {
    let mut bench = with_stale("ETag: \"a\"\r\n");
    let head = request("GET /", "");
    let pollux_cache::Decision::Fetch(fetch) = bench.ask(&head, None, false) else { panic!() };
    let wire = reply(304, "ETag: \"b\"\r\n", "");
    let request = crate::bench::parsed(&head);
    let now = bench.now;
    let (verdict, _) = crate::bench::read_reply(&wire, false, |reply| {
        bench.cache.head(fetch.ticket, &request, reply, now, now)
    });
    let pollux_cache::Answer::AskAgain(again) = verdict.answer else { panic!("{verdict:?}") };
    assert_eq!(again.ticket, fetch.ticket);
    let got = bench.fetched(&head, again, Some(&reply(200, FRESH, "new")));
    assert_eq!((got.text(), got.conditions.as_deref()), ("new", Some("")));
    assert_eq!(bench.get("/", "", "").text(), "new");
}

/// §3.2 has the stored response say so from then on, and §4.1 does not let it answer who says another.
#[test]
fn rfc_9111_4_1_a_304_may_bring_another_vary() {
    let wire = reply(304, &format!("{FRESH}ETag: \"a\"\r\nVary: X\r\n"), "");
    let mut bench = with_stale("ETag: \"a\"\r\n");
    assert_eq!(bench.get("/", "X: 1\r\n", &wire).text(), "old");
    assert_eq!(bench.get("/", "X: 2\r\n", &reply(200, "", "new")).text(), "new");
    let got = bench.get("/", "X: 1\r\n", "");
    assert_eq!((got.is_hit(), got.field("vary")), (true, Some("X")));
    // Of several variants those that vary by other fields go.
    let mut bench = Bench::default();
    for number in 1..=2 {
        let wire = reply(200, &format!("{STALE}ETag: \"a\"\r\nVary: Y\r\n"), "old");
        bench.get("/", &format!("Y: {number}\r\n"), &wire);
    }
    bench.now += 10;
    bench.get("/", "X: 1\r\nY: 1\r\n", &wire);
    assert_eq!(bench.stored(""), 1);
    assert_eq!(bench.get("/", "X: 1\r\nY: 2\r\n", "").text(), "old");
}

#[test]
fn a_304_whose_vary_is_too_long_to_be_stored_answers_its_client() {
    let names: Vec<String> = (0..12_900).map(|number| format!("{number:04x}")).collect();
    let fields = format!("{FRESH}ETag: \"a\"\r\nVary: {}\r\n", names.join(","));
    let mut bench = with_stale("ETag: \"a\"\r\n");
    let long = format!("0000: {}\r\n", "x".repeat(10_000));
    let got = bench.get("/", &long, &reply(304, &fields, ""));
    assert_eq!((got.text(), got.field("etag")), ("old", Some("\"a\"")));
    assert!(got.head.starts_with("HTTP/1.1 200 OK\r\nCache-Control: "), "{:.99}", got.head);
    assert_eq!(bench.stored(""), 0);
}

#[test]
fn rfc_9111_4_3_3_weak_tags_validate_too() {
    let mut bench = with_stale("ETag: W/\"a\"\r\n");
    let got = bench.get("/", "", &reply(304, &format!("{FRESH}ETag: \"a\"\r\n"), ""));
    assert_eq!((got.asked, got.text()), (1, "old"));
}

#[test]
fn rfc_9111_4_3_3_any_other_answer_replaces_what_is_stored() {
    let mut bench = with_stale("ETag: \"a\"\r\n");
    let got = bench.get("/", "", &reply(200, "Cache-Control: private\r\n", "mine"));
    assert_eq!(got.text(), "mine");
    let got = bench.get("/", "", &reply(200, "", "new"));
    assert_eq!(
        (got.text(), got.conditions.as_deref()),
        ("new", None),
        "what is stored is not there now"
    );
}

#[test]
fn rfc_9111_3_5_one_clients_response_leaves_what_is_stored_for_all() {
    let with_token = "Authorization: x\r\nCache-Control: no-cache\r\n";
    let fields = format!("{FRESH}ETag: \"a\"\r\n");
    for wire in [reply(200, FRESH, "mine"), reply(304, &fields, "")] {
        let mut bench = Bench::default();
        bench.get("/", "", &reply(200, &fields, "all"));
        bench.now += 10;
        assert_eq!(bench.get("/", with_token, &wire).asked, 1);
        let got = bench.get("/", "", "");
        assert_eq!((got.is_hit(), got.text(), got.field("age")), (true, "all", Some("10")));
    }
}

#[test]
fn rfc_9111_4_3_5_head_freshens() {
    let head = request("HEAD /", "");
    let etag = "ETag: \"a\"\r\n";
    for (fields, is_kept) in [
        (format!("{FRESH}{etag}X-A: 2\r\nContent-Length: 3\r\n"), true),
        (format!("{FRESH}X-A: 2\r\n"), true),
        (format!("{FRESH}ETag: \"b\"\r\n"), false),
        (format!("{FRESH}{etag}Content-Length: 4\r\n"), false),
        (format!("{FRESH}{etag}Last-Modified: {}\r\n", at(START - 1)), false),
    ] {
        let mut bench = with_stale(&format!("{etag}X-A: 1\r\nX-B: 1\r\n"));
        let wire = format!("HTTP/1.1 200 X\r\n{fields}\r\n");
        let got = bench.exchange(&head, Some(&wire));
        assert_eq!((got.asked, got.status, got.text()), (1, 200, ""));
        assert_eq!(got.conditions.as_deref(), Some("If-None-Match: \"a\"\r\n"));
        let got = bench.get("/", "", &reply(200, "", "new"));
        assert_eq!(got.is_hit(), is_kept, "{fields}");
        if is_kept {
            assert_eq!((got.field("x-a"), got.field("x-b")), (Some("2"), Some("1")));
        }
    }
}

#[test]
fn rfc_9111_4_head_is_answered_from_what_get_got() {
    let mut bench = Bench::default();
    bench.get("/", "", &reply(200, FRESH, "body"));
    let got = bench.exchange(&request("HEAD /", ""), None);
    assert!(got.is_hit());
    assert_eq!((got.status, got.field("content-length"), got.text()), (200, Some("4"), ""));
    let got = bench.exchange(&request("HEAD /other", ""), Some("HTTP/1.1 200 X\r\n\r\n"));
    assert_eq!(got.asked, 1);
    assert!(!bench.get("/other", "", &reply(200, "", "")).is_hit(), "a HEAD stores nothing");
}
