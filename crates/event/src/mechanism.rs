//! The trait that every way to wait implements, and the capabilities of each.

mod changes;
pub mod devpoll;
pub mod epoll;
mod in_memory;
#[cfg(feature = "io_uring")]
mod io_uring_error;
pub mod poll;
pub mod select;
pub mod signals;
mod timeout;
#[cfg(feature = "io_uring")]
pub mod uring_poll;

use crate::{Error, Event, Interest, Options, Token, Waker};
use std::{
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

/// The bits of poll(2) that are reported regardless of the interest.
const ALWAYS: u32 = (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) as u32;

bitflags::bitflags! {
    /// The capabilities of a mechanism. Callers check for a capability, never for a name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// Events come once per arrival; a descriptor that stays ready is not reported again.
        /// Without it, a descriptor is reported at every wait for as long as it is ready.
        const EDGE = 1;
        /// Interest changes are gathered and sent to the kernel with the next wait.
        const BATCHED_CHANGES = 1 << 1;
        /// The cost of a wait grows with the interest set, not with the number of ready descriptors.
        const SCANS = 1 << 2;
        /// The kernel's event queue can overflow; the mechanism recovers and counts it. Descriptors
        /// that are ready then are reported again.
        const OVERFLOWS = 1 << 3;
        /// Closing the descriptor alone takes it out of the kernel's interest set. It remains in this
        /// one: see [`Mechanism::add`].
        const CLOSE_REMOVES = 1 << 4;
        /// A descriptor may be reported although the interest in it is empty or other
        /// (`epoll2`): waits return early.
        const SPURIOUS_WAKEUPS = 1 << 5;
        /// The kernel reports an open file description to one interest set only: adding it to a
        /// second set, or [`Mechanism::reopen_after_fork`] in a child, takes it from the first (RT
        /// signals: `F_SETOWN_EX` belongs to the description, not to the descriptor). Of two
        /// descriptors of one description (dup(2), or a terminal as standard input and output) only the
        /// one added first is reported, and removing one of them silences both.
        const ONE_OWNER = 1 << 6;
        /// With an empty interest not even errors and hang-ups are reported, and with an interest in
        /// writing alone no hang-up: select(2) has no set for them.
        const ERRORS_NEED_INTEREST = 1 << 7;
        /// Regular files and directories can be added; they are reported ready at every wait, as
        /// poll(2) does. Without it they are refused: see [`Mechanism::add`].
        const TAKES_FILES = 1 << 8;
        /// It waits with io_uring: a sandbox must allow io_uring_setup(2), and cannot filter the system
        /// calls that are submitted to a ring.
        const USES_RING = 1 << 9;
    }
}

/// A mechanism's entry in the registry.
#[derive(Debug)]
#[non_exhaustive]
pub struct Description {
    /// The name on the command line.
    pub name: &'static str,
    /// One line for `pollux doctor` and `--help`.
    pub summary: &'static str,
    /// The part of the papers about it, or the way in which it goes beyond them.
    pub paper: &'static str,
    /// The capabilities with the default options; see [`Mechanism::capabilities`].
    pub capabilities: Capabilities,
    /// Its own options: key, allowed values (the first is the default), meaning. An empty list of
    /// values means a number.
    pub own_options: &'static [(&'static str, &'static [&'static str], &'static str)],
}

/// An interest set and a way to wait for its descriptors.
///
/// # What an event means
///
/// An event says that its descriptor was ready when the kernel looked. The state may have changed
/// since: **every event may be spurious**, and the read or write that follows may return `WouldBlock`.
/// Errors and hang-ups are reported regardless of the interest, except with
/// [`Capabilities::ERRORS_NEED_INTEREST`] and except those for which the kernel sends no signal
/// ([`signals`]).
///
/// With [`Capabilities::EDGE`] the caller must read (or write) until `WouldBlock`, or remember that it
/// did not: no further event reports the rest. If a descriptor is ready when it is added, or when its
/// interest is modified, every mechanism reports it at the next wait.
///
/// An event never belongs to a registration that has ended: [`Mechanism::next_event`] drops events
/// of descriptors that were closed or removed since the wait, even when their number has been
/// registered again.
///
/// # Order
///
/// `wait`, then `next_event` until it returns `None`, then `wait` again. Adding, modifying,
/// removing and closing are allowed between any two of these. If a `wait` begins before all events
/// were taken, level-triggered mechanisms discard the rest and report it again; edge-triggered ones
/// hand out the rest first.
///
/// No descriptor starves when more are ready than the buffer holds.
pub trait Mechanism: Sized + 'static {
    /// The mechanism's entry in the registry.
    const DESCRIPTION: &'static Description;

    /// The capabilities of the mechanism with these options, which can change them: RT signals that
    /// hand over to poll(2) on overflow are level-triggered throughout. Query this once, before the
    /// loop, instead of [`Description::capabilities`].
    fn capabilities(options: &Options) -> Capabilities {
        let _ = options;
        Self::DESCRIPTION.capabilities
    }

    /// Opens an empty interest set.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the kernel does not offer the mechanism, with the reason;
    /// [`Error::Io`] on EMFILE and its like.
    fn open(options: &Options) -> Result<Self, Error>;

    /// Adds `fd` to the interest set. The descriptor must be non-blocking and must stay open
    /// until [`Mechanism::remove`] or [`Mechanism::close`]: otherwise its number remains registered,
    /// and the next descriptor with this number is refused.
    ///
    /// # Errors
    /// [`Error::AlreadyAdded`]; [`Error::DescriptorTooLarge`] (`select`); [`Error::CannotWait`] for
    /// files that are always ready, which the kernel never reports: regular files, directories and
    /// devices such as /dev/null, except with `poll`, `select` and `devpoll`
    /// ([`Capabilities::TAKES_FILES`]); with `rtsig` also files that send no signals, such as
    /// eventfds; [`Error::Io`] (epoll: ENOSPC, ENOMEM).
    ///
    /// Mechanisms with [`Capabilities::BATCHED_CHANGES`] may report a refusal at the next wait,
    /// once, as an event with only [`crate::Readiness::ERROR`]. `epoll-ctlv` and `uring-poll` do so
    /// for files that are always ready, because checking the kind of each descriptor would be a
    /// system call per connection.
    fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error>;

    /// Replaces the interest in `token`. With an empty interest only errors and hang-ups are
    /// reported.
    ///
    /// # Errors
    /// [`Error::NotAdded`]; [`Error::Io`].
    fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error>;

    /// Takes `token` out of the interest set; its descriptor stays open.
    ///
    /// # Errors
    /// [`Error::NotAdded`]; [`Error::Io`], after which the registration has ended nevertheless: the
    /// descriptor was closed before, for example.
    fn remove(&mut self, token: Token) -> Result<(), Error>;

    /// Takes `token` out of the interest set and closes its descriptor, in the order and with
    /// the fewest system calls that the mechanism allows. The peer sees the close at once, or at
    /// the latest with the next wait. `fd` must be the only descriptor of its open file
    /// description (see epoll(7), Q6), as accepted sockets are.
    ///
    /// # Errors
    /// [`Error::NotAdded`]: the descriptor is closed nevertheless.
    fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error>;

    /// Waits until a registration is ready, the timeout is over, or a [`Waker`] is used.
    ///
    /// `None` waits for ever, zero does not wait. A finite timeout is rounded *up* to the
    /// mechanism's resolution (1 ms for epoll); otherwise a shorter wait would become a busy loop.
    /// Returns how many kernel events are in the buffer; [`Mechanism::next_event`] may hand out
    /// fewer. Returns 0 early on EINTR, so that the caller can check what its signal handler did.
    ///
    /// # Errors
    /// [`Error::Io`] on ENOMEM and its like; the set is unchanged and a later wait may succeed.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error>;

    /// The next event of the last wait; `None` after the last one.
    fn next_event(&mut self) -> Option<Event>;

    /// The number of registrations.
    fn len(&self) -> usize;

    /// Whether the interest set is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counters of this mechanism (overflows, recoveries, switches), and times whose unit ends the
    /// name. For statistics, not for the hot path.
    fn statistics(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// A handle with which any thread can make the present or the next wait return.
    ///
    /// # Errors
    /// [`Error::Io`] when no eventfd is available.
    fn waker(&mut self) -> Result<Waker, Error>;

    /// After fork(2), in the child: opens a new kernel object with the same interest set and the
    /// same tokens, so that parent and child share nothing (epoll(7), Q6; a ring must never be
    /// shared). Wakers of the parent do not wake the child.
    ///
    /// # Errors
    /// [`Error::Io`].
    fn reopen_after_fork(&mut self) -> Result<(), Error>;
}
