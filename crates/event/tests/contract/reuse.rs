//! Descriptor numbers are reused at once; an event never belongs to a registration that has ended.
//!
//! Each case has its positive control: a twin that is not closed, whose event is reported. So silence
//! about the closed one is not caused by the lack of an event.

use crate::{fixture::Fixture, subject::Subject};
use pollux_event::{Interest, Mechanism, Readiness, Token};
use pollux_testkit::{Pair, drain};
use std::{
    os::fd::{AsRawFd, OwnedFd, RawFd},
    time::{Duration, Instant},
};

/// A fresh pair whose near end has the number `wanted`, which must be free. Other threads of the
/// harness open no descriptors at the same time.
fn pair_with_number(wanted: RawFd) -> Pair {
    let mut spare = Vec::new();
    // The lowest free number is given out first (POSIX), so the wanted number appears in the end.
    for _ in 0..10_000 {
        let Pair { near, far } = Pair::unix();
        if near.as_raw_fd() == wanted {
            return Pair { near, far };
        }
        if far.as_raw_fd() == wanted {
            return Pair { near: far, far: near };
        }
        spare.push((near, far));
    }
    panic!("number {wanted} was not given out again");
}

/// Registers a new descriptor with the number of `ended`, which is closed, and checks that only its own
/// events reach it: silence (except for `others`) until it is written to.
fn check_reuser<M: Mechanism>(
    fixture: &mut Fixture<M>,
    ended: Token,
    others: &[Token],
) -> (Token, Pair) {
    let reuser = pair_with_number(ended.fd);
    let token = fixture.add_near(&reuser);
    assert_eq!(token.fd, ended.fd);
    assert_ne!(token, ended);
    while let Some(event) = fixture.next_event() {
        assert!(others.contains(&event.token), "from before the reuse: {event:?}");
    }
    let until = Instant::now() + crate::fixture::SILENCE;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        for event in fixture.events_within(left) {
            assert!(others.contains(&event.token), "before anything was sent: {event:?}");
        }
    }
    reuser.send(b"x");
    fixture.expect_beside(token, Readiness::READABLE, others);
    assert_eq!(drain(&reuser.near).0, 1);
    (token, reuser)
}

/// Two twins, both ready, and the tokens in the order in which the mechanism hands them out.
fn ready_twins<M: Mechanism>(fixture: &mut Fixture<M>) -> [(Token, Pair); 2] {
    [(); 2].map(|()| {
        let pair = Pair::unix();
        let token = fixture.add_near(&pair);
        pair.send(b"x");
        (token, pair)
    })
}

/// While the first event of a batch is handled, the second one's descriptor is closed and its
/// number registered again.
pub fn number_reused_within_a_batch<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    // Positive control: a batch holds both when nothing is closed.
    let mut control = Fixture::<M>::new(subject);
    let twins = ready_twins(&mut control);
    let batch = control.events_within(Duration::from_secs(5));
    drop(twins);
    if batch.len() == 1 {
        return Err("hands out one event a wait: no batch to be stale in".into());
    }
    assert_eq!(batch.len(), 2);

    let mut fixture = Fixture::<M>::new(subject);
    let [one, other] = ready_twins(&mut fixture);
    fixture.wait(Some(Duration::from_secs(5))).expect("wait");
    let first = fixture.next_event().expect("both are ready");
    let (kept, closed) = if first.token == one.0 { (one, other) } else { (other, one) };
    assert_eq!(first.token, kept.0);
    drain(&kept.1.near);
    let far = fixture.close_near(closed.0, closed.1);
    let reuser = check_reuser(&mut fixture, closed.0, &[kept.0]);
    drop(fixture);
    drop((reuser, far));
    Ok(())
}

/// The kernel has queued an event that no wait has fetched when the descriptor is closed.
pub fn number_reused_across_batches<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let [kept, closed] = ready_twins(&mut fixture);
    // From here on both are plain registrations, without the pending report of the add.
    fixture.expect_all(&[kept.0, closed.0]);
    for (_, pair) in [&kept, &closed] {
        drain(&pair.near);
    }
    fixture.expect_silence();
    for (_, pair) in [&kept, &closed] {
        pair.send(b"y");
    }
    let far = fixture.close_near(closed.0, closed.1);
    let reuser = pair_with_number(closed.0.fd);
    let token = fixture.add_near(&reuser);
    // Positive control: the twin's event, which was queued in the same way, is reported.
    fixture.expect(kept.0, Readiness::READABLE);
    drain(&kept.1.near);
    fixture.expect_silence();
    reuser.send(b"z");
    fixture.expect(token, Readiness::READABLE);
    drop(far);
}

pub fn number_reused_after_remove<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let [kept, removed] = ready_twins(&mut fixture);
    fixture.expect_all(&[kept.0, removed.0]);
    kept.1.send(b"y");
    removed.1.send(b"y");
    fixture.remove(removed.0).expect("remove");
    let Pair { near, far } = removed.1;
    drop(near);
    let reuser = check_reuser(&mut fixture, removed.0, &[kept.0]);
    // A late byte to the closed descriptor causes no event.
    let _ = rustix::io::write(&far, b"late");
    drain(&kept.1.near);
    fixture.expect_silence();
    drop(reuser);
}

/// Added, closed and added again under the same number with no wait between: mechanisms that
/// gather changes must not lose or mix them.
pub fn number_reused_before_any_wait<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let first = Pair::unix();
    let mut token = fixture.add_near(&first);
    let mut fars = vec![fixture.close_near(token, first)];
    for _ in 0..5 {
        let next = pair_with_number(token.fd);
        next.send(b"stale");
        token = fixture.add_near(&next);
        fars.push(fixture.close_near(token, next));
    }
    let reuser = check_reuser(&mut fixture, token, &[]);
    assert_eq!(fixture.len(), 1);
    drop(reuser);
}

pub fn closed_within_a_batch<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let pairs: Vec<_> = (0..8).map(|_| Pair::unix()).collect();
    let tokens: Vec<_> = pairs.iter().map(|pair| fixture.add_near(pair)).collect();
    pairs.iter().for_each(|pair| pair.send(b"x"));
    let mut pairs: Vec<_> = pairs.into_iter().map(Some).collect();
    let mut fars: Vec<OwnedFd> = Vec::new();
    // Each event's handler closes its own descriptor and its right neighbour's.
    let until = Instant::now() + crate::fixture::patience();
    while fixture.len() > 0 {
        assert!(Instant::now() < until, "{} were never reported", fixture.len());
        fixture.wait(Some(Duration::from_secs(1))).expect("wait");
        while let Some(event) = fixture.next_event() {
            let index = tokens.iter().position(|&token| token == event.token).expect("known");
            assert!(pairs[index].is_some(), "reported after its close: {event:?}");
            for index in [index, (index + 1) % pairs.len()] {
                if let Some(pair) = pairs[index].take() {
                    fars.push(fixture.close_near(tokens[index], pair));
                }
            }
        }
    }
    assert_eq!(fars.len(), 8);
}

pub fn every_event_of_a_batch_closed<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let [one, other] = ready_twins(&mut fixture);
    fixture.wait(Some(Duration::from_secs(5))).expect("wait");
    let fars = [one, other].map(|(token, pair)| fixture.close_near(token, pair));
    assert_eq!(fixture.next_event(), None);
    fixture.expect_silence();
    drop(fars);
}

/// Reuses one number many times, like the lowest numbers of a busy server.
pub fn number_reused_over_and_over<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    for round in 0..300 {
        let pair = Pair::unix();
        let token = fixture.add_near(&pair);
        assert_eq!(token.fd, pair.near.as_raw_fd());
        if round % 3 == 0 {
            fixture.modify(token, Interest::READ | Interest::WRITE).expect("modify");
        }
        pair.send(b"request");
        fixture.expect(token, Readiness::READABLE);
        assert_eq!(drain(&pair.near).0, 7);
        if round % 2 == 0 {
            // These bytes are never read: the event is queued when the descriptor is closed.
            pair.send(b"more");
        }
        let far = fixture.close_near(token, pair);
        drop(far);
    }
    assert!(fixture.is_empty());
    fixture.expect_silence();
}
