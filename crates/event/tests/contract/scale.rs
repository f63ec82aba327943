//! Many descriptors, and fairness when more are ready than the event buffer holds.

use crate::{
    fixture::{Fixture, patience},
    subject::Subject,
};
use pollux_event::{Error, Interest, Mechanism, Token};
use pollux_testkit::{drain, pairs::Mailbox, with_descriptors};
use std::{
    collections::{HashMap, HashSet},
    env,
    os::fd::{AsFd, AsRawFd},
    time::{Duration, Instant},
};

/// The number of descriptors in the cases `*_of_many`, unless the environment sets another.
const MANY: usize = 10_000;

/// The smallest allowed number: more than any event buffer, batch of changes or growth step holds.
const FEWEST: usize = 2_000;

/// Changes [`MANY`], for emulated machines, which are slow.
const VARIABLE: &str = "POLLUX_CONTRACT_MANY";

/// The number of descriptors that the cases `*_of_many` register.
pub fn many() -> usize {
    let Some(value) = env::var_os(VARIABLE) else { return MANY };
    let number = value.to_str().and_then(|text| text.parse().ok());
    match number {
        Some(number) if number >= FEWEST => number,
        _ => panic!("{VARIABLE}={value:?}: a number of descriptors is wanted, at least {FEWEST}"),
    }
}

struct Connections {
    boxes: Vec<Mailbox>,
    tokens: Vec<Token>,
    index: HashMap<Token, usize>,
}

impl Connections {
    /// Adds `count` mailboxes; returns the reason if a descriptor's number is too large for the
    /// mechanism or the process.
    fn connect_all<M: Mechanism>(fixture: &mut Fixture<M>, count: usize) -> Result<Self, String> {
        with_descriptors(count as u64)?;
        let mut boxes = Vec::with_capacity(count);
        let mut tokens = Vec::with_capacity(count);
        for _ in 0..count {
            let mailbox = Mailbox::new();
            match fixture.add(mailbox.socket.as_fd(), Interest::READ) {
                Ok(token) => tokens.push(token),
                Err(error @ Error::DescriptorTooLarge { .. }) => return Err(error.to_string()),
                Err(error) => panic!("add: {error}"),
            }
            boxes.push(mailbox);
        }
        let index = tokens.iter().enumerate().map(|(index, &token)| (token, index)).collect();
        Ok(Self { boxes, tokens, index })
    }

    /// Posts to every `step`-th mailbox, reads the reported ones until all of them were reported, and
    /// then expects silence.
    fn check<M: Mechanism>(&self, fixture: &mut Fixture<M>, step: usize) {
        let mut expected = HashSet::new();
        for index in (step / 2..self.boxes.len()).step_by(step) {
            self.boxes[index].post();
            expected.insert(self.tokens[index]);
        }
        let until = Instant::now() + patience();
        while !expected.is_empty() {
            assert!(Instant::now() < until, "{} were never reported", expected.len());
            for event in fixture.events_within(Duration::from_millis(500)) {
                let index = self.index[&event.token];
                assert!((index + step - step / 2).is_multiple_of(step), "a quiet one: {event:?}");
                expected.remove(&event.token);
                drain(&self.boxes[index].socket);
            }
        }
        fixture.expect_silence();
    }
}

fn of_many<M: Mechanism>(subject: &Subject, step: usize) -> Result<(), String> {
    let mut fixture = Fixture::<M>::new(subject);
    let connections = Connections::connect_all(&mut fixture, many())?;
    fixture.expect_silence();
    for _ in 0..2 {
        connections.check(&mut fixture, step);
    }
    Ok(())
}

pub fn one_of_many<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    of_many::<M>(subject, many())
}

pub fn half_of_many<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    of_many::<M>(subject, 2)
}

pub fn all_of_many<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    of_many::<M>(subject, 1)
}

const READY: usize = 200;
const BUFFER: usize = 16;

/// More descriptors are ready than the buffer holds: each is reported, and none more than its share.
pub fn no_descriptor_starves<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::with_buffer(subject, BUFFER);
    let connections = Connections::connect_all(&mut fixture, READY).expect("200 descriptors");
    connections.boxes.iter().for_each(Mailbox::post);
    let mut times = vec![0u32; READY];
    let until = Instant::now() + patience();
    // Reported descriptors are made ready again at once: busy ones must not displace the rest.
    while times.contains(&0) {
        let missing = times.iter().filter(|&&times| times == 0).count();
        assert!(Instant::now() < until, "{missing} of {READY} starve");
        let events = fixture.events_within(Duration::from_millis(500));
        assert!(events.len() <= BUFFER, "{} events, the buffer holds {BUFFER}", events.len());
        for event in events {
            let index = connections.index[&event.token];
            times[index] += 1;
            drain(&connections.boxes[index].socket);
            connections.boxes[index].post();
        }
    }
    let most = times.iter().max().expect("200 of them");
    assert!(*most <= 8, "one was reported {most} times before another was once");
}

/// The same without reads: the ready descriptors stay ready.
pub fn no_descriptor_starves_unread<M: Mechanism>(subject: &Subject) {
    let mut fixture = Fixture::<M>::with_buffer(subject, BUFFER);
    let connections = Connections::connect_all(&mut fixture, READY).expect("200 descriptors");
    connections.boxes.iter().for_each(Mailbox::post);
    let times = fixture.expect_all(&connections.tokens);
    let most = times.values().max().expect("200 of them");
    assert!(*most <= 8, "one was reported {most} times before another was once");
}

/// A number that is too large is refused with the limit, or it works: no third behaviour is allowed.
pub fn refusal_of_large_numbers<M: Mechanism>(subject: &Subject) -> Result<(), String> {
    let limit = pollux_testkit::raise_descriptor_limit().min(1 << 20) as i32;
    let mut fixture = Fixture::<M>::new(subject);
    let pair = pollux_testkit::Pair::unix();
    let high = rustix::io::fcntl_dupfd_cloexec(&pair.near, limit - 1)
        .map_err(|error| format!("descriptor {}: {error}", limit - 1))?;
    drop(pair.near);
    match fixture.add(high.as_fd(), Interest::READ) {
        Ok(token) => {
            assert_eq!(token.fd, high.as_raw_fd());
            assert_eq!(rustix::io::write(&pair.far, b"x"), Ok(1));
            fixture.expect_readable(token);
        }
        Err(Error::DescriptorTooLarge { fd, limit, .. }) => {
            assert_eq!(fd, high.as_raw_fd());
            assert!(limit <= fd as usize);
            assert!(fixture.is_empty());
        }
        Err(error) => panic!("add: {error}"),
    }
    Ok(())
}
