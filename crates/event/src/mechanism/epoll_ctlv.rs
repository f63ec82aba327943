//! `epoll-ctlv`: epoll, level-triggered, whose interest changes go to the kernel together.
//!
//! gammo §3 adds a system call epoll_ctlv() that takes an array of changes; io_uring's
//! IORING_OP_EPOLL_CTL (Linux 5.6) is that call today. As in the paper, additions and changes are
//! gathered until the next wait and sent in one system call, while a removal is an explicit
//! epoll_ctl just before the close: in a later batch the descriptor would be gone, and its number
//! perhaps somebody else's; and closes are not gathered since the server would run out of
//! descriptors. Beyond the paper, several changes of one descriptor are sent as one, or not at
//! all when they lead back to what the kernel holds.

use super::{changes::Changes, epoll_core::EpollCore, io_uring_error};
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Readiness, Token, Waker,
    sys::{self, Completion, EpollOp, Ring, RingSetup},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

const DESCRIPTION: Description = Description {
    name: "epoll-ctlv",
    summary: "epoll, level-triggered; interest changes gathered into one io_uring_enter",
    paper: "gammo §3 (epoll-ctlv)",
    capabilities: Capabilities::BATCHED_CHANGES,
    own_options: &[],
};

/// Changes in one system call; further ones take another. A turn of a server's loop makes a few
/// per event, and an event buffer holds 512.
const BATCH: usize = 1024;

/// How often a wait for the answers to a batch may be interrupted by signals before it is given
/// up. The answers are there when the submission returns, unless the kernel had to hand a change
/// to a worker thread.
const MAX_INTERRUPTIONS: usize = 1000;

/// Completions taken from the ring at a time.
const CHUNK: usize = 64;

/// An epoll instance and, beside it, a ring through which it is told of changes.
#[derive(Debug)]
pub struct EpollCtlv {
    core: EpollCore,
    ring: Ring,
    changes: Changes,
    answers: Vec<Completion>,
    /// What the kernel refused and nobody has been told yet.
    refused: Vec<Event>,
    refusals: u64,
    batches: u64,
    sent: u64,
}

fn open_ring(epoll: BorrowedFd<'_>) -> Result<Ring, Error> {
    let size = BATCH as u32;
    let setup = RingSetup { submissions: size, completions: size * 2, defer: false };
    let mut ring = Ring::open(setup).map_err(io_uring_error(DESCRIPTION.name, "io_uring_setup"))?;
    // Really try: taking out what is not in is ENOENT wherever the operation exists.
    let target = ring.as_raw_fd();
    assert!(ring.push_epoll_ctl(epoll, EpollOp::Remove, target, 0, 0, 0), "the ring is empty");
    ring.enter(1, None).map_err(io_uring_error(DESCRIPTION.name, "io_uring_enter"))?;
    let mut answers = Vec::with_capacity(1);
    ring.take_completions(&mut answers, 1);
    match answers.first().map(|answer| answer.result) {
        Some(result) if result == -libc::ENOENT => Ok(ring),
        other => Err(Error::Unavailable {
            mechanism: DESCRIPTION.name,
            reason: format!(
                "io_uring does not do IORING_OP_EPOLL_CTL ({}); it needs Linux 5.6 or later with \
                 CONFIG_EPOLL",
                other.map_or("no answer".into(), |result| {
                    io::Error::from_raw_os_error(-result).to_string()
                })
            ),
        }),
    }
}

impl EpollCtlv {
    #[inline]
    fn queue(&mut self, token: Token) -> Result<(), Error> {
        // Only additions that end before the next wait can make the list longer than the set.
        if self.changes.queue(token) >= BATCH.max(2 * self.core.registrations.len()) {
            self.flush()?;
        }
        Ok(())
    }

    /// Sends what has changed: one io_uring_enter for each [`BATCH`] of changes.
    #[inline]
    fn flush(&mut self) -> Result<(), Error> {
        if self.changes.is_empty() { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> Result<(), Error> {
        loop {
            let mut pushed = 0;
            while pushed < BATCH {
                let live = |token| self.core.registrations.interest(token);
                let Some((token, interest)) = self.changes.pop(live) else { break };
                let op = match self.changes.told(token.fd) {
                    Some(told) if told == interest => continue,
                    Some(_) => EpollOp::Modify,
                    None => EpollOp::Add,
                };
                self.changes.set_told(token.fd, Some(interest));
                let (bits, data) = (interest.to_poll_bits(), token.to_bits());
                let epoll = self.core.epoll.as_fd();
                let room = self.ring.push_epoll_ctl(epoll, op, token.fd, bits, data, data);
                assert!(room, "the ring holds a batch and is emptied by each");
                pushed += 1;
            }
            if pushed == 0 {
                return Ok(());
            }
            self.submit(pushed)?;
        }
    }

    /// Submits the batch and takes the answers to it, so that each change is in force, and the
    /// ring empty, when this returns.
    fn submit(&mut self, pushed: usize) -> Result<(), Error> {
        self.batches += 1;
        self.sent += pushed as u64;
        let mut unanswered = pushed;
        let mut interruptions = 0;
        while unanswered > 0 {
            match self.ring.enter(unanswered as u32, None) {
                Ok(_) => {}
                Err(error)
                    if error.raw_os_error() == Some(libc::EINTR)
                        && interruptions < MAX_INTERRUPTIONS =>
                {
                    interruptions += 1;
                }
                Err(source) => return Err(Error::Io { call: "io_uring_enter", source }),
            }
            while unanswered > 0 {
                self.answers.clear();
                self.ring.take_completions(&mut self.answers, CHUNK.min(unanswered));
                if self.answers.is_empty() {
                    break;
                }
                unanswered -= self.answers.len();
                for index in 0..self.answers.len() {
                    self.note_answer(self.answers[index]);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn note_answer(&mut self, answer: Completion) {
        if answer.result >= 0 {
            return;
        }
        // epoll_ctl(2): whatever an addition or a change is refused for, the set does not hold
        // the descriptor; the next change tries to add it anew.
        self.refusals += 1;
        let token = Token::from_bits(answer.user_data);
        self.changes.set_told(token.fd, None);
        let invalid = answer.result == -libc::EBADF;
        let readiness =
            Readiness::ERROR | if invalid { Readiness::INVALID } else { Readiness::empty() };
        self.refused.push(Event { token, readiness });
    }

    /// Takes the descriptor out of the kernel's set at once, as the paper explains (see the top).
    #[inline]
    fn take_out(&mut self, token: Token) -> Result<(), Error> {
        match self.changes.end(token.fd) {
            Some(_) => self.core.control(EpollOp::Remove, token, 0),
            // The kernel never heard of it.
            None => Ok(()),
        }
    }
}

impl Mechanism for EpollCtlv {
    const DESCRIPTION: &'static Description = &DESCRIPTION;

    fn open(options: &Options) -> Result<Self, Error> {
        let core = EpollCore::open(options)?;
        let ring = open_ring(core.epoll.as_fd())?;
        Ok(Self {
            core,
            ring,
            changes: Changes::default(),
            answers: Vec::with_capacity(CHUNK),
            refused: Vec::new(),
            refusals: 0,
            batches: 0,
            sent: 0,
        })
    }

    #[inline]
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        let token = self.core.registrations.insert(fd.as_raw_fd(), interest)?;
        if let Err(error) = self.queue(token) {
            let _ = self.core.registrations.remove(token);
            return Err(error);
        }
        Ok(token)
    }

    #[inline]
    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        self.core.registrations.replace(token, interest)?;
        self.queue(token)
    }

    #[inline]
    fn remove(&mut self, token: Token) -> Result<(), Error> {
        self.core.registrations.remove(token)?;
        self.take_out(token)
    }

    #[inline]
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        let known = self.core.registrations.remove(token);
        let result = known.and_then(|_| self.take_out(token));
        sys::close(fd);
        result
    }

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.flush()?;
        if self.refused.is_empty() {
            return self.core.wait(timeout);
        }
        let found = self.core.wait(Some(Duration::ZERO))?;
        Ok(found + self.refused.len())
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        while let Some(event) = self.refused.pop() {
            if self.core.registrations.interest(event.token).is_some() {
                return Some(event);
            }
        }
        self.core.next_live().map(|(token, _, readiness)| Event { token, readiness })
    }

    fn len(&self) -> usize {
        self.core.registrations.len()
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("change_batches", self.batches),
            ("changes_sent", self.sent),
            ("changes_refused", self.refusals),
        ]
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        self.core.waker()
    }

    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        self.core.reopen()?;
        // The parent's ring is only unmapped and closed here: both processes see its memory.
        self.ring = open_ring(self.core.epoll.as_fd())?;
        self.refused.clear();
        self.changes.clear();
        for (token, _) in self.core.registrations.iter() {
            self.changes.queue(token);
        }
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_and_goes_between_two_waits_does_not_pile_up() {
        let Ok(mut set) = EpollCtlv::open(&Options::default()) else {
            return; // the contract suite tells why
        };
        let fd = sys::eventfd().unwrap();
        for _ in 0..10 * BATCH {
            let token = set.add(fd.as_fd(), Interest::READ).unwrap();
            set.remove(token).unwrap();
            assert!(set.changes.len() <= BATCH);
        }
        set.wait(Some(Duration::ZERO)).unwrap();
        assert_eq!(set.next_event(), None);
        assert_eq!(set.changes.len(), 0);
    }
}
