//! Wake-ups from other threads.

use crate::{
    fixture::{Fixture, patience},
    subject::Subject,
};
use pollux_event::{Mechanism, Readiness};
use pollux_testkit::Pair;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub fn wake_a_running_wait<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let waker = fixture.waker().expect("waker");
    for _ in 0..3 {
        let waker = waker.clone();
        let sleeper = thread::spawn(move || {
            // Usually the wait has begun by now.
            thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        // Without a timeout: only the wake-up makes it return. The wake-up has no event of its own.
        fixture.wait(None).expect("wait");
        assert_eq!(fixture.next_event(), None);
        sleeper.join().expect("the waking thread");
    }
}

/// "Running or next": a wake-up before the wait is not lost.
pub fn wake_the_next_wait<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let waker = fixture.waker().expect("waker");
    for _ in 0..3 {
        waker.wake();
        fixture.wait(None).expect("wait");
        assert_eq!(fixture.next_event(), None);
    }
    // A second handle works like the first.
    fixture.waker().expect("waker").wake();
    fixture.wait(None).expect("wait");
    assert_eq!(fixture.next_event(), None);
}

/// A wake-up after a wait has returned is for the next wait, even if the events of the first wait are
/// taken only after it.
pub fn wake_before_the_events_are_taken<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let waker = fixture.waker().expect("waker");
    for _ in 0..3 {
        let start = Instant::now();
        waker.wake();
        fixture.wait(Some(patience())).expect("wait");
        waker.wake();
        assert_eq!(fixture.next_event(), None);
        fixture.wait(Some(patience())).expect("wait");
        assert!(start.elapsed() < patience(), "a wake-up was lost");
        assert_eq!(fixture.next_event(), None);
    }
}

/// Many wake-ups make one wait return, and the next sleeps again.
pub fn wake_comes_to_rest<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let waker = fixture.waker().expect("waker");
    (0..100).for_each(|_| waker.wake());
    // At least one wait returns early, and the time is longer than any pause of a busy machine. A few
    // more early returns are allowed, but they must end.
    let start = Instant::now();
    assert_eq!(fixture.events_within(patience()), []);
    assert!(start.elapsed() < patience(), "the wake-up was lost");
    let mut returned_early = 0;
    loop {
        let (time, start) = (Duration::from_millis(30), Instant::now());
        assert_eq!(fixture.events_within(time), []);
        if start.elapsed() >= time {
            break;
        }
        returned_early += 1;
        assert!(returned_early <= 200, "the waker never comes to rest");
    }
}

/// Eight threads wake; after each wake-up the waiting thread sees the writes that the waker made
/// before.
pub fn many_wakers<M: Mechanism>(subject: &Subject) {
    const THREADS: usize = 8;
    const WAKES: usize = 500;
    let mut fixture = Fixture::<M>::new(subject);
    let done = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (waker, done) = (fixture.waker().expect("waker"), done.clone());
            thread::spawn(move || {
                for _ in 0..WAKES {
                    done.fetch_add(1, Ordering::Release);
                    waker.wake();
                }
            })
        })
        .collect();
    while done.load(Ordering::Acquire) < THREADS * WAKES {
        fixture.wait(None).expect("wait");
        assert_eq!(fixture.next_event(), None);
    }
    for thread in threads {
        thread.join().expect("a waking thread");
    }
}

pub fn wake_does_not_hide_events<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::with_buffer(subject, 1), Pair::unix());
    let token = fixture.add_near(&pair);
    let waker = fixture.waker().expect("waker");
    pair.send(b"x");
    let until = Instant::now() + patience();
    // The waker is ready at each wait and the buffer holds one event: it must not displace other events
    // for ever.
    loop {
        assert!(Instant::now() < until, "the waker starves the descriptor");
        waker.wake();
        let events = fixture.events_within(Duration::from_millis(100));
        if let Some(event) = events.first() {
            assert_eq!(event.token, token);
            assert!(event.readiness.contains(Readiness::READABLE));
            return;
        }
    }
}
