//! Random sequences of all operations, compared with a model of the events that must be reported.
//!
//! poll(2) gives the true readiness. The model adds which events are *owed*: with level-triggering,
//! everything that is ready; with edges, everything that became ready, or was registered again, since
//! the last report.

use crate::{
    fixture::{Fixture, patience},
    subject::Subject,
};
use pollux_event::{Interest, Mechanism, Readiness, Token};
use pollux_testkit::{
    Pair, drain, fill,
    pairs::{Kind, poll_now},
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};
use rustix::{event::PollFlags, net::Shutdown};
use std::{
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

const SLOTS: usize = 4;

/// How long a due event may take. Shorter than elsewhere, since shrinking repeats the failure.
const LATE: Duration = Duration::from_secs(4);

/// The longest that a failing sequence is shrunk.
const SHRINK: Duration = Duration::from_secs(40);

#[derive(Clone, Copy, Debug)]
enum Operation {
    Open(usize, bool),
    Add(usize, u8),
    Modify(usize, u8),
    Remove(usize),
    /// Through the mechanism if the slot is registered, otherwise with close(2) alone.
    Close(usize),
    Send(usize),
    ReadSome(usize),
    ReadAll(usize),
    Fill(usize),
    DrainFar(usize),
    FarShutdown(usize),
    FarClose(usize),
    Wake,
    /// One wait with a timeout of zero, from which at most this many events are taken.
    Glance(usize),
    /// Waits until all owed events have been reported.
    Quiesce,
}

fn operation() -> impl Strategy<Value = Operation> {
    let slot = 0..SLOTS;
    prop_oneof![
        5 => (slot.clone(), any::<bool>()).prop_map(|(slot, tcp)| Operation::Open(slot, tcp)),
        6 => (slot.clone(), 0..4u8).prop_map(|(slot, bits)| Operation::Add(slot, bits)),
        3 => (slot.clone(), 0..4u8).prop_map(|(slot, bits)| Operation::Modify(slot, bits)),
        2 => slot.clone().prop_map(Operation::Remove),
        2 => slot.clone().prop_map(Operation::Close),
        6 => slot.clone().prop_map(Operation::Send),
        2 => slot.clone().prop_map(Operation::ReadSome),
        4 => slot.clone().prop_map(Operation::ReadAll),
        2 => slot.clone().prop_map(Operation::Fill),
        3 => slot.clone().prop_map(Operation::DrainFar),
        1 => slot.clone().prop_map(Operation::FarShutdown),
        1 => slot.prop_map(Operation::FarClose),
        1 => Just(Operation::Wake),
        4 => (0..3usize).prop_map(Operation::Glance),
        4 => Just(Operation::Quiesce),
    ]
}

struct Slot {
    near: OwnedFd,
    far: Option<OwnedFd>,
    registered: Option<(Token, Interest)>,
    /// With edges: the directions that became ready since their last report.
    owed: Readiness,
    /// The near end's buffer was full since the last report of writability. (Such a report can come
    /// before the far end is drained: the kernel's own buffers take some more bytes.)
    blocked: bool,
    /// The far end has sent its end of stream: its close is no second arrival.
    ended: bool,
}

impl Slot {
    /// The readiness that poll(2) finds within the registration's interest.
    fn ready(&self, interest: Interest) -> Readiness {
        let bits =
            poll_now(&self.near, PollFlags::from_bits_retain(interest.to_poll_bits() as u16));
        Readiness::from_poll_bits(u32::from(bits.bits()))
    }

    /// The readiness that must still be reported now.
    fn due(&self, edge: bool) -> Readiness {
        let Some((_, interest)) = self.registered else { return Readiness::empty() };
        let ready = self.ready(interest);
        let mut due = Readiness::empty();
        if interest.contains(Interest::READ) && ready.is_readable() {
            due |= Readiness::READABLE;
        }
        if interest.contains(Interest::WRITE) && ready.is_writable() {
            due |= Readiness::WRITABLE;
        }
        if edge { due & self.owed } else { due }
    }

    /// Adding and modifying owe a report of all present readiness.
    fn register(&mut self, token: Token, interest: Interest) {
        self.registered = Some((token, interest));
        self.owed = Readiness::READABLE | Readiness::WRITABLE;
    }
}

struct ModelState<'a, M> {
    fixture: Fixture<M>,
    subject: &'a Subject,
    slots: [Option<Slot>; SLOTS],
    /// The readiness reported since the beginning of the last wait, for level-triggering.
    seen: [Readiness; SLOTS],
}

impl<M: Mechanism> ModelState<'_, M> {
    fn apply(&mut self, operation: Operation) -> Result<(), TestCaseError> {
        match operation {
            Operation::Wake => self.fixture.waker()?.wake(),
            Operation::Glance(most) => self.wait(Duration::ZERO, most)?,
            Operation::Quiesce => self.quiesce()?,
            Operation::Open(index, tcp) if self.slots[index].is_none() => {
                let pair = Pair::new(if tcp { Kind::Tcp } else { Kind::Unix });
                self.slots[index] = Some(Slot {
                    near: pair.near,
                    far: Some(pair.far),
                    registered: None,
                    owed: Readiness::empty(),
                    blocked: false,
                    ended: false,
                });
            }
            Operation::Close(index) => {
                if let Some(slot) = self.slots[index].take()
                    && let Some((token, _)) = slot.registered
                {
                    self.fixture.close(token, slot.near)?;
                }
            }
            Operation::Open(index, _)
            | Operation::Add(index, _)
            | Operation::Modify(index, _)
            | Operation::Remove(index)
            | Operation::Send(index)
            | Operation::ReadSome(index)
            | Operation::ReadAll(index)
            | Operation::Fill(index)
            | Operation::DrainFar(index)
            | Operation::FarShutdown(index)
            | Operation::FarClose(index) => {
                let Some(slot) = &mut self.slots[index] else { return Ok(()) };
                Self::apply_to(&mut self.fixture, slot, operation)?;
            }
        }
        Ok(())
    }

    fn apply_to(
        fixture: &mut Fixture<M>,
        slot: &mut Slot,
        operation: Operation,
    ) -> Result<(), TestCaseError> {
        match (operation, slot.registered) {
            (Operation::Add(_, bits), None) => {
                let interest = Interest::from_bits_truncate(bits);
                let token = fixture.add(slot.near.as_fd(), interest)?;
                slot.register(token, interest);
            }
            (Operation::Add(..), Some(_)) => {
                prop_assert!(fixture.add(slot.near.as_fd(), Interest::READ).is_err());
            }
            (Operation::Modify(_, bits), Some((token, _))) => {
                let interest = Interest::from_bits_truncate(bits);
                fixture.modify(token, interest)?;
                slot.register(token, interest);
            }
            (Operation::Remove(_), Some((token, _))) => {
                fixture.remove(token)?;
                prop_assert!(fixture.modify(token, Interest::READ).is_err());
                slot.registered = None;
            }
            (Operation::Send(_), _) => {
                if let Some(far) = &slot.far
                    && rustix::io::write(far, b"data").is_ok()
                {
                    slot.owed |= Readiness::READABLE;
                }
            }
            (Operation::ReadSome(_), _) => {
                let _ = rustix::io::read(&slot.near, &mut [0; 3]);
            }
            (Operation::ReadAll(_), _) => {
                drain(&slot.near);
            }
            (Operation::Fill(_), _) if slot.far.is_some() => {
                fill(&slot.near);
                slot.blocked = true;
            }
            (Operation::DrainFar(_), _) => {
                let Some(far) = &slot.far else { return Ok(()) };
                // TCP sends the data that it held back as the far end reads.
                let until = Instant::now() + patience();
                loop {
                    drain(far);
                    if !slot.blocked || poll_now(&slot.near, PollFlags::OUT) != PollFlags::empty() {
                        break;
                    }
                    prop_assert!(Instant::now() < until, "drained, and still no room");
                }
                if slot.blocked {
                    slot.owed |= Readiness::WRITABLE;
                    slot.blocked = false;
                }
            }
            (Operation::FarShutdown(_), _) => {
                if let Some(far) = &slot.far
                    && !slot.ended
                {
                    rustix::net::shutdown(far, Shutdown::Write).expect("shutdown");
                    slot.ended = true;
                    slot.owed |= Readiness::READABLE;
                }
            }
            (Operation::FarClose(_), _) if slot.far.take().is_some() && !slot.ended => {
                slot.owed |= Readiness::READABLE;
            }
            _ => {}
        }
        Ok(())
    }

    /// One wait, from which at most `most` events are taken.
    fn wait(&mut self, time: Duration, most: usize) -> Result<(), TestCaseError> {
        self.fixture.wait(Some(time))?;
        for _ in 0..most {
            let Some(event) = self.fixture.next_event() else { break };
            let owner = self.slots.iter().position(|slot| {
                slot.as_ref().and_then(|slot| slot.registered).is_some_and(|r| r.0 == event.token)
            });
            prop_assert!(owner.is_some(), "an event of no live registration: {event:?}");
            let index = owner.expect("checked");
            let slot = self.slots[index].as_mut().expect("registered");
            let (mut what, interest) = (Readiness::empty(), slot.registered.expect("registered").1);
            if event.readiness.is_readable() {
                what |= Readiness::READABLE;
            }
            if event.readiness.is_writable() {
                what |= Readiness::WRITABLE;
            }
            if !self.subject.is_edge() {
                // Only the test reads and writes, so a level-triggered event that was made in this very
                // wait cannot be spurious.
                let ready = slot.ready(interest);
                prop_assert!(
                    ready.is_readable() || !what.contains(Readiness::READABLE),
                    "{event:?}, but poll(2) says {ready:?}"
                );
            }
            slot.owed -= what;
            if what.contains(Readiness::WRITABLE) && slot.ready(Interest::WRITE).is_writable() {
                slot.blocked = false;
            }
            self.seen[index] |= what;
        }
        Ok(())
    }

    /// Waits until everything due has been reported, and everything is quiet after that.
    fn quiesce(&mut self) -> Result<(), TestCaseError> {
        self.seen = [Readiness::empty(); SLOTS];
        let deadline = Instant::now() + patience().min(LATE);
        loop {
            self.wait(Duration::ZERO, usize::MAX)?;
            let edge = self.subject.is_edge();
            let missing: Vec<_> = self
                .slots
                .iter()
                .enumerate()
                .filter_map(|(index, slot)| {
                    let due = slot.as_ref()?.due(edge) - self.seen[index];
                    (!due.is_empty()).then_some((index, due))
                })
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            let now = self.fixture.statistics();
            prop_assert!(Instant::now() < deadline, "due and never reported: {missing:?}; {now:?}");
        }
    }
}

/// The number of sequences of a run, unless PROPTEST_CASES sets another.
const SEQUENCES: u32 = 256;

pub fn sequences() -> u32 {
    if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { SEQUENCES }
}

pub fn random_sequences<M: Mechanism>(subject: &Subject) {
    let shrink = SHRINK.min(patience());
    let config = Config {
        failure_persistence: None,
        max_shrink_time: shrink.as_millis() as u32,
        cases: sequences(),
        ..Config::default()
    };
    let operations = prop::collection::vec(operation(), 1..120);
    let result = TestRunner::new(config).run(&operations, |operations| {
        let mut state = ModelState::<M> {
            fixture: Fixture::new(subject),
            subject,
            slots: Default::default(),
            seen: [Readiness::empty(); SLOTS],
        };
        // Long sequences are rare, so each begins with open and registered slots.
        let begin =
            (0..SLOTS).flat_map(|slot| [Operation::Open(slot, slot == 0), Operation::Add(slot, 1)]);
        for operation in begin.chain(operations) {
            state.apply(operation)?;
        }
        state.quiesce()?;
        let live = state.slots.iter().flatten().filter(|slot| slot.registered.is_some()).count();
        prop_assert_eq!(state.fixture.len(), live);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
