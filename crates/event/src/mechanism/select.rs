//! `select`: bitmaps of the descriptors, passed to the kernel and scanned at every wait. select(2); the
//! first mechanism of gammo's server (§2, figs 1 and 5).
//!
//! The C library's bitmaps hold 1,024 descriptors (FD_SETSIZE). The kernel takes longer ones, and the authors of that
//! paper rebuilt their programs to use them. The option `descriptors` does the same here.

use super::in_memory::interest_in_memory;
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Readiness, Token, Waker,
    options::own::{own_options, refused},
    registration::Registrations,
};
use pollux_sys::{self as sys, FD_SET_WORD_BITS, FD_SETSIZE, FdSet};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

const DESCRIPTION: Description = Description {
    name: "select",
    summary: "select(2): bitmaps of all descriptors at every wait; descriptors below 1024 only",
    paper: "gammo §2, figs 1-7",
    capabilities: Capabilities::SCANS
        .union(Capabilities::ERRORS_NEED_INTEREST)
        .union(Capabilities::TAKES_FILES),
    own_options: &[(
        "descriptors",
        &[],
        "the number of descriptors that a bitmap can hold (default 1024, as in the C library; at most \
         1048576)",
    )],
};

const MAX_DESCRIPTORS: u32 = 1 << 20;
const WANTED_DESCRIPTORS: &str = "1 to 1048576";

own_options! {
    /// The options of `select`.
    SelectOptions of "select" {
        /// The number of descriptors that a bitmap can hold, 1 to 1,048,576, rounded up to whole words. The
        /// default is that of the C library, FD_SETSIZE.
        descriptors by with_descriptors as "descriptors": u32 = FD_SETSIZE as u32,
            wants WANTED_DESCRIPTORS;
    }
}

/// The interest set as select(2) takes it. The bitmaps of the interest persist; the parts that a
/// wait copies and scans end at the highest descriptor.
#[derive(Debug)]
pub struct Select {
    registrations: Registrations,
    read: FdSet,
    write: FdSet,
    /// One above the highest descriptor in the set (select's `nfds`).
    limit: usize,
    readable: FdSet,
    writable: FdSet,
    /// Descriptors that are not open (EBADF).
    invalid: FdSet,
    max_events: usize,
    /// The descriptor at which the next scan starts. A scan continues where the last one stopped, so
    /// that no descriptor starves when more than `max_events` are ready.
    cursor: usize,
    /// Words that may still be scanned before the next wait.
    words_left: usize,
    /// Events that may still be handed out before the next wait.
    event_budget: usize,
    waker: Option<Waker>,
}

/// The number of words that hold the descriptors below `limit`.
#[inline]
fn words(limit: usize) -> usize {
    limit.div_ceil(FD_SET_WORD_BITS)
}

/// Whether select(2) failed because a descriptor is not open.
#[inline]
fn is_bad_descriptor(called: &io::Result<usize>) -> bool {
    called.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBADF))
}

impl Select {
    /// As [`Mechanism::open`], with options that have types.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(options: &Options<SelectOptions>) -> Result<Self, Error> {
        let descriptors = options.own.descriptors;
        if !(1..=MAX_DESCRIPTORS).contains(&descriptors) {
            let (name, text) = (DESCRIPTION.name, descriptors.to_string());
            return Err(refused(name, "descriptors", &text, WANTED_DESCRIPTORS));
        }
        let empty = FdSet::new(descriptors as usize);
        Ok(Self {
            registrations: Registrations::default(),
            read: empty.clone(),
            write: empty.clone(),
            limit: 0,
            readable: empty.clone(),
            writable: empty.clone(),
            invalid: empty,
            max_events: options.event_limit(),
            cursor: 0,
            words_left: 0,
            event_budget: 0,
            waker: None,
        })
    }

    fn check_descriptor(&self, fd: RawFd) -> Result<(), Error> {
        let limit = self.read.capacity();
        if (fd as usize) < limit {
            return Ok(());
        }
        Err(Error::DescriptorTooLarge { mechanism: DESCRIPTION.name, fd, limit })
    }

    #[inline]
    fn set(&mut self, fd: RawFd, interest: Interest) {
        let set = |set: &mut FdSet, flag| {
            if interest.contains(flag) { set.insert(fd) } else { set.remove(fd) }
        };
        set(&mut self.read, Interest::READ);
        set(&mut self.write, Interest::WRITE);
        self.limit = self.limit.max(fd as usize + 1);
    }

    fn delete(&mut self, fd: RawFd) {
        self.set(fd, Interest::empty());
        // Results that were not handed out must not reach the next registration of the number.
        for set in [&mut self.readable, &mut self.writable, &mut self.invalid] {
            set.remove(fd);
        }
        if self.limit == fd as usize + 1 {
            self.lower_limit();
        }
    }

    /// Finds the highest descriptor with an interest, below the former one. select(2) is not given
    /// descriptors without one.
    fn lower_limit(&mut self) {
        let highest = (0..words(self.limit)).rev().find_map(|word| {
            let bits = self.read.word(word) | self.write.word(word);
            (bits != 0).then(|| word * FD_SET_WORD_BITS + bits.ilog2() as usize)
        });
        self.limit = highest.map_or(0, |fd| fd + 1);
    }

    fn begin_scan(&mut self, ready: usize) -> usize {
        self.event_budget = ready.min(self.max_events);
        // One more word than there are: the scan begins in the middle of a word and ends with that
        // word's first part.
        self.words_left = words(self.limit) + 1;
        self.event_budget
    }

    /// Copies the interest to the sets that the system call changes.
    #[inline]
    fn copy_interest(&mut self) {
        let words = words(self.limit);
        self.readable.copy_words(&self.read, words);
        self.writable.copy_words(&self.write, words);
        self.invalid.clear_words(words);
    }

    /// select(2) fails as a whole when one descriptor is not open. This function repeats the call for the others, and
    /// does not wait: a descriptor that is not open is a result of its own, as with poll(2). Returns the number of
    /// those, and the result of the call. It costs a system call per descriptor, but a correct program never needs it.
    #[cold]
    fn select_without_invalid(&mut self) -> (usize, io::Result<usize>) {
        self.copy_interest();
        let mut found = 0;
        for (token, interest) in self.registrations.iter() {
            if !interest.is_empty() && !sys::is_open(token.fd) {
                self.readable.remove(token.fd);
                self.writable.remove(token.fd);
                self.invalid.insert(token.fd);
                found += 1;
            }
        }
        let now = Some(Duration::ZERO);
        (found, sys::pselect(self.limit, &mut self.readable, &mut self.writable, now))
    }

    #[inline]
    fn next_result(&mut self) -> Option<RawFd> {
        let end = words(self.limit) * FD_SET_WORD_BITS;
        while self.event_budget > 0 && self.words_left > 0 {
            if self.cursor >= end {
                self.cursor = 0;
            }
            let word = self.cursor / FD_SET_WORD_BITS;
            let bits =
                self.readable.word(word) | self.writable.word(word) | self.invalid.word(word);
            let bits = bits & (usize::MAX << (self.cursor % FD_SET_WORD_BITS));
            if bits != 0 {
                let fd = word * FD_SET_WORD_BITS + bits.trailing_zeros() as usize;
                self.cursor = fd + 1;
                self.event_budget -= 1;
                return Some(fd as RawFd);
            }
            self.cursor = (word + 1) * FD_SET_WORD_BITS;
            self.words_left -= 1;
        }
        None
    }

    /// Drains the waker if it is reported. The wait does this: a wake-up that follows is for the next
    /// wait, even if the events of this one have not been taken yet.
    #[inline]
    fn take_wake_up(&mut self) {
        let Some(waker) = &self.waker else { return };
        let fd = waker.as_fd().as_raw_fd();
        if self.readable.contains(fd) {
            self.readable.remove(fd);
            waker.drain();
        }
    }

    /// Takes the result of the last wait for `fd`.
    #[inline]
    fn take_readiness(&mut self, fd: RawFd) -> Readiness {
        let mut readiness = Readiness::empty();
        for (set, flag) in [
            (&mut self.readable, Readiness::READABLE),
            (&mut self.writable, Readiness::WRITABLE),
            (&mut self.invalid, Readiness::INVALID),
        ] {
            if set.contains(fd) {
                set.remove(fd);
                readiness |= flag;
            }
        }
        readiness
    }
}

impl Mechanism for Select {
    const DESCRIPTION: &'static Description = &DESCRIPTION;

    fn open(options: &Options) -> Result<Self, Error> {
        Self::open_with(&options.typed()?)
    }

    interest_in_memory!();

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.copy_interest();
        self.event_budget = 0;
        let mut invalid = 0;
        let mut called = sys::pselect(self.limit, &mut self.readable, &mut self.writable, timeout);
        if is_bad_descriptor(&called) {
            (invalid, called) = self.select_without_invalid();
        }
        match called {
            Ok(ready) => {
                self.take_wake_up();
                Ok(self.begin_scan(ready + invalid))
            }
            Err(error) => {
                // The sets are unchanged after an error and must not be mistaken for results.
                let words = words(self.limit);
                self.readable.clear_words(words);
                self.writable.clear_words(words);
                match error.raw_os_error() {
                    // EBADF a second time: another thread has just closed one more. The next wait finds it.
                    Some(libc::EINTR | libc::EBADF) => Ok(self.begin_scan(invalid)),
                    _ => Err(Error::Io { call: "pselect6", source: error }),
                }
            }
        }
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        while let Some(fd) = self.next_result() {
            let readiness = self.take_readiness(fd);
            // Only the waker's descriptor has no registration, and the wait has taken its result.
            if let Some((token, _)) = self.registrations.by_fd(fd) {
                return Some(Event { token, readiness });
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.registrations.len()
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        if let Some(waker) = &self.waker {
            return Ok(waker.clone());
        }
        let waker = Waker::new()?;
        let fd = waker.as_fd().as_raw_fd();
        self.check_descriptor(fd)?;
        self.set(fd, Interest::READ);
        self.waker = Some(waker.clone());
        Ok(waker)
    }

    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        // The set is in this process's memory; only the eventfd is shared with the parent.
        self.event_budget = 0;
        if let Some(parent_waker) = self.waker.take() {
            self.delete(parent_waker.as_fd().as_raw_fd());
            self.waker()?;
        }
        Ok(())
    }
}
