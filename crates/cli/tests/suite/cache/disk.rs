//! The disk tier when the server is killed, and when the disk is full.

use super::{command, content, counter, is_hit, origin, printed, serve};
use pollux_testkit::{becomes_true, http::Reply, serve::Serve};
use rustix::process::Signal;
use std::{
    fs,
    path::Path,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

/// The number of objects in the test that kills the server.
const OBJECTS: usize = 300;
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the version of a body, which must be a complete content of this URL.
fn version_of(target: &str, body: &str, versions: u32) -> u32 {
    let found = (1..=versions).find(|&version| body == content(target, version));
    found.unwrap_or_else(|| {
        let start: String = body.chars().take(80).collect();
        panic!("{target}: {} bytes of something else: {start:?}", body.len())
    })
}

fn names(directory: &Path, ending: &str) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<_> =
        entries.filter(|path| path.to_str().unwrap().ends_with(ending)).collect();
    names.sort();
    names
}

/// Requests the objects until `stop` returns true, with so many clients at a time that waiting for the
/// disk costs little; `look` gets each reply.
fn request_all(
    server: &Serve,
    objects: usize,
    stop: &(dyn Fn() -> bool + Sync),
    look: &(dyn Fn(&str, &Reply) + Sync),
) {
    const CLIENTS: usize = 75;
    thread::scope(|scope| {
        for part in 0..CLIENTS.min(objects) {
            scope.spawn(move || {
                let mut client = server.client();
                for number in (part..objects).step_by(CLIENTS) {
                    if stop() {
                        return;
                    }
                    let target = format!("/n/{number}");
                    look(&target, &client.get(&target));
                }
            });
        }
    });
}

/// Requests all objects, and returns how many the cache had stored.
fn count_kept(server: &Serve, objects: usize, version: u32) -> usize {
    let kept = AtomicUsize::new(0);
    request_all(server, objects, &|| false, &|target, reply| {
        let is_old = version_of(target, &reply.text(), version) < version;
        assert_eq!(is_old, is_hit(reply), "{target}: {reply:?}");
        kept.fetch_add(is_old.into(), SeqCst);
    });
    kept.into_inner()
}

/// The server is killed repeatedly while it writes: each response must be complete, belong to its URL,
/// and have a version that existed; the files that were written before are still there.
#[test]
fn a_server_that_is_killed_while_it_writes() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept");
    let (origin, version) = origin();
    let arguments = ["--cache-dir", kept.to_str().unwrap(), "--workers", "2"];
    let mut from_disk = Vec::new();
    for round in 1..=3 {
        version.store(2 * round - 1, SeqCst);
        let server = serve(&origin, &arguments);
        let answered = AtomicUsize::new(0);
        // In each round the server is killed later.
        let is_enough = || answered.load(SeqCst) >= OBJECTS * round as usize / 4;
        request_all(&server, OBJECTS, &is_enough, &|target, reply| {
            version_of(target, &reply.text(), 2 * round - 1);
            answered.fetch_add(1, SeqCst);
        });
        // The thread that writes files is slower than the workers that answer.
        server.signal(Signal::KILL);
        drop(server);

        let server = serve(&origin, &arguments);
        assert_eq!(names(&kept, ".new").len(), 0, "what was begun is removed");
        version.store(2 * round, SeqCst);
        from_disk.push(count_kept(&server, OBJECTS, 2 * round));
        // If the server stops normally, all objects are stored.
        if round == 3 {
            assert!(server.stop().0.success());
            let server = serve(&origin, &arguments);
            version.store(9, SeqCst);
            assert_eq!(count_kept(&server, OBJECTS, 9), OBJECTS);
        }
    }
    assert!(from_disk.iter().sum::<usize>() > OBJECTS / 4, "from the disk: {from_disk:?}");
    assert!(from_disk[0] < OBJECTS, "it was killed before it had all");
}

/// Regression: if the disk was faster than the worker, the worker lost the wakeup, and the request waited
/// for five seconds.
#[test]
fn a_response_from_the_disk_is_sent_at_once() {
    const MOST: Duration = Duration::from_secs(4);
    const TARGETS: usize = 60;
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept");
    let (origin, _) = origin();
    let arguments = ["--cache-dir", kept.to_str().unwrap()];
    let target = |number: usize| format!("/n/{number}");
    let server = serve(&origin, &arguments);
    assert_eq!(count_kept(&server, TARGETS, 1), 0);
    assert!(server.stop().0.success());
    let server = serve(&origin, &arguments);
    let mut client = server.client();
    for number in 0..TARGETS {
        let started_at = Instant::now();
        let reply = client.get(&target(number));
        let took = started_at.elapsed();
        assert!(is_hit(&reply) && took < MOST, "{number}: {took:?}: {reply:?}");
    }
    assert!(server.stop().0.success());
}

#[test]
fn torn_files_are_thrown_away() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept");
    let control = directory.path().join("control");
    let (origin, version) = origin();
    let arguments = ["--cache-dir", kept.to_str().unwrap(), "--control", control.to_str().unwrap()];
    let server = serve(&origin, &arguments);
    assert_eq!(count_kept(&server, 20, 1), 0);
    assert!(server.stop().0.success());
    let files = names(&kept, ".object");
    assert_eq!(files.len(), 20);
    for (number, path) in files.iter().enumerate() {
        let mut bytes = fs::read(path).unwrap();
        match number {
            0 => bytes.clear(),
            1 => bytes.truncate(20),
            2 => bytes.truncate(100),
            3 => drop(bytes.pop()),
            4 => bytes.push(b'x'),
            5..=12 => {
                let place = bytes.len() * (number - 5) / 8;
                bytes[place] ^= 1;
            }
            _ => continue,
        }
        fs::write(path, bytes).unwrap();
    }
    fs::write(kept.join("00000000000000ff.new"), "half").unwrap();
    fs::write(kept.join("README"), "mine").unwrap();
    version.store(2, SeqCst);
    let server = serve(&origin, &arguments);
    assert_eq!(count_kept(&server, 20, 2), 7);
    assert!(server.stop().0.success());
    assert_eq!(names(&kept, ".object").len(), 20);
    assert_eq!(names(&kept, ".new").len(), 0);
    assert_eq!(fs::read(kept.join("README")).unwrap(), b"mine", "what is not the cache's stays");
    let server = serve(&origin, &arguments);
    version.store(3, SeqCst);
    assert_eq!(count_kept(&server, 20, 3), 20);
    assert_eq!(counter(&control, "disk_failures"), 0, "all are whole now");
}

/// Starts a server whose directory is a file system of 1 MiB; returns `None` where none can be
/// mounted.
fn on_a_small_disk(
    origin: &pollux_testkit::origin::Origin,
    kept: &Path,
    arguments: &[&str],
) -> Option<Serve> {
    let mount = "mount -t tmpfs -o size=1m tmpfs \"$0\"";
    let probe = Command::new("unshare").args(["--mount", "sh", "-c", mount]).arg(kept).output();
    match probe {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            eprintln!("SKIPPED: no file system can be mounted here, so none is full: {why}");
            return None;
        }
        Err(error) => {
            eprintln!("SKIPPED: no unshare(1), so no disk that is full: {error}");
            return None;
        }
    }
    let server = command(origin, arguments);
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", &format!("{mount} && exec \"$@\"")]).arg(kept);
    unshare.arg(server.get_program()).args(server.get_args());
    Some(Serve::start_command(unshare))
}

#[test]
fn a_full_disk_is_reported_once_and_answers_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let (kept, control) = (directory.path().join("kept"), directory.path().join("control"));
    fs::create_dir(&kept).unwrap();
    let (origin, version) = origin();
    let arguments = ["--cache-dir", kept.to_str().unwrap(), "--control", control.to_str().unwrap()];
    let Some(server) = on_a_small_disk(&origin, &kept, &arguments) else { return };
    let mut client = server.client();
    for number in 0..100 {
        let target = format!("/n/{number}");
        assert_eq!(client.get(&target).text(), content(&target, 1));
    }
    let reports = |server: &Serve| server.stderr_text().matches("No space left").count();
    // The counter changes before the log line is written.
    let is_full =
        becomes_true(PATIENCE, || counter(&control, "disk_failures") > 0 && reports(&server) > 0);
    assert!(is_full, "the disk never was full: {}", server.stderr_text());
    // All objects are in memory nevertheless.
    version.store(2, SeqCst);
    for number in 0..100 {
        let target = format!("/n/{number}");
        let reply = client.get(&target);
        assert!(is_hit(&reply) && reply.text() == content(&target, 1), "{target}");
    }
    assert_eq!(reports(&server), 1, "{}", server.stderr_text());
    let on_disk = counter(&control, "disk_bytes");
    assert!((100_000..1 << 20).contains(&on_disk), "{on_disk}");
    // There is room again: files are written again.
    assert!(printed(&control, &["purge", "--all"]).starts_with("100 "));
    assert_eq!(counter(&control, "disk_files"), 0);
    let target = "/n/1";
    assert_eq!(client.get(target).text(), content(target, 2));
    let is_written = becomes_true(PATIENCE, || counter(&control, "disk_files") > 0);
    assert!(is_written, "nothing is written: {}", server.stderr_text());
    assert_eq!(reports(&server), 1, "{}", server.stderr_text());
    assert!(server.stop().0.success());
}
