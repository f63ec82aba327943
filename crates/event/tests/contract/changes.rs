//! Tests of modify and remove, and of the errors of invalid changes.

use crate::{fixture::Fixture, subject::Subject};
use pollux_event::{Error, Interest, Mechanism, Readiness};
use pollux_testkit::{Pair, drain};
use std::{os::fd::AsFd, time::Duration};

pub fn modify_to_write<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    fixture.expect_silence();
    fixture.modify(token, Interest::WRITE).expect("modify");
    fixture.expect(token, Readiness::WRITABLE);
    fixture.modify(token, Interest::READ).expect("modify");
    fixture.expect_silence();
    pair.send(b"x");
    fixture.expect(token, Readiness::READABLE);
}

/// "A descriptor that is ready already when its interest is modified is reported by the next wait with
/// every mechanism": also by mechanisms that would not report it again.
pub fn modify_reports_if_ready<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    pair.send(b"x");
    fixture.expect(token, Readiness::READABLE);
    for _ in 0..3 {
        fixture.modify(token, Interest::READ).expect("modify");
        fixture.expect(token, Readiness::READABLE);
    }
}

pub fn modify_to_empty_and_back<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    fixture.modify(token, Interest::empty()).expect("modify");
    pair.send(b"x");
    fixture.expect_silence();
    fixture.modify(token, Interest::READ).expect("modify");
    fixture.expect(token, Readiness::READABLE);
    drain(&pair.near);
    fixture.modify(token, Interest::empty()).expect("modify");
    fixture.modify(token, Interest::READ).expect("modify");
    fixture.expect_silence();
    pair.send(b"y");
    fixture.expect(token, Readiness::READABLE);
}

/// An event that is still in the buffer is compared with the present interest: it is dropped or
/// spurious, but the next true event is not lost.
pub fn modify_before_the_event_is_taken<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    pair.send(b"x");
    fixture.wait(Some(Duration::from_secs(5))).expect("wait");
    fixture.modify(token, Interest::WRITE).expect("modify");
    fixture.expect(token, Readiness::WRITABLE);
    fixture.modify(token, Interest::READ).expect("modify");
    fixture.expect(token, Readiness::READABLE);
}

pub fn remove_silences<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    pair.send(b"x");
    fixture.expect(token, Readiness::READABLE);
    fixture.remove(token).expect("remove");
    pair.send(b"y");
    fixture.expect_silence();
    // The descriptor is still open.
    assert_eq!(drain(&pair.near).0, 2);
}

pub fn remove_before_the_event_is_taken<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    pair.send(b"x");
    fixture.wait(Some(Duration::from_secs(5))).expect("wait");
    fixture.remove(token).expect("remove");
    assert_eq!(fixture.next_event(), None);
    fixture.expect_silence();
}

pub fn remove_and_add_again<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    pair.send(b"x");
    let mut former = None;
    for _ in 0..5 {
        let token = fixture.add_near(&pair);
        assert_ne!(Some(token), former, "a token is not given out twice");
        fixture.expect(token, Readiness::READABLE);
        fixture.remove(token).expect("remove");
        former = Some(token);
    }
    fixture.expect_silence();
}

pub fn add_twice<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    let again = fixture.add(pair.near.as_fd(), Interest::WRITE);
    assert!(matches!(again, Err(Error::AlreadyAdded(fd)) if fd == token.fd), "{again:?}");
    // The refusal changed nothing.
    assert_eq!(fixture.len(), 1);
    fixture.expect_silence();
    pair.send(b"x");
    fixture.expect(token, Readiness::READABLE);
}

pub fn unknown_tokens<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let ended = fixture.add_near(&pair);
    fixture.remove(ended).expect("remove");
    for live in [false, true] {
        let change = fixture.modify(ended, Interest::READ);
        assert!(matches!(change, Err(Error::NotAdded(fd)) if fd == ended.fd), "{change:?}");
        let removal = fixture.remove(ended);
        assert!(matches!(removal, Err(Error::NotAdded(fd)) if fd == ended.fd), "{removal:?}");
        if !live {
            // Now the number is registered again: the ended token must still have no effect on it.
            let token = fixture.add_near(&pair);
            pair.send(b"x");
            fixture.expect(token, Readiness::READABLE);
            assert_eq!(fixture.len(), 1);
        }
    }
    assert_eq!(fixture.len(), 1);
}

pub fn length<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    assert!(fixture.is_empty());
    let pairs: Vec<_> = (0..5).map(|_| Pair::unix()).collect();
    let tokens: Vec<_> = pairs.iter().map(|pair| fixture.add_near(pair)).collect();
    assert_eq!(fixture.len(), 5);
    // The waker does not count as a registration.
    fixture.waker().expect("waker").wake();
    fixture.events_within(Duration::ZERO);
    assert_eq!(fixture.len(), 5);
    fixture.remove(tokens[0]).expect("remove");
    fixture.modify(tokens[1], Interest::WRITE).expect("modify");
    assert_eq!(fixture.len(), 4);
    let mut pairs = pairs.into_iter();
    pairs.next();
    let far = fixture.close_near(tokens[1], pairs.next().expect("five pairs"));
    assert_eq!(fixture.len(), 3);
    drop(far);
}
