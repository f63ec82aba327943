//! Tests of children of a single-threaded process.
#![allow(missing_docs)]

use pollux_sys::{ChildStatus, SharedLock, SharedWords, fork, kill_child, pipe, reap_child};
use pollux_testkit::{in_child, own_file_tables, stays_true, wait_for, wait_until};
use std::{
    fs,
    io::{Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    sync::atomic::Ordering::SeqCst,
    thread,
    time::Duration,
};

/// A child that has ended, any of them, and its status.
fn any_ended() -> (i32, ChildStatus) {
    wait_for("a child to end", || reap_child().unwrap())
}

/// Keeps a child alive until it is killed: longer than any test runs.
fn wait_to_be_killed() -> u8 {
    thread::sleep(Duration::from_secs(60));
    0
}

/// The status of the only child.
fn ended(child: i32) -> ChildStatus {
    let (number, ending) = any_ended();
    assert_eq!(number, child);
    ending
}

/// The test harness has several threads, its forked child has one.
#[test]
fn only_a_process_with_one_thread_is_forked() {
    let error = fork(own_file_tables(), &[], || 0).unwrap_err().to_string();
    assert!(error.contains("threads"), "{error}");
    in_child(|| {
        let child = fork(own_file_tables(), &[], || 7).unwrap();
        assert_eq!(ended(child), ChildStatus::Exit(7));
        let (stop, on_stop) = std::sync::mpsc::channel::<()>();
        let other = thread::spawn(move || on_stop.recv());
        let error = fork(own_file_tables(), &[], || 0).unwrap_err().to_string();
        assert!(error.contains("2 threads"), "{error}");
        drop(stop);
        let _ = other.join().unwrap();
        assert_eq!(reap_child().unwrap(), None);
    });
}

#[test]
fn an_exit_status_is_reported_unchanged() {
    in_child(|| {
        std::panic::set_hook(Box::new(|_| {}));
        let child = fork(own_file_tables(), &[], || panic!("as the test wants")).unwrap();
        assert_eq!(ended(child), ChildStatus::Exit(101));
        let child = fork(own_file_tables(), &[], wait_to_be_killed);
        assert_eq!(reap_child().unwrap(), None);
        kill_child(child.as_ref().copied().unwrap());
        assert_eq!(ended(child.unwrap()), ChildStatus::Signal(9));
    });
}

#[test]
fn a_child_has_what_is_kept_and_nothing_else() {
    in_child(|| {
        let (kept, _far) = UnixStream::pair().unwrap();
        let (_other, _rest) = pipe().unwrap();
        let (mut report, say) = UnixStream::pair().unwrap();
        let child = fork(own_file_tables(), &[say.as_raw_fd(), kept.as_raw_fd()], || {
            let mut open: Vec<i32> = fs::read_dir("/proc/self/fd")
                .unwrap()
                .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
                .filter(|fd| {
                    // The descriptor of the directory that is being read does not count.
                    let name = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
                    *fd > 2 && !name.starts_with("/proc")
                })
                .collect();
            open.sort_unstable();
            (&say).write_all(format!("{open:?}").as_bytes()).unwrap();
            0
        });
        let mut wanted = [say.as_raw_fd(), kept.as_raw_fd()];
        wanted.sort_unstable();
        drop(say);
        let mut text = String::new();
        report.read_to_string(&mut text).unwrap();
        assert_eq!(text, format!("{wanted:?}"));
        assert_eq!(ended(child.unwrap()), ChildStatus::Exit(0));
    });
}

/// A grandchild is killed when its parent is killed.
#[test]
fn no_child_outlives_its_parent() {
    in_child(|| {
        let (mut report, say) = UnixStream::pair().unwrap();
        let parent = fork(own_file_tables(), &[say.as_raw_fd()], || {
            let child = fork(own_file_tables(), &[say.as_raw_fd()], || {
                (&say).write_all(b"1").unwrap();
                wait_to_be_killed();
                (&say).write_all(b"alive").unwrap();
                0
            });
            child.unwrap();
            wait_to_be_killed()
        });
        drop(say);
        report.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        report.read_exact(&mut [0; 1]).expect("the grandchild has started");
        kill_child(parent.unwrap());
        // Both ends are closed, so no writer remains.
        assert_eq!(report.read(&mut [0; 8]).unwrap(), 0);
    });
}

#[test]
fn a_child_that_is_killed_with_the_lock_leaves_it_to_the_next() {
    in_child(|| {
        let lock = SharedLock::new().unwrap();
        let words = SharedWords::new(1).unwrap();
        let holder = fork(own_file_tables(), &[], || {
            let _held = lock.hold().unwrap();
            words[0].store(1, SeqCst);
            wait_to_be_killed()
        });
        wait_until("the child to hold the lock", || words[0].load(SeqCst) == 1);
        let next = fork(own_file_tables(), &[], || {
            let _held = lock.hold().unwrap();
            words[0].store(2, SeqCst);
            0
        });
        let is_held = stays_true(Duration::from_millis(50), || words[0].load(SeqCst) == 1);
        assert!(is_held, "another child has the lock");
        let (holder, next) = (holder.unwrap(), next.unwrap());
        kill_child(holder);
        // The next child may have ended before either status is collected.
        let mut endings = [any_ended(), any_ended()];
        endings.sort_by_key(|&(child, _)| child != holder);
        assert_eq!(endings, [(holder, ChildStatus::Signal(9)), (next, ChildStatus::Exit(0))]);
        drop(lock.hold().unwrap());
    });
}
