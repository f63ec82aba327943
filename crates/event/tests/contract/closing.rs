//! "The peer sees the close at once, or at the latest with the next wait."

use crate::{
    fixture::{Fixture, patience},
    subject::Subject,
};
use pollux_event::{Error, Interest, Mechanism, Readiness};
use pollux_testkit::{
    Pair, drain,
    pairs::{End, Kind, poll_within},
};
use rustix::{event::PollFlags, io::Errno};
use std::{os::fd::AsFd, time::Duration};

fn expect_end(far: impl AsFd, ends: &[End]) {
    let found = poll_within(&far, PollFlags::IN, patience());
    assert!(!found.is_empty(), "the peer sees nothing of the close");
    let (_, end) = drain(&far);
    assert!(ends.contains(&end), "{end:?} instead of one of {ends:?}");
}

pub fn close_ends_the_connection<M: Mechanism>(subject: &Subject) {
    for kind in [Kind::Tcp, Kind::Unix] {
        for interest in [Interest::READ, Interest::READ | Interest::WRITE] {
            let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::new(kind));
            let token = fixture.add_fd(&pair.near, interest);
            // This wait sends the interest to the kernel.
            fixture.events_within(Duration::ZERO);
            let far = fixture.close_near(token, pair);
            fixture.events_within(Duration::ZERO);
            expect_end(far, &[End::Closed]);
        }
    }
}

pub fn close_of_many<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let pairs: Vec<_> = (0..200).map(|_| Pair::unix()).collect();
    let tokens: Vec<_> = pairs.iter().map(|pair| fixture.add_near(pair)).collect();
    fixture.events_within(Duration::ZERO);
    let fars: Vec<_> = pairs
        .into_iter()
        .zip(tokens)
        .map(|(pair, token)| fixture.close_near(token, pair))
        .collect();
    fixture.events_within(Duration::ZERO);
    for far in fars {
        expect_end(far, &[End::Closed]);
    }
    assert!(fixture.is_empty());
}

pub fn close_with_unread_data<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    pair.send(b"unread");
    fixture.events_within(Duration::from_secs(1));
    let far = fixture.close_near(token, pair);
    fixture.events_within(Duration::ZERO);
    expect_end(far, &[End::Error(Errno::CONNRESET)]);
}

/// "NotAdded: the descriptor is closed all the same."
pub fn close_of_an_unknown_token<M: Mechanism>(subject: &Subject) {
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::tcp());
    let token = fixture.add_near(&pair);
    fixture.remove(token).expect("remove");
    let refusal = fixture.close(token, pair.near);
    assert!(matches!(refusal, Err(Error::NotAdded(fd)) if fd == token.fd), "{refusal:?}");
    expect_end(pair.far, &[End::Closed]);
}

/// "The descriptor must stay open until remove or close: otherwise its number remains registered."
/// Removing it ends that, with or without an error of the kernel.
pub fn closed_before_its_removal<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::new(subject);
    let (Pair { mut near, far }, next) = (Pair::unix(), Pair::unix());
    let ended = fixture.add_fd(&near, Interest::READ);
    // This wait sends the interest to the kernel.
    fixture.events_within(Duration::ZERO);
    // Closes the descriptor and gives its number to another file.
    rustix::io::dup2(&next.near, &mut near).expect("dup2");
    let again = fixture.add(near.as_fd(), Interest::READ);
    assert!(matches!(again, Err(Error::AlreadyAdded(fd)) if fd == ended.fd), "{again:?}");
    let _ = fixture.remove(ended);
    assert!(fixture.is_empty());
    let token = fixture.add_fd(&near, Interest::READ);
    assert_ne!(token, ended);
    fixture.expect_silence();
    next.send(b"x");
    fixture.expect(token, Readiness::READABLE);
    drop(far);
}
