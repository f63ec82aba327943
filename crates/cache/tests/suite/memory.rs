//! Measures the memory that a store really occupies and compares it with its own statistics, in a
//! separate process, so that no other code allocates at the same time.

use pollux_cache::{Config, Decision, Handle, Lookup, Store};
use pollux_http::{
    Limits,
    reply::{Event, Reader, RequestInfo},
    request::{ParseStatus, parse},
};
use pollux_testkit::allocations::allocations_here;

/// The resident memory of the process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has /proc");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap();
    pages * 4096
}

const FIELDS: &str = "Content-Type: text/plain\r\nCache-Control: max-age=600\r\nETag: \"abc\"\r\n\
                      Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
const NOW: u64 = 784_111_777;

fn request(number: usize) -> String {
    format!("GET /objects/{number:09} HTTP/1.1\r\nHost: example.org\r\n\r\n")
}

fn lookup(cache: &mut Handle, head: &str) -> Decision {
    let Ok(ParseStatus::Complete { request, .. }) = parse(head.as_bytes(), &Limits::DEFAULT) else {
        panic!("{head}")
    };
    cache.lookup(
        &Lookup { request: &request, site: b"http://", waiter: None, has_waited: false },
        NOW,
    )
}

/// Stores an object unless it is stored already. Returns the size of its key, fields and content.
fn store(cache: &mut Handle, number: usize, length: usize) -> u64 {
    let head = request(number);
    let Decision::Fetch(fetch) = lookup(cache, &head) else { return 0 };
    let Ok(ParseStatus::Complete { request, .. }) = parse(head.as_bytes(), &Limits::DEFAULT) else {
        panic!("{head}")
    };
    let wire = format!("HTTP/1.1 200 OK\r\n{FIELDS}Content-Length: {length}\r\n\r\n");
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(RequestInfo::default());
    let Ok(Event::Head(reply)) = reader.read(wire.as_bytes()).map(|step| step.event) else {
        panic!("{wire}")
    };
    assert!(cache.head(fetch.ticket, &request, &reply, NOW, NOW).should_store);
    for _ in 0..length / 1000 {
        assert!(cache.append(fetch.ticket, &[b'x'; 1000]));
    }
    assert!(cache.append(fetch.ticket, &vec![b'x'; length % 1000]));
    cache.finish(fetch.ticket);
    ("http://example.org/objects/".len() + 9 + FIELDS.len() + length) as u64
}

#[test]
fn an_object_costs_little_more_than_itself_and_the_limit_holds() {
    pollux_testkit::alone!(an_object_costs_little_more_than_itself_and_the_limit_holds);
    const COUNT: usize = 20_000;
    // Store one object first, so that one-time allocations are not counted.
    let mut cache = Store::new(Config { limit_bytes: 1 << 30, ..Config::default() }).handle();
    store(&mut cache, COUNT, 100);
    let before = resident();
    let own: u64 = (0..COUNT).map(|number| store(&mut cache, number, 100)).sum();
    let grown = resident() - before;
    let overhead = (grown - own) / COUNT as u64;
    let counted = cache.store().statistics();
    println!(
        "{COUNT} objects of {} bytes each: {overhead} bytes of overhead each; reported: {}",
        own / COUNT as u64,
        (counted.bytes - own) / COUNT as u64
    );
    assert_eq!(counted.entries, COUNT as u64 + 1, "nothing was evicted");
    assert!(overhead <= 200, "{overhead} bytes of overhead per small object");
    assert!(counted.bytes >= grown * 9 / 10, "reports {}, occupies {grown}", counted.bytes);

    hits_allocate_nothing(&mut cache);
    drop(cache);

    // Small and large objects, three times as many as fit.
    for (limit, length) in [(4 << 20, 10), (4 << 20, 3000), (4 << 20, 300_000)] {
        let before = resident();
        let mut cache = Store::new(Config { limit_bytes: limit, ..Config::default() }).handle();
        let mut own = 0;
        let mut number = 0;
        while own < limit * if length < 100 { 1 } else { 3 } {
            own += store(&mut cache, number, length);
            number += 1;
        }
        let counted = cache.store().statistics();
        let grown = resident().saturating_sub(before);
        println!("{number} objects of {length}: {counted:?}, occupies {grown}");
        assert!(counted.bytes <= limit, "reports {}, the limit is {limit}", counted.bytes);
        assert!(counted.bytes >= limit / 2, "a store that stores nothing holds every limit");
        assert!((counted.entries as usize) < number, "nothing was evicted");
        assert!(grown <= limit + (1 << 20), "occupies {grown}, the limit is {limit}");
    }
}

fn hits_allocate_nothing(cache: &mut Handle) {
    let head = request(7);
    let serve = |cache: &mut Handle, out: &mut Vec<u8>| {
        out.clear();
        let Decision::Serve(hit) = lookup(cache, &head) else { panic!("it is there") };
        let Ok(ParseStatus::Complete { request, .. }) = parse(head.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("{head}")
        };
        let reply = hit.response(&request, NOW);
        reply.put_fields(out);
        reply.content().map(|(piece, range)| piece[range].len()).sum::<usize>()
    };
    let mut out = Vec::new();
    assert_eq!(serve(cache, &mut out), 100);
    let before = allocations_here();
    for _ in 0..10 {
        assert_eq!(serve(cache, &mut out), 100);
    }
    assert_eq!(allocations_here() - before, 0, "a hit allocates");
}
