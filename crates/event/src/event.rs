//! Interest, readiness, token and event.

use std::os::fd::RawFd;

bitflags::bitflags! {
    /// The conditions of a descriptor that a mechanism reports to the caller.
    ///
    /// Errors and hang-ups are always reported, regardless of the interest (poll(2)).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Interest: u8 {
        /// Report when a read would not block.
        const READ = 1;
        /// Report when a write would not block.
        const WRITE = 2;
    }
}

bitflags::bitflags! {
    /// The conditions of a descriptor that an event reports.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Readiness: u8 {
        /// A read would not block: there is data, an end of stream, or an error to collect.
        const READABLE = 1;
        /// A write would not block.
        const WRITABLE = 2;
        /// The peer shut down its writing half (POLLRDHUP). Not every mechanism reports it; a read
        /// that returns 0 is the portable sign.
        const READ_CLOSED = 4;
        /// Both directions are closed (POLLHUP).
        const HANGUP = 8;
        /// An error is pending on the descriptor (POLLERR).
        const ERROR = 16;
        /// The descriptor was closed without the mechanism's knowledge (POLLNVAL).
        const INVALID = 32;
    }
}

impl Readiness {
    /// A read should be tried: it will return data, an end of stream or the error.
    #[inline]
    pub fn is_readable(self) -> bool {
        self.intersects(Self::READABLE | Self::READ_CLOSED | Self::HANGUP | Self::ERROR)
    }

    /// A write should be tried: it will take bytes or return the error.
    #[inline]
    pub fn is_writable(self) -> bool {
        self.intersects(Self::WRITABLE | Self::HANGUP | Self::ERROR)
    }

    /// From the bits of poll(2), which epoll and io_uring share.
    #[inline]
    pub fn from_poll_bits(bits: u32) -> Self {
        let mut readiness = Self::empty();
        let mut set = |bit: i16, flag: Self| {
            if bits & bit as u16 as u32 != 0 {
                readiness |= flag;
            }
        };
        set(libc::POLLIN | libc::POLLPRI, Self::READABLE);
        set(libc::POLLOUT, Self::WRITABLE);
        set(libc::POLLRDHUP, Self::READ_CLOSED);
        set(libc::POLLHUP, Self::HANGUP);
        set(libc::POLLERR, Self::ERROR);
        set(libc::POLLNVAL, Self::INVALID);
        readiness
    }
}

impl Interest {
    /// The part of `readiness` that this interest includes, with errors and hang-ups. For
    /// mechanisms whose kernel interface reports more than was requested.
    #[inline]
    pub fn mask(self, readiness: Readiness) -> Readiness {
        let mut wanted = Readiness::HANGUP | Readiness::ERROR | Readiness::INVALID;
        wanted.set(Readiness::READABLE | Readiness::READ_CLOSED, self.contains(Self::READ));
        wanted.set(Readiness::WRITABLE, self.contains(Self::WRITE));
        readiness & wanted
    }

    /// The bits of poll(2), which epoll and io_uring share. Read interest includes POLLRDHUP.
    #[inline]
    pub fn to_poll_bits(self) -> u32 {
        let mut bits = 0;
        if self.contains(Self::READ) {
            bits |= (libc::POLLIN | libc::POLLRDHUP) as u32;
        }
        if self.contains(Self::WRITE) {
            bits |= libc::POLLOUT as u32;
        }
        bits
    }
}

/// One registration of one descriptor: the descriptor's number and the generation of its use.
///
/// Descriptor numbers are reused at once. The generation distinguishes the uses, so that an event
/// reported for a closed descriptor never reaches the connection that got its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// The descriptor's number: a dense index, for tables.
    pub fd: RawFd,
    /// Counts the registrations of this number. 24 bits, wraps.
    pub generation: u32,
}

impl Token {
    /// Packs the token into the 64 bits of user data that epoll and io_uring carry.
    #[inline]
    pub fn to_bits(self) -> u64 {
        (u64::from(self.generation) << 32) | self.fd as u32 as u64
    }

    /// The reverse of [`Token::to_bits`].
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self { fd: bits as u32 as RawFd, generation: (bits >> 32) as u32 }
    }
}

/// One descriptor that is, or recently was, ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The registration that the event belongs to; it is always live.
    pub token: Token,
    /// The operations that the descriptor is ready for.
    pub readiness: Readiness,
}
