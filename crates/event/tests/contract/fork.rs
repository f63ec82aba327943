//! "After fork(2), in the child: a new kernel object with the same interest set and the same
//! tokens, so that parent and child no longer share."

use crate::{
    fixture::{Fixture, patience},
    subject::Subject,
};
use pollux_event::{Capabilities, Interest, Mechanism, Readiness};
use pollux_testkit::{Pair, drain, in_child};
use std::time::{Duration, Instant};

pub fn child_reopens<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let (ready, quiet, parents) = (Pair::unix(), Pair::unix(), Pair::unix());
    let tokens = [fixture.add_near(&ready), fixture.add_near(&quiet)];
    fixture.modify(tokens[1], Interest::READ | Interest::WRITE).expect("modify");
    ready.send(b"x");
    fixture.events_within(Duration::ZERO);
    in_child(|| {
        fixture.reopen_after_fork().expect("reopen");
        assert_eq!(fixture.len(), 2);
        // Same tokens, same interest; ready descriptors are reported, regardless of the parent's
        // events.
        fixture.expect_beside(tokens[0], Readiness::READABLE, &tokens);
        fixture.modify(tokens[1], Interest::READ).expect("modify");
        drain(&ready.near);
        quiet.send(b"y");
        fixture.expect_beside(tokens[1], Readiness::READABLE, &tokens);
        // A later add works as before.
        let fresh = Pair::unix();
        let token = fixture.add_near(&fresh);
        fresh.send(b"z");
        fixture.expect_beside(token, Readiness::READABLE, &tokens);
    });
    // The parent's set is unchanged.
    let token = fixture.add_near(&parents);
    parents.send(b"p");
    fixture.expect_beside(token, Readiness::READABLE, &tokens);
    if !subject.has(Capabilities::ONE_OWNER) {
        drain(&quiet.near);
        quiet.send(b"again");
        fixture.expect_beside(tokens[1], Readiness::READABLE, &[tokens[0], token]);
    }
}

pub fn child_changes_are_its_own<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    if subject.has(Capabilities::ONE_OWNER) {
        return Err("a descriptor belongs to one set only: the child takes it over".into());
    }
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::unix());
    let token = fixture.add_near(&pair);
    fixture.events_within(Duration::ZERO);
    in_child(|| {
        fixture.reopen_after_fork().expect("reopen");
        fixture.remove(token).expect("remove");
        fixture.events_within(Duration::ZERO);
        pair.send(b"x");
        fixture.expect_silence();
    });
    fixture.expect(token, Readiness::READABLE);
    Ok(())
}

/// "Wakers of the parent do not wake the child."
pub fn waker_of_the_parent_is_its_own<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let waker = fixture.waker().expect("waker");
    in_child(|| {
        fixture.reopen_after_fork().expect("reopen");
        waker.wake();
        let (time, start) = (Duration::from_millis(50), Instant::now());
        assert_eq!(fixture.events_within(time), []);
        assert!(start.elapsed() >= time, "the parent's waker woke the child");
        fixture.waker().expect("waker").wake();
        fixture.wait(Some(patience())).expect("wait");
        assert!(start.elapsed() < patience(), "the child's own waker does not wake it");
    });
    // The waker does wake the parent, although the child used it.
    let start = Instant::now();
    fixture.wait(Some(patience())).expect("wait");
    assert!(start.elapsed() < patience(), "the wake-up was lost to the child");
}
