//! Tests of readiness at registration, level and edge, partial reads, and both directions.

use crate::{
    fixture::{BROKEN_SILENCE, Fixture},
    subject::Subject,
};
use pollux_event::{Interest, Mechanism, Readiness};
use pollux_testkit::{Pair, drain, fill, pairs::End, poll_now};
use rustix::event::PollFlags;
use std::time::{Duration, Instant};

/// The reason why a mechanism may report an event twice.
const RESTLESS: &str = "with these options it changes sides at once, and reports again then";

const BOTH: Interest = Interest::READ.union(Interest::WRITE);

/// "A descriptor that is ready already when it is added is reported by the next wait."
pub fn ready_when_added<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    pair.send(b"x");
    let token = fixture.add_near(&pair);
    let found = fixture.expect(token, Readiness::READABLE);
    assert!(!found.intersects(Readiness::HANGUP | Readiness::ERROR), "{found:?}");
}

pub fn silent_until_data<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    fixture.expect_silence();
    pair.send(b"x");
    fixture.expect(token, Readiness::READABLE);
}

pub fn data_after_add<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    for round in 0..3 {
        pair.send(b"hello");
        fixture.expect(token, Readiness::READABLE);
        assert_eq!(drain(&pair.near), (5, End::WouldBlock), "round {round}");
        fixture.expect_silence();
    }
}

/// "Without EDGE, a descriptor is reported at every wait for as long as it is ready."
pub fn level_reports_again<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    pair.send(b"x");
    fixture.expect(token, Readiness::READABLE);
    for _ in 0..3 {
        let events = fixture.events_within(Duration::from_secs(5));
        assert!(events.iter().any(|event| event.token == token), "not reported at every wait");
    }
    drain(&pair.near);
    fixture.expect_silence();
}

/// "Events come once per arrival; a descriptor that stays ready is not reported again."
pub fn edge_reports_once<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    if subject.restless {
        return Err(RESTLESS.into());
    }
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    fixture.expect_silence();
    pair.send(b"x");
    assert_eq!(fixture.expect_all(&[token])[&token], 1, "reported more than once in one batch");
    fixture.expect_silence();
    Ok(())
}

pub fn edge_reports_new_data<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    if subject.restless {
        return Err(RESTLESS.into());
    }
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    pair.send(b"x");
    for _ in 0..3 {
        fixture.expect(token, Readiness::READABLE);
        fixture.expect_silence();
        pair.send(b"y");
    }
    fixture.expect(token, Readiness::READABLE);
    assert_eq!(drain(&pair.near), (4, End::WouldBlock));
    Ok(())
}

/// "The caller must read until WouldBlock or remember that it did not: no further event comes for
/// what it left."
pub fn edge_after_partial_read<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    pair.send(b"abcdef");
    fixture.expect(token, Readiness::READABLE);
    assert_eq!(rustix::io::read(&pair.near, &mut [0; 2]), Ok(2));
    fixture.expect_silence();
    pair.send(b"gh");
    fixture.expect(token, Readiness::READABLE);
    assert_eq!(drain(&pair.near), (6, End::WouldBlock));
}

pub fn level_after_partial_read<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    pair.send(b"abcdef");
    for _ in 0..3 {
        fixture.expect(token, Readiness::READABLE);
        assert_eq!(rustix::io::read(&pair.near, &mut [0; 2]), Ok(2));
    }
    fixture.expect_silence();
}

pub fn writable_when_added<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_fd(&pair.near, Interest::WRITE);
    let found = fixture.expect(token, Readiness::WRITABLE);
    assert!(!found.contains(Readiness::READABLE), "{found:?}");
}

/// A socket is nearly always writable: a registration for reads must not report that, and a
/// registration for writes must not report readability.
pub fn only_the_interest_is_reported<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let (reads, writes) = (Pair::unix(), Pair::unix());
    let reader = fixture.add_near(&reads);
    fill(&writes.near);
    let writer = fixture.add_fd(&writes.near, Interest::WRITE);
    fixture.expect_silence();
    writes.send(b"x");
    fixture.expect_silence();
    drain(&writes.far);
    fixture.expect_writable(writer);
    fixture.modify(writer, Interest::empty()).expect("modify");
    reads.send(b"x");
    let found = fixture.expect(reader, Readiness::READABLE);
    assert!(!found.contains(Readiness::WRITABLE), "{found:?}");
}

/// Fills until no event is reported any more. TCP may find room by itself a moment after the socket was
/// full, because its far end takes bytes that were in flight: an event is then correct, if there was
/// room.
fn fill_until_silence<M: Mechanism>(fixture: &mut Fixture<M>, pair: &Pair) {
    let until = Instant::now() + crate::fixture::patience();
    fill(&pair.near);
    loop {
        // Room that was made and used up again during the filling may have been recorded: an event
        // reports a past state of the socket, not the current one.
        fixture.events_within(Duration::ZERO);
        let events = fixture.what_breaks_silence();
        if events.is_empty() {
            return;
        }
        assert!(fill(&pair.near) > 0, "{BROKEN_SILENCE} and there is no room, came: {events:?}");
        assert!(Instant::now() < until, "there is room again and again");
    }
}

pub fn writable_after_full_buffer_drains<M: Mechanism>(subject: &Subject) {
    for pair in [Pair::small_tcp(), Pair::unix()] {
        let mut fixture = Fixture::<M>::new(subject);
        let token = fixture.add_fd(&pair.near, BOTH);
        fixture.expect_writable(token);
        for _ in 0..2 {
            fill_until_silence(&mut fixture, &pair);
            // TCP sends the bytes that it holds back only as the far end reads: read until there is
            // room.
            let until = Instant::now() + crate::fixture::patience();
            while poll_now(&pair.near, PollFlags::OUT).is_empty() {
                assert!(Instant::now() < until, "the far end drained and there is no room");
                drain(&pair.far);
            }
            fixture.expect_writable(token);
            assert!(rustix::io::write(&pair.near, b"x").is_ok());
            drain(&pair.far);
        }
    }
}

pub fn both_directions<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    pair.send(b"x");
    let token = fixture.add_fd(&pair.near, BOTH);
    let mut found = fixture.expect(token, Readiness::READABLE);
    if !found.contains(Readiness::WRITABLE) {
        found |= fixture.expect(token, Readiness::WRITABLE);
    }
    assert!(!found.intersects(Readiness::HANGUP | Readiness::ERROR), "{found:?}");
}

/// "A wait before the events are drained forgets those not yet taken only with level-triggered
/// mechanisms, which will report them again; edge mechanisms first hand out what is left."
pub fn undrained_events_are_not_lost<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let pairs: Vec<_> = (0..8).map(|_| Pair::unix()).collect();
    let tokens: Vec<_> = pairs.iter().map(|pair| fixture.add_near(pair)).collect();
    pairs.iter().for_each(|pair| pair.send(b"x"));
    let mut seen = Vec::new();
    let until = Instant::now() + crate::fixture::patience();
    while seen.len() < tokens.len() {
        assert!(Instant::now() < until, "only {seen:?} came");
        fixture.wait(Some(Duration::from_secs(1))).expect("wait");
        let Some(event) = fixture.next_event() else { continue };
        if !seen.contains(&event.token) {
            seen.push(event.token);
        }
        // Level-triggered mechanisms would otherwise report the same descriptor for ever.
        let index = tokens.iter().position(|&token| token == event.token).expect("a known token");
        drain(&pairs[index].near);
    }
}
