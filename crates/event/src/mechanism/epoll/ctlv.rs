//! `epoll-ctlv`: epoll, level-triggered, with interest changes sent in batches.
//!
//! gammo §3 adds a system call epoll_ctlv() that takes an array of changes; io_uring's
//! IORING_OP_EPOLL_CTL (Linux 5.6) is that call today. As in the paper, additions and modifications
//! are gathered until the next wait and sent in one system call, while a removal is an epoll_ctl
//! call just before the close. In a later batch the descriptor would be closed and its number perhaps
//! in use again, and if closes were gathered as well, the server would run out of descriptors. Beyond
//! the paper, several changes of one descriptor are sent as one, or not at all if they restore the
//! kernel's present interest.

use super::instance::Instance;
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Readiness, Token, Waker,
    mechanism::{changes::ChangesByToken, io_uring_error::io_uring_error},
    registry,
};
use pollux_sys::{self as sys, Completion, EpollOp, Ring, RingSetup};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

const DESCRIPTION: Description = Description {
    name: "epoll-ctlv",
    summary: "epoll, level-triggered; interest changes sent by one io_uring_enter",
    paper: "gammo §3 (epoll-ctlv)",
    capabilities: Capabilities::BATCHED_CHANGES.union(Capabilities::USES_RING),
    own_options: &[],
};

/// The most changes in one system call. An iteration of a server's loop makes a few per event, and
/// an event buffer holds 512.
const BATCH: usize = 1024;

/// How often signals may interrupt the wait for a batch's completions before it gives up. The
/// completions are available when the submission returns, unless the kernel passed a change to a worker
/// thread.
const MAX_INTERRUPTIONS: usize = 1000;

/// Completions taken from the ring at a time.
const CHUNK: usize = 64;

/// An epoll instance, and a ring that sends it changes.
#[derive(Debug)]
pub struct EpollCtlv {
    core: Instance,
    /// `None` after a failed submission, until the next one opens a new ring.
    ring: Option<Ring>,
    changes: ChangesByToken,
    /// The changes that are in the ring.
    batch: Vec<SubmittedChange>,
    completions: Vec<Completion>,
    /// Registrations that the kernel refused, to be reported as events.
    refused: Vec<Event>,
    refusals: u64,
    batches: u64,
    sent: u64,
}

/// A change that is in the ring.
#[derive(Clone, Copy, Debug)]
struct SubmittedChange {
    token: Token,
    /// The interest that the kernel had before.
    former: Option<Interest>,
    is_complete: bool,
}

fn new_ring() -> io::Result<Ring> {
    let size = BATCH as u32;
    Ring::open(RingSetup { submissions: size, completions: size * 2, defer: false })
}

fn open_ring(epoll: BorrowedFd<'_>) -> Result<Ring, Error> {
    let mut ring = new_ring().map_err(io_uring_error(DESCRIPTION.name, "io_uring_setup"))?;
    // Probe: removing a descriptor that is not in the set is ENOENT wherever the operation exists.
    let target = ring.as_raw_fd();
    assert!(ring.push_epoll_ctl(epoll, EpollOp::Remove, target, 0, 0, 0), "the ring is empty");
    ring.enter(1, None).map_err(io_uring_error(DESCRIPTION.name, "io_uring_enter"))?;
    let mut completions = Vec::with_capacity(1);
    ring.take_completions(&mut completions, 1);
    match completions.first().map(|completion| completion.result) {
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

#[cold]
fn refusal(token: Token, result: i32) -> Event {
    let invalid = if result == -libc::EBADF { Readiness::INVALID } else { Readiness::empty() };
    Event { token, readiness: Readiness::ERROR | invalid }
}

impl EpollCtlv {
    #[inline]
    fn queue(&mut self, token: Token) -> Result<(), Error> {
        // Only registrations that end before the next wait can make the list longer than the set.
        if self.changes.queue(token) >= BATCH.max(2 * self.core.registrations.len()) {
            self.flush()?;
        }
        Ok(())
    }

    /// Sends all changes: one io_uring_enter for each [`BATCH`] of them.
    #[inline]
    fn flush(&mut self) -> Result<(), Error> {
        if self.changes.is_empty() { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> Result<(), Error> {
        loop {
            let ring = match &mut self.ring {
                Some(ring) => ring,
                none => none.insert(new_ring().map_err(Error::io("io_uring_setup"))?),
            };
            self.batch.clear();
            while self.batch.len() < BATCH {
                let live = |token| self.core.registrations.interest(token);
                let Some((token, interest)) = self.changes.pop(live) else { break };
                let former = self.changes.kernel_interest(token.fd);
                let op = match former {
                    Some(current) if current == interest => continue,
                    Some(_) => EpollOp::Modify,
                    None => EpollOp::Add,
                };
                self.changes.set_kernel_interest(token.fd, Some(interest));
                let (bits, data) = (interest.to_poll_bits(), token.to_bits());
                let epoll = self.core.epoll.as_fd();
                let position = self.batch.len() as u64;
                let room = ring.push_epoll_ctl(epoll, op, token.fd, bits, data, position);
                assert!(room, "the ring holds a batch and is emptied by each");
                self.batch.push(SubmittedChange { token, former, is_complete: false });
            }
            if self.batch.is_empty() {
                return Ok(());
            }
            if let Err(source) = self.submit() {
                self.abandon_batch();
                return Err(Error::Io { call: "io_uring_enter", source });
            }
        }
    }

    /// After a failed submission: queues the incomplete changes again. The ring is dropped, because the
    /// changes in it could refer to numbers that have been reused by then.
    #[cold]
    fn abandon_batch(&mut self) {
        self.ring = None;
        for sent in self.batch.iter().filter(|sent| !sent.is_complete) {
            self.changes.set_kernel_interest(sent.token.fd, sent.former);
            self.changes.queue(sent.token);
        }
    }

    /// Submits the batch and takes its completions. On success every change is in force and the
    /// ring is empty.
    fn submit(&mut self) -> io::Result<()> {
        let Some(ring) = &mut self.ring else { return Ok(()) };
        self.batches += 1;
        self.sent += self.batch.len() as u64;
        let mut incomplete = self.batch.len();
        let mut interruptions = 0;
        while incomplete > 0 {
            match ring.enter(incomplete as u32, None) {
                Ok(_) => {}
                Err(error)
                    if error.raw_os_error() == Some(libc::EINTR)
                        && interruptions < MAX_INTERRUPTIONS =>
                {
                    interruptions += 1;
                }
                Err(error) => return Err(error),
            }
            while incomplete > 0 {
                self.completions.clear();
                ring.take_completions(&mut self.completions, CHUNK.min(incomplete));
                if self.completions.is_empty() {
                    break;
                }
                incomplete -= self.completions.len();
                for completion in &self.completions {
                    let sent = &mut self.batch[completion.user_data as usize];
                    sent.is_complete = true;
                    if completion.result < 0 {
                        // epoll_ctl(2): after a refusal the set does not contain the descriptor;
                        // the next change adds it again.
                        self.refusals += 1;
                        self.changes.set_kernel_interest(sent.token.fd, None);
                        self.refused.push(refusal(sent.token, completion.result));
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes the descriptor from the kernel's set at once (see the module documentation).
    #[inline]
    fn remove_from_kernel(&mut self, token: Token) -> Result<(), Error> {
        match self.changes.end(token.fd) {
            Some(_) => self.core.control(EpollOp::Remove, token, 0),
            // The kernel's set never contained it.
            None => Ok(()),
        }
    }
}

impl Mechanism for EpollCtlv {
    const DESCRIPTION: &'static Description = &DESCRIPTION;

    fn open(options: &Options) -> Result<Self, Error> {
        registry::check(DESCRIPTION.name, &options.own)?;
        let core = Instance::open(options)?;
        let ring = open_ring(core.epoll.as_fd())?;
        Ok(Self {
            core,
            ring: Some(ring),
            changes: ChangesByToken::default(),
            batch: Vec::with_capacity(BATCH),
            completions: Vec::with_capacity(CHUNK),
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
            let _ = self.remove_from_kernel(token);
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
        self.remove_from_kernel(token)
    }

    #[inline]
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        let removed = self.core.registrations.remove(token);
        let result = removed.and_then(|_| self.remove_from_kernel(token));
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
        // Here the parent's ring is only unmapped and closed, because both processes see its
        // memory.
        self.ring = Some(open_ring(self.core.epoll.as_fd())?);
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
    fn registrations_removed_before_a_wait_do_not_accumulate() {
        let Ok(mut set) = EpollCtlv::open(&Options::default()) else {
            return; // the contract suite prints the reason
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
