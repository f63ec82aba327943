//! How many system calls each mechanism makes, exactly: what the contract suite cannot see.

use pollux_event::{
    Interest, Mechanism, Options, Token,
    mechanism::{poll::Poll, select::Select},
    sys::{self, Call, Counters},
};
use std::{
    io::Write,
    os::{fd::AsFd, unix::net::UnixStream},
    time::Duration,
};

const NOW: Option<Duration> = Some(Duration::ZERO);

/// What `run` called on this thread, as (kind, count) pairs in the order of the counters.
fn calls(run: impl FnOnce()) -> Vec<(Call, u64)> {
    let before: Counters = sys::counters();
    run();
    sys::counters().since(&before).iter().map(|(call, count, _)| (call, count)).collect()
}

/// `n` pairs, the near ends added for reading.
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

fn open<M: Mechanism>() -> M {
    M::open(&Options::default()).expect("every stock kernel has it")
}

fn drain<M: Mechanism>(set: &mut M) -> Vec<Token> {
    std::iter::from_fn(|| set.next_event()).map(|event| event.token).collect()
}

/// The mechanisms whose interest set is in user memory: one call a wait, none for anything else.
fn scanning<M: Mechanism>(wait: Call) {
    let mut set = open::<M>();
    let mut pairs = Vec::new();
    assert_eq!(calls(|| pairs = set_of(&mut set, 10)), []);
    assert_eq!(calls(|| set.modify(pairs[0].2, Interest::WRITE).unwrap()), []);
    assert_eq!(calls(|| set.modify(pairs[0].2, Interest::READ).unwrap()), []);
    for (_, far, _) in &mut pairs[..7] {
        far.write_all(b"x").unwrap();
    }
    let mut tokens = Vec::new();
    let made = calls(|| {
        set.wait(NOW).unwrap();
        tokens = drain(&mut set);
    });
    assert_eq!(made, [(wait, 1)]);
    assert_eq!(tokens.len(), 7);
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
    scanning::<Select>(Call::Select);
}
