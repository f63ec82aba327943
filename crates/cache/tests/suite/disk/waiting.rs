//! Requests that wait together for a load from disk.

use super::{FLUSH_TIMEOUT, FRESH, LIMIT, SimulatedDirectory, get, open_store};
use crate::harness::{Harness, reply, request};
use pollux_cache::{Decision, Fetch};

fn count_wakeups(harness: &mut Harness) -> usize {
    std::iter::from_fn(|| harness.cache.next_wakeup()).count()
}

/// Looks up ten requests. Returns those that are to be forwarded; the others wait.
fn lookup_ten(harness: &mut Harness, head: &str, has_waited: bool) -> Vec<Fetch> {
    let decisions = (0..10).map(|number| harness.lookup(head, Some(number), has_waited));
    let fetch = |decision| match decision {
        Decision::Fetch(fetch) => Some(fetch),
        Decision::Wait => None,
        other => panic!("{other:?}"),
    };
    decisions.filter_map(fetch).collect()
}

/// Regression: after a restart each of them was forwarded, because it had waited before.
#[test]
fn requests_that_waited_for_a_stale_file_make_one_request() {
    let fields = "Cache-Control: max-age=60\r\nETag: \"a\"\r\n";
    let (head, confirmed) = (request("GET /", ""), reply(304, fields, ""));
    for outcome in [Some(&*confirmed), None] {
        let directory = SimulatedDirectory::default();
        let mut harness = open_store(directory.clone(), LIMIT);
        get(&mut harness, "/", "", &reply(200, fields, "old"));
        assert!(harness.cache.store().flush(FLUSH_TIMEOUT));
        let mut harness = open_store(directory.clone(), LIMIT);
        harness.now += 100;
        // The disk thread waits for the directory.
        let held = directory.0.lock().unwrap();
        assert!(lookup_ten(&mut harness, &head, false).is_empty());
        drop(held);
        assert!(harness.cache.store().flush(FLUSH_TIMEOUT));
        assert_eq!(count_wakeups(&mut harness), 10);
        let mut fetches = lookup_ten(&mut harness, &head, true);
        assert_eq!(fetches.len(), 1);
        harness.complete_fetch(&head, fetches.remove(0), outcome);
        assert_eq!(count_wakeups(&mut harness), 9);
        match outcome {
            Some(_) => assert!(matches!(harness.lookup(&head, None, true), Decision::Serve(_))),
            None => assert_eq!(lookup_ten(&mut harness, &head, true).len(), 10, "it fails"),
        }
    }
}

/// Regression: after a restart the second one was forwarded, although its response was on disk.
#[test]
fn a_request_that_waited_for_another_variant_gets_its_own_from_disk() {
    let [one, two] = ["X: 1\r\n", "X: 2\r\n"];
    let directory = SimulatedDirectory::default();
    let mut harness = open_store(directory.clone(), LIMIT);
    get(&mut harness, "/", one, &reply(200, FRESH, "one"));
    get(&mut harness, "/", two, &reply(200, FRESH, "two"));
    assert!(harness.cache.store().flush(FLUSH_TIMEOUT));
    let mut harness = open_store(directory.clone(), LIMIT);
    let (one, two) = (request("GET /", one), request("GET /", two));
    let held = directory.0.lock().unwrap();
    assert!(matches!(harness.lookup(&one, Some(1), false), Decision::Wait));
    assert!(matches!(harness.lookup(&two, Some(2), false), Decision::Wait));
    drop(held);
    assert!(harness.cache.store().flush(FLUSH_TIMEOUT));
    assert_eq!(count_wakeups(&mut harness), 2);
    assert!(matches!(harness.lookup(&one, Some(1), true), Decision::Serve(_)));
    assert!(matches!(harness.lookup(&two, Some(2), true), Decision::Wait), "it is loaded");
    assert!(harness.cache.store().flush(FLUSH_TIMEOUT));
    assert_eq!(count_wakeups(&mut harness), 1);
    let Decision::Serve(hit) = harness.lookup(&two, None, true) else { panic!() };
    assert_eq!(harness.serve_hit(&two, &hit).text(), "two");
}
