//! More than one interest set.

use crate::{fixture::Fixture, subject::Subject};
use pollux_event::{Capabilities, Interest, Mechanism, Readiness};
use pollux_testkit::{Pair, drain};
use std::thread;

pub fn two_in_one_thread<M: Mechanism>(subject: &Subject) {
    let (mut one, mut other) = (Fixture::<M>::new(subject), Fixture::<M>::new(subject));
    let (first, second) = (Pair::unix(), Pair::unix());
    let (first_token, second_token) = (one.add_near(&first), other.add_near(&second));
    for _ in 0..3 {
        first.send(b"x");
        other.expect_silence();
        second.send(b"y");
        other.expect(second_token, Readiness::READABLE);
        one.expect(first_token, Readiness::READABLE);
        drain(&first.near);
        drain(&second.near);
    }
    one.waker().expect("waker").wake();
    other.expect_silence();
}

pub fn one_descriptor_in_two_sets<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    if subject.has(Capabilities::ONE_OWNER) {
        return Err("a descriptor belongs to one set only".into());
    }
    let (mut one, mut other) = (Fixture::<M>::new(subject), Fixture::<M>::new(subject));
    let pair = Pair::unix();
    let tokens = (one.add_near(&pair), other.add_near(&pair));
    pair.send(b"x");
    one.expect(tokens.0, Readiness::READABLE);
    one.remove(tokens.0).expect("remove");
    other.expect(tokens.1, Readiness::READABLE);
    one.expect_silence();
    Ok(())
}

/// A descriptor and its duplicate are two registrations, and each is reported.
pub fn two_descriptors_of_one_file<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    if subject.has(Capabilities::ONE_OWNER) {
        return Err("an open file description reports by one of its descriptors only".into());
    }
    let (mut fixture, pair) = (Fixture::<M>::new(subject), Pair::unix());
    let copy = pair.near.try_clone().expect("dup");
    let tokens = [fixture.add_near(&pair), fixture.add_fd(&copy, Interest::READ)];
    pair.send(b"x");
    fixture.expect_all(&tokens);
    fixture.remove(tokens[1]).expect("remove");
    pair.send(b"y");
    fixture.expect(tokens[0], Readiness::READABLE);
    Ok(())
}

pub fn one_outlives_the_other<M: Mechanism>(subject: &Subject) {
    let (one, mut other) = (Fixture::<M>::new(subject), Fixture::<M>::new(subject));
    let (first, second) = (Pair::unix(), Pair::unix());
    let mut one = one;
    one.add_near(&first);
    let token = other.add_near(&second);
    first.send(b"x");
    drop(one);
    first.send(b"x");
    other.expect_silence();
    second.send(b"y");
    other.expect(token, Readiness::READABLE);
    // The remains of a dropped set do not affect the next one.
    let mut third = Fixture::<M>::new(subject);
    let token = third.add_near(&first);
    third.expect(token, Readiness::READABLE);
}

pub fn one_a_thread<M: Mechanism>(subject: &Subject) {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut fixture = Fixture::<M>::new(subject);
                let pairs: Vec<_> = (0..10).map(|_| Pair::unix()).collect();
                let tokens: Vec<_> = pairs.iter().map(|pair| fixture.add_near(pair)).collect();
                for _ in 0..50 {
                    pairs.iter().for_each(|pair| pair.send(b"x"));
                    fixture.expect_all(&tokens);
                    for pair in &pairs {
                        drain(&pair.near);
                    }
                }
            });
        }
    });
}
