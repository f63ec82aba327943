//! The disk tier: restarts, full disks, damaged files, and crashes at any moment.

mod queue;
mod waiting;

use crate::harness::{Harness, START, reply, request};
use pollux_cache::{Config, Decision, Directory, FsDirectory, Purge, Store, Tier};
use pollux_testkit::wait_until;
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const FRESH: &str = "Cache-Control: max-age=600\r\nSurrogate-Key: all\r\nVary: X\r\n";
const LIMIT: u64 = 1 << 20;
const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);

/// The state of the simulated directory.
#[derive(Debug, Default)]
struct DiskState {
    files: BTreeMap<String, Vec<u8>>,
    /// The capacity in bytes.
    room: Option<usize>,
    /// The number of calls that are still executed. Of the last one only half is executed; later calls
    /// fail.
    calls: Option<u32>,
}

#[derive(Clone, Debug, Default)]
struct SimulatedDirectory(Arc<Mutex<DiskState>>);

impl SimulatedDirectory {
    /// Starts a call. Returns how much of it is executed: 0 nothing, 1 half, 2 all.
    fn call(&self) -> (std::sync::MutexGuard<'_, DiskState>, u8) {
        let mut disk = self.0.lock().unwrap();
        let done = match &mut disk.calls {
            None => 2,
            Some(0) => 0,
            Some(left) => {
                *left -= 1;
                if *left == 0 { 1 } else { 2 }
            }
        };
        (disk, done)
    }

    fn used(&self) -> usize {
        self.0.lock().unwrap().files.values().map(Vec::len).sum()
    }
}

fn process_is_dead() -> io::Error {
    io::Error::other("the process is dead")
}

impl Directory for SimulatedDirectory {
    fn list(&mut self) -> io::Result<Vec<String>> {
        let (disk, done) = self.call();
        if done == 2 { Ok(disk.files.keys().cloned().collect()) } else { Err(process_is_dead()) }
    }

    fn read(&mut self, name: &str, max: u64) -> io::Result<Vec<u8>> {
        let (disk, done) = self.call();
        if done < 2 {
            return Err(process_is_dead());
        }
        let file = disk.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(file[..file.len().min(max as usize)].to_vec())
    }

    fn write(&mut self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let used = self.used();
        let (mut disk, done) = self.call();
        let whole = parts.concat();
        let room = disk.room.map_or(usize::MAX, |room| room.saturating_sub(used));
        let wanted = [0, whole.len() / 2, whole.len()][usize::from(done)];
        if done > 0 {
            disk.files.insert(name.into(), whole[..wanted.min(room)].to_vec());
        }
        match done {
            2 if room < whole.len() => Err(io::ErrorKind::StorageFull.into()),
            2 => Ok(()),
            _ => Err(process_is_dead()),
        }
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let (mut disk, done) = self.call();
        if done < 2 {
            return Err(process_is_dead());
        }
        let file = disk.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        disk.files.insert(to.into(), file);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let (mut disk, done) = self.call();
        if done < 2 {
            return Err(process_is_dead());
        }
        disk.files.remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }
}

fn open_store(directory: impl Directory, limit: u64) -> Harness {
    let store = Store::with_directory(Config::default(), directory, limit).unwrap();
    Harness { cache: store.handle(), now: START }
}

/// Sends a request, and waits for the disk if the cache requires it. Returns the body, and whether
/// the origin received a request.
fn get(harness: &mut Harness, path: &str, fields: &str, wire: &str) -> (String, bool) {
    let head = request(&format!("GET {path}"), fields);
    let mut decision = harness.lookup(&head, Some(1), false);
    if matches!(decision, Decision::Wait) {
        wait_until("a wakeup after the load", || harness.cache.next_wakeup().is_some());
        decision = harness.lookup(&head, None, true);
    }
    let got = match decision {
        Decision::Serve(hit) => harness.serve_hit(&head, &hit),
        Decision::Fetch(fetch) => harness.complete_fetch(&head, fetch, Some(wire)),
        other => panic!("{other:?}"),
    };
    (got.text().into(), !got.is_hit())
}

fn body(number: usize) -> String {
    format!("{number} ").repeat(if number.is_multiple_of(3) { 20_000 } else { 10 })
}

fn wire(number: usize) -> String {
    reply(200, FRESH, &body(number))
}

fn stored(harness: &mut Harness, path: &str, fields: &str) -> Option<String> {
    let (body, was_asked) = get(harness, path, fields, &reply(500, "", "absent"));
    (!was_asked).then_some(body)
}

#[test]
fn stored_responses_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let open = || FsDirectory::open(directory.path().join("cache")).unwrap();
    let mut harness = open_store(open(), LIMIT);
    for number in 0..6 {
        get(&mut harness, &format!("/{number}"), "", &wire(number));
    }
    get(&mut harness, "/1", "X: 1\r\n", &reply(200, FRESH, "variant"));
    harness.cache.store().flush(FLUSH_TIMEOUT);
    harness.exchange(&request("POST /4", ""), Some(&reply(200, "", "")));
    harness.cache.store().flush(FLUSH_TIMEOUT);
    drop(harness);

    let mut harness = open_store(open(), LIMIT);
    assert_eq!(harness.cache.store().statistics().disk_files, 6);
    harness.now += 100;
    for number in 0..6 {
        let expected = (number != 4).then(|| body(number));
        assert_eq!(stored(&mut harness, &format!("/{number}"), ""), expected, "{number}");
    }
    assert_eq!(stored(&mut harness, "/1", "X: 1\r\n").as_deref(), Some("variant"));
    assert_eq!(stored(&mut harness, "/1", "X: 2\r\n"), None);
    assert_eq!(harness.cache.store().statistics().loaded, 6);
    // Now it is in memory, with its age.
    let got = harness.get("/0", "", "");
    assert_eq!((got.is_hit(), got.field("age")), (true, Some("100")));
}

#[test]
fn a_directory_is_used_by_one_store_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    let mut harness = open_store(FsDirectory::open(path.clone()).unwrap(), LIMIT);
    get(&mut harness, "/", "", &wire(1));
    let error = FsDirectory::open(path.clone()).unwrap_err();
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    drop(harness);
    let mut harness = open_store(FsDirectory::open(path).unwrap(), LIMIT);
    assert_eq!(stored(&mut harness, "/", ""), Some(body(1)));
}

/// Starts a second store for the directory of one that still uses it.
fn open_in_use(path: &std::path::Path) -> Harness {
    let path = path.to_owned();
    let open = move || FsDirectory::open(path.clone());
    let store = Store::with_directory_in_use(Config::default(), open, LIMIT).unwrap();
    Harness { cache: store.handle(), now: START }
}

/// Waits until one of these responses is found; then all files are indexed.
fn await_index(harness: &mut Harness, numbers: std::ops::Range<usize>) {
    wait_until("a file is found", || {
        numbers.clone().any(|number| stored(harness, &format!("/{number}"), "").is_some())
    });
}

/// As in a live upgrade: the second store opens the directory while the first still uses it, and gets
/// its files when the first releases it.
#[test]
fn a_store_takes_over_the_directory_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    let mut first = open_store(FsDirectory::open(path.clone()).unwrap(), LIMIT);
    (0..3).for_each(|number| drop(get(&mut first, &format!("/{number}"), "", &wire(number))));
    let mut second = open_in_use(&path);
    assert_eq!(stored(&mut second, "/0", ""), None, "the first store still has the directory");
    assert_eq!(get(&mut second, "/1", "", &reply(200, FRESH, "newer")).0, "newer");
    first.cache.store().release_directory();
    await_index(&mut second, 0..1);
    assert_eq!(stored(&mut second, "/2", ""), Some(body(2)));
    assert_eq!(second.cache.store().statistics().disk_files, 3);

    // The first store writes nothing any more, but goes on in memory.
    assert_eq!(get(&mut first, "/3", "", &wire(3)).0, body(3));
    assert_eq!(stored(&mut first, "/3", ""), Some(body(3)));
    assert!(first.cache.store().flush(FLUSH_TIMEOUT));
    assert_eq!(second.cache.store().statistics().disk_failures, 0);
    drop((first, second));
    let mut third = open_store(FsDirectory::open(path).unwrap(), LIMIT);
    assert_eq!(stored(&mut third, "/0", ""), Some(body(0)));
    assert_eq!(stored(&mut third, "/1", "").as_deref(), Some("newer"));
    assert_eq!(stored(&mut third, "/3", ""), None);
}

/// A response that becomes invalid before the files are indexed must not come back from its file.
#[test]
fn a_store_that_waits_for_its_directory_remembers_what_became_invalid() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    let mut first = open_store(FsDirectory::open(path.clone()).unwrap(), LIMIT);
    (0..10).for_each(|number| drop(get(&mut first, &format!("/{number}"), "", &wire(number))));
    let mut second = open_in_use(&path);
    second.exchange(&request("POST /0", ""), Some(&reply(200, "", "")));
    first.cache.store().release_directory();
    // Another response may be in the group of the invalid one, and is then removed, too.
    await_index(&mut second, 1..10);
    assert_eq!(stored(&mut second, "/0", ""), None);
}

/// A response that becomes invalid in the process that ends must not come back from its file.
#[test]
fn a_store_that_has_released_its_directory_removes_invalid_files() {
    let directory = SimulatedDirectory::default();
    let mut first = open_store(directory.clone(), LIMIT);
    (1..3).for_each(|number| drop(get(&mut first, &format!("/{number}"), "", &wire(number))));
    assert!(first.cache.store().flush(FLUSH_TIMEOUT));
    first.cache.store().release_directory();
    first.exchange(&request("POST /1", ""), Some(&reply(200, "", "")));
    assert!(first.cache.store().flush(FLUSH_TIMEOUT));
    let mut second = open_store(directory, LIMIT);
    assert_eq!(stored(&mut second, "/1", ""), None);
    assert_eq!(stored(&mut second, "/2", ""), Some(body(2)));
}

/// A store whose directory is never released ends at once, without it.
#[test]
fn a_store_that_waits_for_its_directory_ends_at_once() {
    let open = || Err::<SimulatedDirectory, _>(io::ErrorKind::ResourceBusy.into());
    let store = Store::with_directory_in_use(Config::default(), open, LIMIT).unwrap();
    let mut harness = Harness { cache: store.handle(), now: START };
    drop(store);
    get(&mut harness, "/1", "", &wire(1));
    assert_eq!(stored(&mut harness, "/1", ""), Some(body(1)), "it is in memory");
    let began = Instant::now();
    assert!(harness.cache.store().flush(FLUSH_TIMEOUT), "nothing to wait for");
    drop(harness);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn a_load_from_disk_is_reported_in_cache_status() {
    let directory = SimulatedDirectory::default();
    let mut harness = open_store(directory.clone(), LIMIT);
    get(&mut harness, "/1", "", &wire(1));
    harness.cache.store().flush(FLUSH_TIMEOUT);
    let mut harness = open_store(directory, LIMIT);
    let head = request("GET /1", "");
    assert!(matches!(harness.lookup(&head, Some(1), false), Decision::Wait));
    assert!(matches!(harness.lookup(&head, Some(2), false), Decision::Wait | Decision::Serve(_)));
    harness.cache.store().flush(FLUSH_TIMEOUT);
    let Decision::Serve(hit) = harness.lookup(&head, None, true) else { panic!() };
    let mut line = Vec::new();
    hit.cache_status().put(&mut line);
    assert_eq!(line, b"Cache-Status: Pollux; hit; ttl=600; detail=disk\r\n");
    // Also if the loaded response is stale: the request waited for no other request.
    harness.now += 5;
    let head = request("GET /1", "Cache-Control: max-age=1\r\n");
    let Decision::Fetch(fetch) = harness.lookup(&head, None, true) else { panic!() };
    let got = harness.complete_fetch(&head, fetch, Some(&reply(304, "", "")));
    let status = got.field("cache-status").unwrap();
    assert!(!status.contains("collapsed"), "{status}");
}

/// The origin now varies by a field that it ignored before. The old response would match every
/// request.
#[test]
fn variants_of_an_old_vary_are_removed_from_disk() {
    let fields = "Cache-Control: max-age=600\r\n";
    let varying = |body: &str| reply(200, &format!("{fields}Vary: X\r\n"), body);
    let directory = SimulatedDirectory::default();
    let mut harness = open_store(directory.clone(), LIMIT);
    get(&mut harness, "/", "", &reply(200, fields, "old"));
    harness.cache.store().flush(FLUSH_TIMEOUT);
    get(&mut harness, "/", "X: 1\r\nCache-Control: no-cache\r\n", &varying("one"));
    let result = get(&mut harness, "/", "X: 2\r\n", &varying("two"));
    assert_eq!(result, ("two".into(), true), "not yet written");
    harness.cache.store().flush(FLUSH_TIMEOUT);
    let result = get(&mut harness, "/", "X: 3\r\n", &varying("three"));
    assert_eq!(result, ("three".into(), true), "written");
    harness.cache.store().flush(FLUSH_TIMEOUT);
    let mut harness = open_store(directory, LIMIT);
    assert_eq!(harness.cache.store().statistics().disk_files, 3);
    assert_eq!(stored(&mut harness, "/", "X: 1\r\n").as_deref(), Some("one"));
    assert_eq!(stored(&mut harness, "/", ""), None);
}

#[test]
fn the_number_of_variants_on_disk_is_bounded() {
    let directory = SimulatedDirectory::default();
    let mut harness = open_store(directory.clone(), LIMIT);
    let count = 3 * pollux_cache::VARIANTS_MAX;
    for number in 0..count {
        get(
            &mut harness,
            "/",
            &format!("X: {number}\r\n"),
            &reply(200, FRESH, &number.to_string()),
        );
    }
    harness.cache.store().flush(FLUSH_TIMEOUT);
    let files = harness.cache.store().statistics().disk_files;
    assert_eq!(files as usize, pollux_cache::VARIANTS_MAX);
    assert_eq!(directory.0.lock().unwrap().files.len(), pollux_cache::VARIANTS_MAX);
    let mut harness = open_store(directory, LIMIT);
    let latest = format!("X: {}\r\n", count - 1);
    assert_eq!(stored(&mut harness, "/", &latest), Some((count - 1).to_string()));
    assert_eq!(stored(&mut harness, "/", "X: 0\r\n"), None);
}

/// As without a disk tier: requests that cannot share a fetch, or that have `only-if-cached`, do
/// not wait for another request's fetch.
#[test]
fn only_shareable_requests_wait_for_a_fetch() {
    let mut harness = open_store(SimulatedDirectory::default(), LIMIT);
    let get = request("GET /", "");
    let Decision::Fetch(fetch) = harness.lookup(&get, Some(1), false) else { panic!() };
    for head in [
        request("HEAD /", ""),
        request("GET /", "Range: bytes=0-0\r\n"),
        request("GET /", "Authorization: x\r\n"),
    ] {
        let decision = harness.lookup(&head, Some(2), false);
        assert!(matches!(decision, Decision::Fetch(_)), "{head}: {decision:?}");
    }
    let only = request("GET /", "Cache-Control: only-if-cached\r\n");
    assert!(matches!(harness.lookup(&only, Some(3), false), Decision::OnlyIfCached));
    assert!(matches!(harness.lookup(&get, Some(4), false), Decision::Wait), "the positive control");
    harness.complete_fetch(&get, fetch, Some(&wire(1)));
    assert_eq!(harness.cache.next_wakeup(), Some(4));
}

#[test]
fn listing_and_inspecting_include_the_disk() {
    let directory = SimulatedDirectory::default();
    let mut harness = open_store(directory.clone(), LIMIT);
    for number in 0..3 {
        get(&mut harness, &format!("/{number}"), "", &wire(number));
    }
    harness.cache.store().flush(FLUSH_TIMEOUT);
    let walk = |harness: &Harness| {
        let mut walk = harness.cache.store().walk(b"http://a/");
        let batches = std::iter::from_fn(|| walk.next_batch(harness.now));
        let mut met: Vec<_> = batches
            .flatten()
            .map(|entry| (String::from_utf8(entry.url).unwrap(), entry.tier, entry.ttl))
            .collect();
        met.sort_by(|one, other| one.0.cmp(&other.0));
        met
    };
    let both = |number: usize| (format!("http://a/{number}"), Tier::Both, 600);
    assert_eq!(walk(&harness), [both(0), both(1), both(2)]);
    assert_eq!(harness.cache.store().inspect(b"http://a/1", harness.now)[0].tier, Tier::Both);
    let mut harness = open_store(directory, LIMIT);
    harness.now += 100;
    assert!(matches!(harness.lookup(&request("GET /1", ""), Some(1), false), Decision::Wait));
    harness.cache.store().flush(FLUSH_TIMEOUT);
    let disk = |number: usize| (format!("http://a/{number}"), Tier::Disk, 500);
    assert_eq!(walk(&harness), [disk(0), ("http://a/1".into(), Tier::Both, 500), disk(2)]);
    let stored_response = harness.cache.store().inspect(b"http://a/2", harness.now);
    assert_eq!(
        (stored_response.len(), stored_response[0].tier, stored_response[0].age),
        (1, Tier::Disk, 100)
    );
    assert_eq!(stored_response[0].content_length, body(2).len() as u64);
    assert!(
        matches!(harness.lookup(&request("GET /2", ""), Some(1), false), Decision::Wait),
        "loads"
    );
}

#[test]
fn purges_reach_the_disk() {
    for (purge, left) in [
        (Purge::Url(b"http://a/1"), 2),
        (Purge::Prefix(b"http://a/"), 0),
        (Purge::Tag(b"all"), 0),
        (Purge::Tag(b"other"), 3),
        (Purge::Everything, 0),
    ] {
        let directory = SimulatedDirectory::default();
        let mut harness = open_store(directory.clone(), LIMIT);
        for number in 0..3 {
            get(&mut harness, &format!("/{number}"), "", &wire(number));
        }
        harness.cache.store().flush(FLUSH_TIMEOUT);
        assert_eq!(directory.0.lock().unwrap().files.len(), 3);
        assert_eq!(harness.cache.store().purge(purge), 3 - left, "{purge:?}");
        harness.cache.store().flush(FLUSH_TIMEOUT);
        assert_eq!(directory.0.lock().unwrap().files.len(), left);
        // A queued write is cancelled too.
        get(&mut harness, "/1", "", &wire(1));
        harness.cache.store().purge(purge);
        harness.cache.store().flush(FLUSH_TIMEOUT);
        assert_eq!(directory.0.lock().unwrap().files.len(), left);
    }
}

#[test]
fn the_size_limit_holds() {
    let directory = SimulatedDirectory::default();
    let mut harness = open_store(directory.clone(), LIMIT);
    for number in 0..60 {
        get(&mut harness, &format!("/{}", number * 3), "", &wire(number * 3));
        harness.cache.store().flush(FLUSH_TIMEOUT);
        assert!(directory.used() as u64 <= LIMIT, "{}", directory.used());
        assert_eq!(directory.used() as u64, harness.cache.store().statistics().disk_bytes);
    }
    assert!(directory.used() as u64 > LIMIT / 2, "a tier that holds nothing holds every bound");
}

/// Regression: after a restart with less memory, a file that does not fit into it was loaded for each request.
#[test]
fn a_file_that_does_not_fit_into_the_memory_is_removed() {
    let directory = SimulatedDirectory::default();
    let mut harness = open_store(directory.clone(), LIMIT);
    let long = reply(200, FRESH, &"x".repeat(300_000));
    get(&mut harness, "/", "", &long);
    harness.cache.store().flush(FLUSH_TIMEOUT);
    let config = Config { limit_bytes: 256 << 10, ..Config::default() };
    let store = Store::with_directory(config, directory, LIMIT).unwrap();
    let mut harness = Harness { cache: store.handle(), now: START };
    assert_eq!(store.statistics().disk_files, 1);
    assert_eq!(get(&mut harness, "/", "", &reply(200, "", "new")), ("new".into(), true));
    assert_eq!(store.statistics().disk_files, 0);
}

#[test]
fn a_full_disk_loses_only_unwritten_responses() {
    let directory = SimulatedDirectory::default();
    directory.0.lock().unwrap().room = Some(100_000);
    let mut harness = open_store(directory.clone(), LIMIT);
    for number in 0..20 {
        get(&mut harness, &format!("/{number}"), "", &wire(number));
        assert_eq!(stored(&mut harness, &format!("/{number}"), ""), Some(body(number)));
        harness.cache.store().flush(FLUSH_TIMEOUT);
    }
    assert!(harness.cache.store().statistics().disk_failures > 0);
    assert!(directory.0.lock().unwrap().files.keys().all(|name| name.ends_with(".object")));
    directory.0.lock().unwrap().room = None;
    let mut harness = open_store(directory, LIMIT);
    assert_eq!(stored(&mut harness, "/1", ""), Some(body(1)));
}

/// Regression: an older response came back after a restart, although clients had received the new one.
#[test]
fn a_response_that_cannot_be_written_leaves_no_older_one_on_disk() {
    for is_full in [true, false] {
        let directory = SimulatedDirectory::default();
        // The new response is longer than the second limit.
        let limit = if is_full { LIMIT } else { 10_000 };
        let mut harness = open_store(directory.clone(), limit);
        get(&mut harness, "/", "", &wire(1));
        get(&mut harness, "/other", "", &wire(2));
        harness.cache.store().flush(FLUSH_TIMEOUT);
        let used = directory.used();
        assert!(used > 0);
        directory.0.lock().unwrap().room = is_full.then_some(used);
        get(&mut harness, "/", "Cache-Control: no-cache\r\n", &wire(3));
        harness.cache.store().flush(FLUSH_TIMEOUT);
        assert_eq!(stored(&mut harness, "/", ""), Some(body(3)), "from memory");
        let mut harness = open_store(directory, limit);
        assert_eq!(stored(&mut harness, "/", ""), None, "{is_full}");
        assert_eq!(stored(&mut harness, "/other", ""), Some(body(2)), "{is_full}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// As after kill -9: the system keeps the bytes that were written before.
    #[test]
    fn a_crash_at_any_moment_leaves_a_consistent_directory(
        calls in 1..60u32,
        numbers in prop::collection::vec(0..8usize, 1..25),
    ) {
        let directory = SimulatedDirectory::default();
        let mut harness = open_store(directory.clone(), LIMIT / 4);
        directory.0.lock().unwrap().calls = Some(calls);
        for number in &numbers {
            get(&mut harness, &format!("/{number}"), "", &wire(*number));
        }
        harness.cache.store().flush(FLUSH_TIMEOUT);
        drop(harness);

        directory.0.lock().unwrap().calls = None;
        let mut harness = open_store(directory.clone(), LIMIT / 4);
        for number in 0..8 {
            let found = stored(&mut harness, &format!("/{number}"), "");
            prop_assert!(found.is_none_or(|found| found == body(number)), "{}", number);
        }
        let files = directory.0.lock().unwrap();
        prop_assert!(files.files.keys().all(|name| name.ends_with(".object")));
    }

    /// As after a power failure: a damaged file is never served.
    #[test]
    fn damaged_files_are_removed(
        position in any::<prop::sample::Index>(),
        bit in 0..8u8,
        is_cut in any::<bool>(),
        number in 2..4usize,
    ) {
        let directory = SimulatedDirectory::default();
        let mut harness = open_store(directory.clone(), LIMIT);
        get(&mut harness, "/", "", &wire(number));
        harness.cache.store().flush(FLUSH_TIMEOUT);
        {
            let mut disk = directory.0.lock().unwrap();
            let file = disk.files.values_mut().next().unwrap();
            let at = position.index(file.len());
            if is_cut { file.truncate(at) } else { file[at] ^= 1 << bit }
        }
        let mut harness = open_store(directory.clone(), LIMIT);
        prop_assert_eq!(stored(&mut harness, "/", ""), None);
        harness.cache.store().flush(FLUSH_TIMEOUT);
        prop_assert!(directory.0.lock().unwrap().files.is_empty());
        prop_assert_eq!(get(&mut harness, "/", "", &wire(1)).0, body(1));
    }
}
