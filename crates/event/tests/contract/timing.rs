//! Timeouts and interruptions. Upper bounds are generous: only hanging is an error there.

use crate::{
    fixture::{Fixture, patience},
    subject::Subject,
};
use pollux_event::{Mechanism, Readiness};
use pollux_testkit::{Pair, signals::Interrupter};
use std::{
    thread,
    time::{Duration, Instant},
};

pub fn zero_does_not_wait<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::pipe());
    fixture.add_near(&pair);
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(fixture.events_within(Duration::ZERO), []);
    }
    assert!(start.elapsed() < patience(), "a hundred waits of zero took {:?}", start.elapsed());
}

/// "A finite time is rounded up": never early. With an empty set and with a quiet descriptor (a
/// pipe's reading end, which is never writable, so that nothing may wake the wait).
pub fn finite_is_never_early<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::pipe());
    for filled in [false, true] {
        if filled {
            fixture.add_near(&pair);
            // Events caused by the add itself are not part of the measured waits.
            fixture.events_within(Duration::ZERO);
        }
        for micros in [1, 300, 999, 1_000, 1_001, 1_500, 10_000, 25_300] {
            let time = Duration::from_micros(micros);
            let start = Instant::now();
            assert_eq!(fixture.wait(Some(time)).expect("wait"), 0);
            assert!(start.elapsed() >= time, "{time:?} were over after {:?}", start.elapsed());
            assert_eq!(fixture.next_event(), None);
        }
    }
}

pub fn infinite_waits_for_data<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::pipe());
    let token = fixture.add_near(&pair);
    fixture.events_within(Duration::ZERO);
    let writer = thread::spawn(move || {
        // Usually the wait has begun by now.
        thread::sleep(Duration::from_millis(50));
        pair.send(b"x");
        pair
    });
    let start = Instant::now();
    let mut events = Vec::new();
    while events.is_empty() && start.elapsed() < patience() {
        fixture.wait(None).expect("wait");
        events.extend(std::iter::from_fn(|| fixture.next_event()));
    }
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].token, token);
    assert!(events[0].readiness.contains(Readiness::READABLE));
    writer.join().expect("the writing thread");
}

/// Times beyond what the system call can hold are cut, not wrapped or refused.
pub fn longest_time_is_accepted<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::pipe());
    let token = fixture.add_near(&pair);
    for time in [Duration::MAX, Duration::from_secs(u64::from(u32::MAX) * 1000)] {
        pair.send(b"x");
        fixture.wait(Some(time)).expect("wait");
        let event = fixture.next_event().expect("the pipe is readable");
        assert_eq!(event.token, token);
        while fixture.next_event().is_some() {}
    }
}

/// "Returns early with 0 on EINTR, so that the caller can look at what its signal handler left."
pub fn interrupted_wait_returns_early<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::pipe());
    let token = fixture.add_near(&pair);
    fixture.events_within(Duration::ZERO);
    let interrupter = Interrupter::start(Duration::from_millis(10));
    for _ in 0..5 {
        let start = Instant::now();
        assert_eq!(fixture.wait(Some(patience())).expect("EINTR is not an error"), 0);
        assert!(start.elapsed() < patience(), "the signal did not interrupt the wait");
        assert_eq!(fixture.next_event(), None);
    }
    drop(interrupter);
    // The interruption has not damaged the set.
    pair.send(b"x");
    fixture.expect(token, Readiness::READABLE);
}

/// A timeout of zero does not wait when something is ready either.
pub fn busy_set_keeps_the_zero<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::unix());
    let token = fixture.add_near(&pair);
    pair.send(b"x");
    let until = Instant::now() + patience();
    loop {
        let events = fixture.events_within(Duration::ZERO);
        if let Some(event) = events.first() {
            assert_eq!(event.token, token);
            return;
        }
        assert!(Instant::now() < until, "waits of zero never report what is ready");
    }
}
