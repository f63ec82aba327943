//! Positive controls: mechanisms with one fault each, which the suite must catch.

use crate::{
    fixture, reuse,
    subject::{Outcome, Subject},
    timing, waking,
};
use libtest_mimic::Trial;
use pollux_event::{
    Description, Error, Event, Interest, Mechanism, Options, Token, Waker,
    mechanism::epoll::EpollEdge,
};
use std::{
    collections::VecDeque,
    os::fd::{BorrowedFd, OwnedFd},
    panic::{self, AssertUnwindSafe},
    thread,
    time::{Duration, Instant},
};

/// The fault of a [`Faulty`]; `NOTHING` shows that the wrapper itself causes no fault.
mod fault {
    pub const NOTHING: u8 = 0;
    /// Hands out events of registrations that have ended.
    pub const STALE: u8 = 1;
    /// Loses every third event.
    pub const LOSES: u8 = 2;
    /// Hands out every event twice.
    pub const REPEATS: u8 = 3;
    /// Waits half the time.
    pub const EARLY: u8 = 4;
    /// Continues to wait when it is interrupted.
    pub const STUBBORN: u8 = 5;
    /// Skips a modify that changes nothing, and with it the report.
    pub const LAZY: u8 = 6;
    /// Its wakers have no effect.
    pub const DEAF: u8 = 7;
    /// Keeps the descriptor open on close.
    pub const LEAKS: u8 = 8;
    /// Shares the kernel object with the forked parent.
    pub const SHARES: u8 = 9;
    /// Treats a second add of the same descriptor as a modify.
    pub const FORGIVES: u8 = 10;
}

/// epoll-et with a fault.
struct Faulty<const FAULT: u8> {
    inner: EpollEdge,
    events: VecDeque<Event>,
    interests: Vec<(Token, Interest)>,
    leaked: Vec<OwnedFd>,
    count: usize,
}

impl<const FAULT: u8> Mechanism for Faulty<FAULT> {
    const DESCRIPTION: &'static Description = EpollEdge::DESCRIPTION;

    fn open(options: &Options) -> Result<Self, Error> {
        Ok(Self {
            inner: EpollEdge::open(options)?,
            events: VecDeque::new(),
            interests: Vec::new(),
            leaked: Vec::new(),
            count: 0,
        })
    }

    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        match self.inner.add(fd, interest) {
            Err(Error::AlreadyAdded(number)) if FAULT == fault::FORGIVES => {
                let known = self.interests.iter().rfind(|(token, _)| token.fd == number);
                Ok(known.expect("added before").0)
            }
            added => {
                self.interests.push((added?, interest));
                Ok(self.interests.last().expect("just pushed").0)
            }
        }
    }

    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        if FAULT == fault::LAZY && self.interests.contains(&(token, interest)) {
            return Ok(());
        }
        self.inner.modify(token, interest)
    }

    fn remove(&mut self, token: Token) -> Result<(), Error> {
        self.inner.remove(token)
    }

    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        if FAULT == fault::LEAKS {
            self.leaked.push(fd.try_clone().expect("dup"));
        }
        self.inner.close(token, fd)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        if !self.events.is_empty() && FAULT == fault::STALE {
            return Ok(self.events.len());
        }
        let timeout = if FAULT == fault::EARLY { timeout.map(|time| time / 2) } else { timeout };
        let until = timeout.map(|time| Instant::now() + time);
        let mut found = self.inner.wait(timeout)?;
        while FAULT == fault::STUBBORN
            && found == 0
            && let Some(left) = until.and_then(|until| until.checked_duration_since(Instant::now()))
        {
            found = self.inner.wait(Some(left))?;
        }
        if FAULT == fault::STALE {
            self.events.extend(std::iter::from_fn(|| self.inner.next_event()));
        }
        Ok(found)
    }

    fn next_event(&mut self) -> Option<Event> {
        if FAULT == fault::STALE || (FAULT == fault::REPEATS && !self.events.is_empty()) {
            return self.events.pop_front();
        }
        let event = self.inner.next_event()?;
        self.count += 1;
        match FAULT {
            fault::LOSES if self.count.is_multiple_of(3) => self.next_event(),
            fault::REPEATS => {
                self.events.push_back(event);
                Some(event)
            }
            _ => Some(event),
        }
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        if FAULT == fault::DEAF { Waker::new() } else { self.inner.waker() }
    }

    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        if FAULT == fault::SHARES { Ok(()) } else { self.inner.reopen_after_fork() }
    }
}

/// The name of the threads whose panics are expected.
const THREAD: &str = "canary";

/// Prevents expected panics from printing their message and backtrace.
pub fn silence() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().name() != Some(THREAD) {
            usual(info);
        }
    }));
}

/// Runs a case against a faulty mechanism in a thread of its own; returns whether it failed.
fn is_caught(case: fn(&Subject) -> Outcome) -> bool {
    let thread = thread::Builder::new().name(THREAD.into()).spawn(move || {
        fixture::lose_patience();
        let subject = Subject::of(EpollEdge::DESCRIPTION);
        panic::catch_unwind(AssertUnwindSafe(|| case(&subject))).is_err()
    });
    thread.expect("spawn").join().expect("the panic is caught within")
}

/// One trial per fault: the case must fail with the fault, and succeed without it.
pub fn trials() -> Vec<Trial> {
    use crate::{changes, closing, fork, model, readiness, scale};
    macro_rules! canaries {
        ($($fault:ident: $($case:ident)::+),+ $(,)?) => {
            vec![$(Trial::test(
                concat!("contract::canary_", stringify!($fault), $("::", stringify!($case)),+),
                || {
                    let sound = |subject: &Subject| -> Outcome {
                        $($case)::+::<Faulty<{ fault::NOTHING }>>(subject).into()
                    };
                    let faulty = |subject: &Subject| -> Outcome {
                        $($case)::+::<Faulty<{ fault::$fault }>>(subject).into()
                    };
                    if is_caught(sound) {
                        return Err("fails without the fault".into());
                    }
                    if !is_caught(faulty) {
                        return Err("the fault is not caught".into());
                    }
                    Ok(())
                },
            )),+]
        };
    }
    canaries![
        STALE: reuse::number_reused_within_a_batch,
        STALE: changes::remove_before_the_event_is_taken,
        STALE: reuse::closed_within_a_batch,
        LOSES: readiness::data_after_add,
        LOSES: scale::no_descriptor_starves,
        REPEATS: readiness::edge_reports_once,
        EARLY: timing::finite_is_never_early,
        STUBBORN: timing::interrupted_wait_returns_early,
        LAZY: changes::modify_reports_if_ready,
        DEAF: waking::wake_comes_to_rest,
        DEAF: waking::wake_before_the_events_are_taken,
        LEAKS: closing::close_ends_the_connection,
        SHARES: fork::child_changes_are_its_own,
        FORGIVES: changes::add_twice,
        LOSES: model::random_sequences,
        STALE: model::random_sequences,
    ]
}
