//! `devpoll`: /dev/poll of Provos and Lever (provos §3), from the kernel module `kmod/devpoll`.
//!
//! The kernel keeps the interest set, which write(2) of an array of `pollfd` changes. Hints from the
//! sockets tell a wait which entries to examine. Level-triggered.
//!
//! # Changes
//! Additions, modifications and removals are gathered until the next wait. With `update=separate`
//! one write(2) sends them before the ioctl(2) that waits, the pair of calls that the paper
//! discusses (§6). With `update=combined` one ioctl sends them and waits, as §6 suggests. Several
//! changes of one descriptor are sent as one, or not at all if they restore the kernel's present
//! interest.
//!
//! # Closing
//! A hinted descriptor that is closed posts no hint: its entry would stay in the set and could be
//! reported as invalid later. So it must be removed, but not at once: `close` closes the descriptor
//! and queues a POLLREMOVE for the next batch, which costs no system call of its own. This is safe
//! for four reasons. Nothing examines the set before that batch. The module holds the socket's
//! inode, never the file, so the peer sees the close at once. The removal names a number, so a new
//! descriptor with that number is not affected. And if the number was added again, the batch
//! contains only that addition: the module ends an interest with its file, even if both interests
//! are the same. Until the batch is sent, results of the last wait for the number are dropped.

use super::{changes::ChangesByNumber, in_memory::interest_in_memory, timeout::timeout_ms};
use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, Options, Readiness, Token, Waker,
    options::own::{choice, own_options},
    registration::Registrations,
};
use pollux_sys::{self as sys, PollFd, ResultSpace};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

const DESCRIPTION: Description = Description {
    name: "devpoll",
    summary: "/dev/poll: the set is kept in the kernel, hints limit what a wait examines",
    paper: "provos §3, figs 4-10; §6 (update=combined)",
    capabilities: Capabilities::BATCHED_CHANGES.union(Capabilities::TAKES_FILES),
    own_options: &[
        (
            "results",
            Results::NAMES,
            "whether results are copied out or read from a mapping (provos §3.3)",
        ),
        (
            "update",
            Update::NAMES,
            "whether changes are a write() before the wait or go with it in one ioctl (provos §6)",
        ),
        (
            "hints",
            &["on", "off"],
            "whether drivers' hints are used; without them each entry is polled at each scan",
        ),
        (
            "scan",
            Scan::NAMES,
            "whether a scan looks at what was hinted alone, or walks the whole set (provos §3.2)",
        ),
    ],
};

choice! {
    /// How the results of a wait reach the program.
    Results {
        /// They are copied out.
        Copied = "copy",
        /// They are read from a mapping (provos §3.3).
        Mapped = "mmap",
    }
}

choice! {
    /// How changes of interest are sent to the kernel.
    Update {
        /// By a write(2) before the wait.
        Separate = "separate",
        /// With the wait, in one ioctl(2) (provos §6).
        Combined = "combined",
    }
}

choice! {
    /// Which entries a scan examines.
    Scan {
        /// Only entries with a hint.
        List = "list",
        /// All entries (provos §3.2).
        Table = "table",
    }
}

own_options! {
    /// The options of `devpoll`.
    DevPollOptions of "devpoll" {
        /// Whether results are copied out or read from a mapping.
        results by with_results as "results": Results = Results::default();
        /// Whether a system call of their own sends changes, or the wait does.
        update by with_update as "update": Update = Update::default();
        /// Whether drivers' hints are used; without them each entry is polled at each scan.
        hints by with_hints as "hints": bool = true;
        /// Which entries a scan examines.
        scan by with_scan as "scan": Scan = Scan::default();
    }
}

/// The most changes in one call. An iteration of a server's loop makes a few per event, and an
/// event buffer holds 512.
const BATCH: usize = 1024;

/// An open /dev/poll and the contents of its set.
#[derive(Debug)]
pub struct DevPoll {
    device: OwnedFd,
    registrations: Registrations,
    changes: ChangesByNumber,
    /// Changes that are being sent to the kernel, oldest first; kept if they could not be sent.
    batch: Vec<PollFd>,
    results: ResultSpace,
    /// The number of results that the last wait found, and the index of the next one.
    found: usize,
    next: usize,
    setup: Setup,
    /// Registrations that the kernel refused, to be reported as events.
    refused: Vec<Event>,
    refusals: u64,
    batches: u64,
    waker: Option<Waker>,
}

/// The settings that the options select.
#[derive(Clone, Copy, Debug)]
struct Setup {
    mapped: bool,
    combined: bool,
    /// DP_SETOPTIONS.
    device: i32,
    max_events: usize,
}

impl Setup {
    fn of(options: &Options<DevPollOptions>) -> Self {
        let own = &options.own;
        Self {
            mapped: own.results == Results::Mapped,
            combined: own.update == Update::Combined,
            device: if own.hints { 0 } else { sys::DEVPOLL_NO_HINTS }
                | if own.scan == Scan::Table { sys::DEVPOLL_TABLE } else { 0 },
            max_events: options.event_limit(),
        }
    }
}

/// A new set with these options (DP_SETOPTIONS), for `mechanism`.
pub(super) fn open_set(mechanism: &'static str, options: i32) -> Result<OwnedFd, Error> {
    let unavailable = |reason| Error::Unavailable { mechanism, reason };
    let device = sys::devpoll_open().map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
            unavailable("no /dev/poll: load kmod/devpoll, or use `pollux vm`".into())
        }
        Some(libc::EACCES | libc::EPERM) => unavailable(format!(
            "/dev/poll: {source}: load kmod/devpoll with mode=0666, or chmod the device"
        )),
        _ => Error::Io { call: "open /dev/poll", source },
    })?;
    sys::devpoll_set_options(device.as_fd(), options).map_err(|source| {
        match source.raw_os_error() {
            Some(libc::ENOTTY | libc::EINVAL) => unavailable(format!(
                "/dev/poll does not know DP_SETOPTIONS ({source}): it is not that of kmod/devpoll, \
                 or of an older version; load this one"
            )),
            _ => Error::Io { call: "ioctl DP_SETOPTIONS", source },
        }
    })?;
    Ok(device)
}

/// A new set with room for its results.
fn open_device(setup: Setup) -> Result<(OwnedFd, ResultSpace), Error> {
    let device = open_set(DESCRIPTION.name, setup.device)?;
    let results = if setup.mapped {
        ResultSpace::mapped(device.as_fd(), setup.max_events)
            .map_err(Error::io("ioctl DP_ALLOC and mmap"))?
    } else {
        ResultSpace::copied(setup.max_events)
    };
    Ok((device, results))
}

/// Whether a call failed because the module refused one of the changes: the descriptor is a
/// /dev/poll, the user's limit is reached, or there is no memory.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOSPC | libc::ENOMEM))
}

fn change(fd: RawFd, interest: Option<Interest>) -> PollFd {
    let events = interest.map_or(sys::POLL_REMOVE, |interest| interest.to_poll_bits() as i16);
    PollFd { fd, events, revents: 0 }
}

impl DevPoll {
    /// The registrations; for `hybrid`, which has no table of its own.
    #[inline]
    pub(super) fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    /// As [`Mechanism::open`], with options that have types.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(options: &Options<DevPollOptions>) -> Result<Self, Error> {
        let setup = Setup::of(options);
        let (device, results) = open_device(setup)?;
        Ok(Self {
            device,
            registrations: Registrations::default(),
            changes: ChangesByNumber::default(),
            batch: Vec::with_capacity(BATCH),
            results,
            found: 0,
            next: 0,
            setup,
            refused: Vec::new(),
            refusals: 0,
            batches: 0,
            waker: None,
        })
    }

    fn check_descriptor(&self, _: RawFd) -> Result<(), Error> {
        Ok(())
    }

    #[inline]
    fn set(&mut self, fd: RawFd, _: Interest) {
        self.changes.queue(fd);
    }

    #[inline]
    fn delete(&mut self, fd: RawFd) {
        self.changes.end(fd);
    }

    /// Moves changes into the batch while it has room.
    #[inline]
    fn fill_batch(&mut self) {
        while self.batch.len() < BATCH {
            let interest = |fd| self.registrations.by_fd(fd).map(|(_, interest)| interest);
            let Some((fd, interest)) = self.changes.take(interest) else { break };
            self.batch.push(change(fd, interest));
        }
    }

    /// Sends all changes. If the wait can send changes, the last batch is left for it.
    #[inline]
    fn send_changes(&mut self, combined: bool) -> Result<(), Error> {
        loop {
            self.fill_batch();
            if self.batch.is_empty() || combined && self.changes.is_empty() {
                return Ok(());
            }
            self.send()?;
        }
    }

    /// Sends the changes when they fill a batch, for callers that update a set without waiting for
    /// it. Discards the events of the last wait, which could otherwise be taken for those of a
    /// later registration.
    #[inline]
    pub(super) fn send_if_many(&mut self) -> Result<(), Error> {
        if self.changes.len() < BATCH {
            return Ok(());
        }
        self.next = self.found;
        self.send_changes(false)
    }

    /// Writes the batch. After an error, the next wait sends the rest first.
    fn send(&mut self) -> Result<(), Error> {
        self.batches += 1;
        match sys::devpoll_write(self.device.as_fd(), &self.batch) {
            Ok(0) => Err(Error::Io { call: "write", source: io::ErrorKind::WriteZero.into() }),
            Ok(taken) => {
                self.batch.drain(..taken);
                Ok(())
            }
            Err(error) if is_refusal(&error) => self.send_singly(),
            Err(source) => Err(Error::Io { call: "write", source }),
        }
    }

    /// The kernel refused one change of the batch and does not say which. Each is sent again by
    /// itself, which changes nothing for those that were accepted.
    #[cold]
    fn send_singly(&mut self) -> Result<(), Error> {
        while let Some(&change) = self.batch.first() {
            match sys::devpoll_write(self.device.as_fd(), &[change]) {
                Ok(_) => {}
                Err(error) if is_refusal(&error) => self.record_refusal(change.fd)?,
                Err(source) => return Err(Error::Io { call: "write", source }),
            }
            self.batch.remove(0);
        }
        Ok(())
    }

    fn record_refusal(&mut self, fd: RawFd) -> Result<(), Error> {
        self.refusals += 1;
        // After ELOOP the set still contains the earlier entry of the number.
        sys::devpoll_write(self.device.as_fd(), &[change(fd, None)]).map_err(Error::io("write"))?;
        self.changes.refuse(fd);
        if let Some((token, _)) = self.registrations.by_fd(fd) {
            self.refused.push(Event { token, readiness: Readiness::ERROR });
        }
        Ok(())
    }

    /// Handles an error of the wait that sent the batch. EINTR concerns the wait alone: the module
    /// returns it only after the whole batch was applied. With any other error some changes may not
    /// have been applied; applying a change twice is harmless.
    #[cold]
    fn recover_failed_update(&mut self, source: io::Error) -> Result<usize, Error> {
        if source.raw_os_error() == Some(libc::EINTR) {
            self.batches += 1;
            self.batch.clear();
            return Ok(self.refused.len());
        }
        let refused_before = self.refusals;
        self.send()?;
        if self.refusals == refused_before {
            return Err(Error::Io { call: "ioctl DP_UPDATE_POLL", source });
        }
        self.found = sys::devpoll_wait(self.device.as_fd(), &[], &mut self.results, 0)
            .map_err(Error::io("ioctl DP_POLL"))?;
        self.take_wake_up();
        Ok(self.found + self.refused.len())
    }

    /// Whether the last wait reported `fd`, and its result has not been taken.
    #[inline]
    pub(super) fn is_reported(&self, fd: RawFd) -> bool {
        (self.next..self.found).any(|index| self.results.get(index).fd == fd)
    }

    /// Drains the waker if it is reported. The wait does this: a wake-up that follows is for the next
    /// wait, even if the events of this one have not been taken yet.
    #[inline]
    fn take_wake_up(&self) {
        if let Some(waker) = &self.waker
            && self.is_reported(waker.as_fd().as_raw_fd())
        {
            waker.drain();
        }
    }

    /// Adds the waker's reading end to the set at once.
    fn watch_waker(&mut self) -> Result<Waker, Error> {
        let waker = Waker::over_sockets()?;
        let entry = change(waker.as_fd().as_raw_fd(), Some(Interest::READ));
        sys::devpoll_write(self.device.as_fd(), &[entry]).map_err(Error::io("write"))?;
        self.waker = Some(waker.clone());
        Ok(waker)
    }
}

impl Mechanism for DevPoll {
    const DESCRIPTION: &'static Description = &DESCRIPTION;

    fn capabilities(options: &Options) -> Capabilities {
        match options.typed().map(|options| Setup::of(&options).device) {
            Ok(0) | Err(_) => DESCRIPTION.capabilities,
            Ok(_) => DESCRIPTION.capabilities | Capabilities::SCANS,
        }
    }

    fn open(options: &Options) -> Result<Self, Error> {
        Self::open_with(&options.typed()?)
    }

    interest_in_memory!();

    #[inline]
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.found = 0;
        self.next = 0;
        if !(self.changes.is_empty() && self.batch.is_empty()) {
            self.send_changes(self.setup.combined)?;
        }
        let timeout_ms = if self.refused.is_empty() { timeout_ms(timeout) } else { 0 };
        let device = self.device.as_fd();
        match sys::devpoll_wait(device, &self.batch, &mut self.results, timeout_ms) {
            Ok(found) => {
                if !self.batch.is_empty() {
                    self.batches += 1;
                    self.batch.clear();
                }
                self.found = found;
                self.take_wake_up();
                Ok(found + self.refused.len())
            }
            Err(source) if !self.batch.is_empty() => self.recover_failed_update(source),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(self.refused.len()),
            Err(source) => Err(Error::Io { call: "ioctl DP_POLL", source }),
        }
    }

    #[inline]
    fn next_event(&mut self) -> Option<Event> {
        while let Some(event) = self.refused.pop() {
            if self.registrations.interest(event.token).is_some() {
                return Some(event);
            }
        }
        while self.next < self.found {
            let result = self.results.get(self.next);
            self.next += 1;
            // Drop results for an earlier registration of the number. The waker's number has none, and
            // the wait has drained it.
            if let Some((token, _)) = self.registrations.by_fd(result.fd)
                && self.changes.is_current(result.fd)
            {
                let readiness = Readiness::from_poll_bits(u32::from(result.revents as u16));
                return Some(Event { token, readiness });
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.registrations.len()
    }

    /// The module's counters for this set, and those of the gathered changes.
    fn statistics(&self) -> Vec<(&'static str, u64)> {
        let mut figures =
            vec![("change_batches", self.batches), ("changes_refused", self.refusals)];
        if let Ok(counters) = sys::devpoll_statistics(self.device.as_fd()) {
            figures.extend([
                ("changes_sent", counters.changes),
                ("entries", counters.entries),
                ("hinted", counters.hinted),
                ("scans", counters.scans),
                ("driver_polls", counters.driver_polls),
                ("hook_polls", counters.hook_polls),
                ("hints", counters.hints),
                ("cached", counters.cached),
                ("results", counters.results),
                ("sleeps", counters.sleeps),
                ("wakeups", counters.wakeups),
            ]);
        }
        figures
    }

    fn waker(&mut self) -> Result<Waker, Error> {
        match &self.waker {
            Some(waker) => Ok(waker.clone()),
            None => self.watch_waker(),
        }
    }

    /// The parent's set refuses the child, because its owner is the first process that used it. So
    /// the child opens its own.
    fn reopen_after_fork(&mut self) -> Result<(), Error> {
        (self.device, self.results) = open_device(self.setup)?;
        self.found = 0;
        self.next = 0;
        self.refused.clear();
        self.batch.clear();
        self.changes.clear();
        for (token, _) in self.registrations.iter() {
            self.changes.queue(token.fd);
        }
        if self.waker.take().is_some() {
            self.watch_waker()?;
        }
        self.send_changes(false)
    }
}
