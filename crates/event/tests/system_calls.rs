//! The exact number of system calls that each mechanism makes: the contract suite cannot check it.

use pollux_event::{
    Error, Interest, Mechanism, MechanismSpec, Options, Readiness, Token,
    mechanism::{
        devpoll::DevPoll,
        epoll::{Epoll2, EpollCtlv, EpollEdge, EpollLevel},
        poll::Poll,
        select::Select,
        uring_poll::UringPoll,
    },
};
use pollux_sys::{self as sys, Call, Counters};
use pollux_testkit::signals::Interrupter;
use std::{
    io::{Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

/// The system calls that were made, each with its count, in the order of the counters.
type Calls = Vec<(Call, u64)>;

const NOW: Option<Duration> = Some(Duration::ZERO);

/// The system calls that `run` made on this thread.
fn calls(run: impl FnOnce()) -> Calls {
    let before: Counters = sys::counters();
    run();
    sys::counters().since(&before).iter().map(|(call, count, _)| (call, count)).collect()
}

/// `n` pairs of sockets; the near ends are added for reading.
fn set_of<M: Mechanism>(set: &mut M, n: usize) -> Vec<(UnixStream, UnixStream, Token)> {
    (0..n)
        .map(|_| {
            let (near, far) = UnixStream::pair().expect("a pair");
            near.set_nonblocking(true).expect("non-blocking");
            let token = set.add(near.as_fd(), Interest::READ).expect("added");
            (near, far, token)
        })
        .collect()
}

/// Opens the mechanism. Where the kernel does not offer it, prints the reason and returns `None`.
fn open<M: Mechanism>() -> Option<M> {
    open_with(&Options::default())
}

/// The same with these options.
fn open_as<M: Mechanism>(spec: &str) -> Option<M> {
    open_with(&spec.parse::<MechanismSpec>().expect("a spec").options())
}

fn open_with<M: Mechanism>(options: &Options) -> Option<M> {
    match M::open(options) {
        Ok(set) => Some(set),
        Err(error @ Error::Unavailable { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Waits and takes all events. Returns the system calls and the number of events.
fn wait_once<M: Mechanism>(set: &mut M, timeout: Option<Duration>) -> (Calls, usize) {
    let mut events = 0;
    let made = calls(|| {
        set.wait(timeout).unwrap();
        events = drain(set).len();
    });
    (made, events)
}

fn drain<M: Mechanism>(set: &mut M) -> Vec<Token> {
    std::iter::from_fn(|| set.next_event()).map(|event| event.token).collect()
}

/// The mechanisms whose interest set is in user memory: one system call per wait, none for anything
/// else.
fn scanning<M: Mechanism>(wait: Call) {
    let Some(mut set) = open::<M>() else { return };
    let mut pairs = Vec::new();
    assert_eq!(calls(|| pairs = set_of(&mut set, 10)), []);
    assert_eq!(calls(|| set.modify(pairs[0].2, Interest::WRITE).unwrap()), []);
    assert_eq!(calls(|| set.modify(pairs[0].2, Interest::READ).unwrap()), []);
    for (_, far, _) in &mut pairs[..7] {
        far.write_all(b"x").unwrap();
    }
    assert_eq!(wait_once(&mut set, NOW), (vec![(wait, 1)], 7));
    let (near, _far, token) = pairs.pop().unwrap();
    assert_eq!(calls(|| set.close(token, near.into()).unwrap()), [(Call::Close, 1)]);
    let (_near, _far, token) = pairs.pop().unwrap();
    assert_eq!(calls(|| set.remove(token).unwrap()), []);
}

#[test]
fn poll_makes_one_call_a_wait_and_none_for_a_change() {
    scanning::<Poll>(Call::Poll);
}

#[test]
fn select_makes_one_call_a_wait_and_none_for_a_change() {
    // select(2) supports only 1,024 descriptors, so other tests must not use them up.
    pollux_testkit::alone!(select_makes_one_call_a_wait_and_none_for_a_change);
    scanning::<Select>(Call::Select);
}

/// One descriptor of the set is closed without the mechanism's knowledge, a second one is ready.
fn beside_a_closed_one<M: Mechanism>(expected: &[(Call, u64)]) {
    let Some(mut set) = open::<M>() else { return };
    let mut pairs = set_of(&mut set, 3);
    let (near, _far, closed) = pairs.remove(0);
    drop(near);
    pairs[0].1.write_all(b"x").unwrap();
    // The closed one ends the wait, and it does so again until it is removed.
    for _ in 0..2 {
        assert_eq!(calls(|| assert_eq!(set.wait(None).unwrap(), 2)), expected);
        let mut events: Vec<_> = std::iter::from_fn(|| set.next_event()).collect();
        events.sort_unstable_by_key(|event| event.token != closed);
        let events: Vec<_> = events.iter().map(|event| (event.token, event.readiness)).collect();
        assert_eq!(events, [(closed, Readiness::INVALID), (pairs[0].2, Readiness::READABLE)]);
    }
    set.remove(closed).unwrap();
    assert_eq!(wait_once(&mut set, NOW).1, 1);
}

/// Regression: select(2) fails as a whole if one descriptor is not open, and no ready one was reported then.
#[test]
fn a_descriptor_that_is_not_open_hides_no_ready_one() {
    // No other test may open a descriptor with the number of the closed one.
    pollux_testkit::alone!(a_descriptor_that_is_not_open_hides_no_ready_one);
    beside_a_closed_one::<Poll>(&[(Call::Poll, 1)]);
    beside_a_closed_one::<Select>(&[(Call::Fcntl, 3), (Call::Select, 2)]);
}

/// epoll: each addition, change and removal is a call; a close is only a close.
fn immediate<M: Mechanism>(modify: &[(Call, u64)]) {
    let Some(mut set) = open::<M>() else { return };
    let mut pairs = Vec::new();
    assert_eq!(calls(|| pairs = set_of(&mut set, 10)), [(Call::EpollCtl, 10)]);
    assert_eq!(wait_once(&mut set, NOW).0, [(Call::EpollWait, 1)]);
    assert_eq!(calls(|| set.modify(pairs[0].2, Interest::WRITE).unwrap()), modify);
    let (_near, _far, token) = pairs.pop().unwrap();
    assert_eq!(calls(|| set.remove(token).unwrap()), [(Call::EpollCtl, 1)]);
    let (near, _far, token) = pairs.pop().unwrap();
    assert_eq!(calls(|| set.close(token, near.into()).unwrap()), [(Call::Close, 1)]);
}

#[test]
fn epoll_makes_one_call_a_change() {
    immediate::<EpollLevel>(&[(Call::EpollCtl, 1)]);
    immediate::<EpollEdge>(&[(Call::EpollCtl, 1)]);
}

#[test]
fn epoll2_makes_none_for_a_change() {
    immediate::<Epoll2>(&[]);
}

#[test]
fn epoll_ctlv_sends_all_changes_in_one_call() {
    let Some(mut set) = open::<EpollCtlv>() else { return };
    let mut pairs = Vec::new();
    let with_changes = vec![(Call::EpollWait, 1), (Call::IoUringEnter, 1)];
    let without = vec![(Call::EpollWait, 1)];
    assert_eq!(calls(|| pairs = set_of(&mut set, 300)), []);
    assert_eq!(wait_once(&mut set, NOW), (with_changes.clone(), 0));
    assert_eq!(wait_once(&mut set, NOW), (without.clone(), 0));
    let all = |set: &mut EpollCtlv, interest| {
        for (_, _, token) in &pairs {
            set.modify(*token, interest).unwrap();
        }
    };
    assert_eq!(calls(|| all(&mut set, Interest::WRITE)), []);
    assert_eq!(wait_once(&mut set, NOW), (with_changes.clone(), 300));
    // Several changes of one descriptor are one change ...
    all(&mut set, Interest::READ | Interest::WRITE);
    all(&mut set, Interest::READ);
    assert_eq!(wait_once(&mut set, NOW), (with_changes, 0));
    let sent = |set: &EpollCtlv| set.statistics()[1];
    assert_eq!(sent(&set), ("changes_sent", 900));
    // ... and no change when they return to the interest that the kernel holds.
    all(&mut set, Interest::WRITE);
    all(&mut set, Interest::READ);
    assert_eq!(wait_once(&mut set, NOW), (without, 0));
    assert_eq!(sent(&set), ("changes_sent", 900));
}

#[test]
fn epoll_ctlv_removes_before_it_closes_unless_the_kernel_never_knew() {
    let Some(mut set) = open::<EpollCtlv>() else { return };
    let (near, _far, token) = set_of(&mut set, 1).pop().unwrap();
    assert_eq!(calls(|| set.close(token, near.into()).unwrap()), [(Call::Close, 1)]);
    let (near, _far, token) = set_of(&mut set, 1).pop().unwrap();
    set.wait(NOW).unwrap();
    let both = [(Call::Close, 1), (Call::EpollCtl, 1)];
    assert_eq!(calls(|| set.close(token, near.into()).unwrap()), both);
    let (_near, _far, token) = set_of(&mut set, 1).pop().unwrap();
    assert_eq!(calls(|| set.remove(token).unwrap()), []);
}

/// Every way to use /dev/poll: the spec, and the calls of a wait with changes and without.
fn every_devpoll(test: impl Fn(&mut DevPoll, Calls, Calls)) {
    for update in ["separate", "combined"] {
        for results in ["copy", "mmap"] {
            for hints in ["on", "off"] {
                let spec = format!("devpoll:update={update},results={results},hints={hints}");
                let Some(mut set) = open_as::<DevPoll>(&spec) else { return };
                let without = vec![(Call::Ioctl, 1)];
                let mut with_changes = without.clone();
                if update == "separate" {
                    with_changes.push((Call::Write, 1));
                }
                test(&mut set, with_changes, without);
            }
        }
    }
}

fn figure(set: &DevPoll, name: &str) -> u64 {
    let figures = set.statistics();
    figures.iter().find(|(known, _)| *known == name).expect("a figure of this name").1
}

#[test]
fn devpoll_sends_all_changes_in_one_call() {
    every_devpoll(|set, with_changes, without| {
        let mut pairs = Vec::new();
        assert_eq!(calls(|| pairs = set_of(set, 300)), []);
        assert_eq!(wait_once(set, NOW), (with_changes.clone(), 0));
        assert_eq!(wait_once(set, NOW), (without.clone(), 0));
        let all = |set: &mut DevPoll, interest| {
            for (_, _, token) in &pairs {
                set.modify(*token, interest).unwrap();
            }
        };
        assert_eq!(calls(|| all(set, Interest::WRITE)), []);
        assert_eq!(wait_once(set, NOW), (with_changes.clone(), 300));
        // Several changes of one descriptor are one change ...
        all(set, Interest::READ | Interest::WRITE);
        all(set, Interest::READ);
        assert_eq!(wait_once(set, NOW), (with_changes, 0));
        assert_eq!(figure(set, "changes_sent"), 900);
        // ... and no change when they return to the interest that the kernel holds.
        all(set, Interest::WRITE);
        all(set, Interest::READ);
        assert_eq!(wait_once(set, NOW), (without, 0));
        assert_eq!(figure(set, "changes_sent"), 900);
        assert_eq!(figure(set, "entries"), 300);
    });
}

#[test]
fn devpoll_closes_in_one_call_and_removes_with_the_wait() {
    every_devpoll(|set, with_changes, without| {
        // A descriptor that the kernel was never given is not removed from it either.
        let (near, _far, token) = set_of(set, 1).pop().unwrap();
        assert_eq!(calls(|| set.close(token, near.into()).unwrap()), [(Call::Close, 1)]);
        assert_eq!(wait_once(set, NOW), (without.clone(), 0));
        let mut pairs = set_of(set, 100);
        set.wait(NOW).unwrap();
        let (_kept, _kept_far, _) = pairs.pop().unwrap();
        let mut fars = Vec::new();
        let made = calls(|| {
            for (near, far, token) in pairs.drain(..) {
                set.close(token, near.into()).unwrap();
                fars.push(far);
            }
        });
        assert_eq!(made, [(Call::Close, 99)]);
        for far in &mut fars {
            far.set_nonblocking(true).unwrap();
            assert_eq!(far.read(&mut [0]).unwrap(), 0, "the peer sees the end at once");
        }
        assert_eq!(wait_once(set, NOW), (with_changes, 0));
        assert_eq!(figure(set, "entries"), 1);
        assert_eq!(wait_once(set, NOW), (without, 0));
    });
}

/// More changes than a batch holds: the last batch is sent with the wait where possible.
#[test]
fn devpoll_sends_many_changes_in_batches() {
    pollux_testkit::raise_descriptor_limit();
    every_devpoll(|set, with_changes, _| {
        let _pairs = set_of(set, 2500);
        let writes = 2 + with_changes.iter().filter(|(call, _)| *call == Call::Write).count();
        let expected = vec![(Call::Ioctl, 1), (Call::Write, writes as u64)];
        assert_eq!(wait_once(set, NOW), (expected, 0));
        assert_eq!(figure(set, "entries"), 2500);
    });
}

/// The paper's point (provos §3.2): the number of drivers that a wait queries depends on the ready
/// descriptors.
#[test]
fn devpoll_queries_only_drivers_with_a_hint() {
    every_devpoll(|set, _, _| {
        let mut pairs = set_of(set, 300);
        // A wake-up is a hint like any other: no entry that must be polled at every scan.
        set.waker().unwrap();
        assert_eq!(wait_once(set, NOW).1, 0);
        let (all, scans) = (figure(set, "driver_polls"), figure(set, "scans"));
        pairs[7].1.write_all(b"x").unwrap();
        assert_eq!(wait_once(set, None).1, 1);
        let (queried, scans) = (figure(set, "driver_polls") - all, figure(set, "scans") - scans);
        if set.statistics().contains(&("hinted", 301)) {
            assert_eq!((queried, scans), (1, 1));
        } else {
            assert_eq!(figure(set, "hinted"), 0);
            assert!(queried >= 301, "{queried} of 301 queried in {scans} scans without hints");
        }
    });
}

/// A signal ends the wait, but the changes that were sent with the wait were applied: they are not sent
/// again.
#[test]
fn devpoll_sends_no_change_twice_after_a_signal() {
    every_devpoll(|set, with_changes, without| {
        let mut pairs = set_of(set, 300);
        let interrupter = Interrupter::start(Duration::from_millis(50));
        assert_eq!(wait_once(set, Some(Duration::from_secs(600))), (with_changes, 0));
        drop(interrupter);
        assert_eq!((figure(set, "changes_sent"), figure(set, "change_batches")), (300, 1));
        assert_eq!(wait_once(set, NOW), (without, 0));
        assert_eq!((figure(set, "changes_sent"), figure(set, "change_batches")), (300, 1));
        pairs[299].1.write_all(b"x").unwrap();
        assert_eq!(wait_once(set, None).1, 1);
    });
}

/// A /dev/poll inside another is refused (ELOOP). That descriptor is reported, the rest of its batch
/// takes effect, and a refused number keeps nothing of its former use.
#[test]
fn devpoll_reports_descriptors_that_the_kernel_refuses() {
    every_devpoll(|set, _, _| {
        let mut pairs = set_of(set, 3);
        let (former, _far, token) = set_of(set, 1).pop().unwrap();
        set.wait(NOW).unwrap();
        assert_eq!(figure(set, "entries"), 4);
        set.remove(token).unwrap();
        // dup2(2) replaces the descriptor in one step, because other tests open descriptors at the same
        // time.
        let mut refused = OwnedFd::from(former);
        rustix::io::dup2(sys::devpoll_open().unwrap(), &mut refused).unwrap();
        let refused_token = set.add(refused.as_fd(), Interest::READ).unwrap();
        pairs.extend(set_of(set, 3));
        for (_, far, _) in &mut pairs {
            far.write_all(b"x").unwrap();
        }
        assert_eq!(set.wait(None).unwrap(), 7);
        let events: Vec<_> = std::iter::from_fn(|| set.next_event()).collect();
        let of_refused: Vec<_> = events.iter().filter(|e| e.token == refused_token).collect();
        assert_eq!((events.len(), of_refused.len()), (7, 1), "{events:?}");
        assert_eq!(of_refused[0].readiness, Readiness::ERROR);
        assert_eq!((figure(set, "entries"), figure(set, "changes_refused")), (6, 1));
        // Reported once; the only remedy is to close it.
        assert_eq!(wait_once(set, NOW).1, 6);
        set.close(refused_token, refused).unwrap();
        assert_eq!(wait_once(set, NOW).1, 6);
        assert_eq!(figure(set, "entries"), 6);
    });
}

#[test]
fn uring_poll_takes_completions_without_a_call() {
    let Some(mut set) = open::<UringPoll>() else { return };
    let mut pairs = Vec::new();
    let one = vec![(Call::IoUringEnter, 1)];
    assert_eq!(calls(|| pairs = set_of(&mut set, 300)), []);
    assert_eq!(wait_once(&mut set, NOW), (one.clone(), 0));
    // With nothing queued and nothing held back, even a check costs no system call.
    assert_eq!(wait_once(&mut set, NOW), (vec![], 0));
    // The completions are posted at the end of this thread's next system call, here the write's.
    for (_, far, _) in &mut pairs {
        far.write_all(b"x").unwrap();
    }
    assert_eq!(wait_once(&mut set, None), (vec![], 300));
    for (_, _, token) in &pairs {
        set.modify(*token, Interest::WRITE).unwrap();
    }
    assert_eq!(wait_once(&mut set, None), (one.clone(), 300));
    assert_eq!(wait_once(&mut set, Some(Duration::from_millis(1))), (one, 0));
}

#[test]
fn uring_poll_closes_in_one_call_and_cancels_with_the_wait() {
    let Some(mut set) = open::<UringPoll>() else { return };
    let pairs = set_of(&mut set, 100);
    set.wait(NOW).unwrap();
    let mut fars = Vec::new();
    let made = calls(|| {
        for (near, far, token) in pairs {
            set.close(token, near.into()).unwrap();
            fars.push(far);
        }
    });
    assert_eq!(made, [(Call::Close, 100)]);
    // The completions of the cancellations do not end a wait.
    let (made, events) = wait_once(&mut set, Some(Duration::from_millis(20)));
    assert_eq!((made, events), (vec![(Call::IoUringEnter, 1)], 0));
    for far in &mut fars {
        far.set_nonblocking(true).unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "the peer sees the end");
    }
}

/// A wake-up costs the waiting side no further system call where each wake-up is an edge; elsewhere the
/// wait must read it.
#[test]
fn a_wake_up_is_read_only_where_it_must_be() {
    fn woken<M: Mechanism>(reads: u64) {
        let Some(mut set) = open::<M>() else { return };
        let waker = set.waker().unwrap();
        for _ in 0..3 {
            waker.wake();
            let before = sys::counters().of(Call::Read);
            assert!(set.wait(None).unwrap() > 0);
            assert_eq!(sys::counters().of(Call::Read) - before, reads);
            assert_eq!(calls(|| assert_eq!(set.next_event(), None)), []);
            assert_eq!(set.wait(NOW).unwrap(), 0);
        }
    }
    woken::<Select>(1);
    woken::<Poll>(1);
    woken::<EpollLevel>(0);
    woken::<EpollEdge>(0);
    woken::<Epoll2>(0);
    woken::<EpollCtlv>(0);
    woken::<UringPoll>(0);
    woken::<DevPoll>(1);
}
