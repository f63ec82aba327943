//! Responses that are not written, because too much is queued or a removal has cancelled the write: an
//! older response must not follow them when they have left the memory.

use super::{
    FLUSH_TIMEOUT, FRESH, SimulatedDirectory, await_index, body, get, open_store, stored, wire,
};
use crate::harness::{Harness, START, reply, request};
use pollux_cache::{Config, Decision, Purge, Store};
use pollux_testkit::wait_until;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

const LIMIT: u64 = 64 << 20;
const NO_CACHE: &str = "Cache-Control: no-cache\r\n";

/// A response so long that the queue has room for less than 16 of them.
fn long_wire() -> String {
    reply(200, FRESH, &"x".repeat(1 << 20))
}

/// Fills the queue while nothing is written: no room is left for another long response.
fn fill_queue(harness: &mut Harness) {
    for number in 0..16 {
        get(harness, &format!("/long/{number}"), "", &long_wire());
    }
}

/// Regression: the older response was in the queue and was written, although the newer one found no room.
#[test]
fn a_response_that_finds_the_queue_full_leaves_no_older_one() {
    let directory = SimulatedDirectory::default();
    let mut harness = open_store(directory.clone(), LIMIT);
    // The disk thread waits for the directory.
    let held = directory.0.lock().unwrap();
    get(&mut harness, "/", "", &wire(1));
    fill_queue(&mut harness);
    get(&mut harness, "/", NO_CACHE, &long_wire());
    drop(held);
    assert!(harness.cache.store().flush(FLUSH_TIMEOUT));
    assert_eq!(stored(&mut harness, "/", "").map(|body| body.len()), Some(1 << 20), "from memory");
    let mut harness = open_store(directory, LIMIT);
    assert_eq!(stored(&mut harness, "/", ""), None);
    let others = (0..15).filter(|n| stored(&mut harness, &format!("/long/{n}"), "").is_some());
    assert!(others.count() >= 14, "only the writes of one group are cancelled");
}

/// Regression: the removal of another response cancels the write, and the older file remained.
#[test]
fn a_cancelled_write_leaves_no_older_response() {
    let directory = SimulatedDirectory::default();
    let mut harness = open_store(directory.clone(), LIMIT);
    get(&mut harness, "/", "", &wire(1));
    assert!(harness.cache.store().flush(FLUSH_TIMEOUT));
    let held = directory.0.lock().unwrap();
    get(&mut harness, "/", NO_CACHE, &wire(2));
    // Nothing has this tag, but the purge cancels all queued writes.
    assert_eq!(harness.cache.store().purge(Purge::Tag(b"other")), 0);
    drop(held);
    assert!(harness.cache.store().flush(FLUSH_TIMEOUT));
    assert_eq!(stored(&mut harness, "/", ""), Some(body(2)), "from memory");
    let mut harness = open_store(directory, LIMIT);
    assert_eq!(stored(&mut harness, "/", ""), None);
}

/// Regression: a file that a queued write replaces, before it is loaded, was counted as one that cannot be
/// read.
#[test]
fn a_file_that_is_replaced_before_it_is_loaded_is_no_failure() {
    let directory = SimulatedDirectory::default();
    let mut harness = open_store(directory.clone(), LIMIT);
    get(&mut harness, "/", "", &reply(200, "Cache-Control: max-age=600\r\n", "old"));
    assert!(harness.cache.store().flush(FLUSH_TIMEOUT));
    let held = directory.0.lock().unwrap();
    // The new response varies, so that it replaces the old one, but does not answer the next request.
    get(&mut harness, "/", &format!("X: 1\r\n{NO_CACHE}"), &wire(1));
    let other = request("GET /", "X: 2\r\n");
    assert!(matches!(harness.lookup(&other, Some(1), false), Decision::Wait), "loads the old one");
    drop(held);
    wait_until("the end of the load", || harness.cache.next_wakeup().is_some());
    assert!(matches!(harness.lookup(&other, None, true), Decision::Fetch(_)));
    assert_eq!(harness.cache.store().statistics().disk_failures, 0);
}

/// As in a live upgrade: the queue is full before the files of the former process are indexed.
#[test]
fn a_queue_that_is_full_before_the_directory_is_free_leaves_no_older_response() {
    let directory = SimulatedDirectory::default();
    let mut first = open_store(directory.clone(), LIMIT);
    (0..6).for_each(|number| drop(get(&mut first, &format!("/{number}"), "", &wire(number))));
    assert!(first.cache.store().flush(FLUSH_TIMEOUT));
    drop(first);

    let is_free = Arc::new(AtomicBool::new(false));
    let (may_open, in_use) = (is_free.clone(), directory.clone());
    let open = move || match may_open.load(Ordering::SeqCst) {
        true => Ok(in_use.clone()),
        false => Err(io::Error::from(io::ErrorKind::ResourceBusy)),
    };
    let store = Store::with_directory_in_use(Config::default(), open, LIMIT).unwrap();
    let mut second = Harness { cache: store.handle(), now: START };
    fill_queue(&mut second);
    get(&mut second, "/0", "", &long_wire());
    is_free.store(true, Ordering::SeqCst);
    await_index(&mut second, 1..6);
    assert!(second.cache.store().flush(FLUSH_TIMEOUT));
    drop((store, second));

    let mut third = open_store(directory, LIMIT);
    assert_eq!(stored(&mut third, "/0", ""), None);
}
