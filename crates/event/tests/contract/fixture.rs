//! A mechanism under test, and the helpers that the cases use.

use crate::subject::Subject;
use pollux_event::{Event, Interest, Mechanism, Readiness, Token};
use pollux_testkit::Pair;
use std::{
    cell::Cell,
    collections::HashMap,
    ops::{Deref, DerefMut},
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

thread_local! {
    static PATIENCE: Cell<Duration> = const { Cell::new(Duration::from_secs(20)) };
}

/// The longest time that an expected event may take on a loaded machine.
pub fn patience() -> Duration {
    PATIENCE.get()
}

/// Shortens [`patience`] in this thread, for events that are known never to be reported.
pub fn lose_patience() {
    PATIENCE.set(Duration::from_millis(500));
}

/// The time for which silence is observed. An event that must not be reported would be reported at
/// once.
pub const SILENCE: Duration = Duration::from_millis(25);

/// The beginning of the message when an unexpected event was reported.
pub const BROKEN_SILENCE: &str = "silence expected";

/// An open mechanism. Its own methods are available through `Deref`.
pub struct Fixture<M>(pub M);

impl<M> Deref for Fixture<M> {
    type Target = M;
    fn deref(&self) -> &M {
        &self.0
    }
}

impl<M> DerefMut for Fixture<M> {
    fn deref_mut(&mut self) -> &mut M {
        &mut self.0
    }
}

impl<M: Mechanism> Fixture<M> {
    pub fn new(subject: &Subject) -> Self {
        Self(M::open(&subject.options()).expect("open the mechanism"))
    }

    pub fn with_buffer(subject: &Subject, max_events: usize) -> Self {
        let options = subject.options().with_max_events(max_events);
        Self(M::open(&options).expect("open the mechanism"))
    }

    pub fn add_fd(&mut self, fd: impl AsFd, interest: Interest) -> Token {
        self.add(fd.as_fd(), interest).expect("add")
    }

    /// Adds the near end of `pair` with read interest.
    pub fn add_near(&mut self, pair: &Pair) -> Token {
        self.add_fd(&pair.near, Interest::READ)
    }

    /// One wait and all its events. Each must belong to a live registration. (A modification with the
    /// same interest would prove that, but edge mechanisms would report again; so the cases compare
    /// tokens.)
    pub fn events_within(&mut self, time: Duration) -> Vec<Event> {
        self.wait(Some(time)).expect("wait");
        std::iter::from_fn(|| self.next_event()).collect()
    }

    /// Waits until `token` was reported with one of `wanted`; returns all its readiness reported until
    /// then. An error if a token is reported that is neither `token` nor in `others`.
    pub fn expect(&mut self, token: Token, wanted: Readiness) -> Readiness {
        self.expect_beside(token, wanted, &[])
    }

    pub fn expect_beside(
        &mut self,
        token: Token,
        wanted: Readiness,
        others: &[Token],
    ) -> Readiness {
        let deadline = Instant::now() + patience();
        let mut found = Readiness::empty();
        while !found.intersects(wanted) {
            let now = self.statistics();
            assert!(
                Instant::now() < deadline,
                "{token:?}: {wanted:?} did not come; {found:?} did; {now:?}"
            );
            for event in self.events_within(Duration::from_millis(500)) {
                if event.token == token {
                    found |= event.readiness;
                } else {
                    assert!(others.contains(&event.token), "a stranger's event: {event:?}");
                }
            }
        }
        found
    }

    /// Waits until a read of `token` should be tried.
    pub fn expect_readable(&mut self, token: Token) -> Readiness {
        let ways =
            Readiness::READABLE | Readiness::READ_CLOSED | Readiness::HANGUP | Readiness::ERROR;
        self.expect(token, ways)
    }

    /// Waits until a write of `token` should be tried.
    pub fn expect_writable(&mut self, token: Token) -> Readiness {
        self.expect(token, Readiness::WRITABLE | Readiness::HANGUP | Readiness::ERROR)
    }

    /// Waits for a while; fails if any event is reported.
    pub fn expect_silence(&mut self) {
        let events = self.what_breaks_silence();
        let now = self.statistics();
        assert!(events.is_empty(), "{BROKEN_SILENCE}, came: {events:?}; {now:?}");
    }

    /// The first events within the time of silence, if there are any.
    pub fn what_breaks_silence(&mut self) -> Vec<Event> {
        let until = Instant::now() + SILENCE;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let events = self.events_within(left);
            if !events.is_empty() {
                return events;
            }
        }
        Vec::new()
    }

    /// Waits until every one of `tokens` was reported; returns how often each was.
    pub fn expect_all(&mut self, tokens: &[Token]) -> HashMap<Token, u32> {
        let mut seen: HashMap<Token, u32> = tokens.iter().map(|&token| (token, 0)).collect();
        let mut missing = seen.len();
        let deadline = Instant::now() + patience();
        while missing > 0 {
            assert!(Instant::now() < deadline, "{missing} of {} did not come", tokens.len());
            for event in self.events_within(Duration::from_millis(500)) {
                let times = seen
                    .get_mut(&event.token)
                    .unwrap_or_else(|| panic!("a stranger's event: {event:?}"));
                missing -= usize::from(*times == 0);
                *times += 1;
            }
        }
        seen
    }

    /// Closes the near end of `pair` through the mechanism; returns the far end.
    pub fn close_near(&mut self, token: Token, pair: Pair) -> OwnedFd {
        self.close(token, pair.near).expect("close");
        pair.far
    }
}
