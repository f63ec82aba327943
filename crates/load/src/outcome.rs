//! How a request ends: with a reply, or in exactly one kind of error.

use crate::tls::TlsError;
use std::io;

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Failure {
    /// No complete reply within the time limit, or no connection within its own.
    Timeout,
    /// The connection was refused (ECONNREFUSED).
    Refused,
    /// The server reset the connection (ECONNRESET, EPIPE).
    Reset,
    /// The server closed the connection before the reply was complete.
    ClosedEarly,
    /// The limit on connections was reached, and none was free ([`crate::config::AtLimit::Fail`]).
    NoConnection,
    /// No descriptor was left (EMFILE, ENFILE).
    NoDescriptors,
    /// No local port was left (EADDRNOTAVAIL).
    NoPorts,
    /// The reply was malformed, or its length was not the expected one.
    BadReply,
    /// The TLS handshake failed, a record could not be opened, or the server sent a fatal alert.
    Tls,
    /// A complete reply with an unexpected status.
    Status,
    /// Any other error, such as an unreachable host.
    Other,
}

impl Failure {
    /// All kinds, in the order of the reports.
    pub const ALL: [Self; 11] = [
        Self::Timeout,
        Self::Refused,
        Self::Reset,
        Self::ClosedEarly,
        Self::NoConnection,
        Self::NoDescriptors,
        Self::NoPorts,
        Self::BadReply,
        Self::Tls,
        Self::Status,
        Self::Other,
    ];

    /// The kind of a failed system call.
    #[cold]
    pub fn from_io(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Self::Refused,
            Some(libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED) => Self::Reset,
            Some(libc::ETIMEDOUT) => Self::Timeout,
            Some(libc::EMFILE | libc::ENFILE) => Self::NoDescriptors,
            Some(libc::EADDRNOTAVAIL) => Self::NoPorts,
            // The end of a TLS connection without close_notify.
            None if error.kind() == io::ErrorKind::UnexpectedEof => Self::ClosedEarly,
            None if error.get_ref().is_some_and(|error| error.is::<TlsError>()) => Self::Tls,
            _ => Self::Other,
        }
    }

    /// The key in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::Reset => "reset",
            Self::ClosedEarly => "closed_early",
            Self::NoConnection => "no_connection",
            Self::NoDescriptors => "no_descriptors",
            Self::NoPorts => "no_ports",
            Self::BadReply => "bad_reply",
            Self::Tls => "tls",
            Self::Status => "status",
            Self::Other => "other",
        }
    }

    /// The remedy, if the generator's host lacked a resource.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Self::NoDescriptors => Some(
                "each thread has `ulimit -Hn` descriptors for itself: add --threads, raise the limit, \
                 or let requests wait for a connection with --max-connections",
            ),
            Self::NoPorts => Some(
                "each source address has some 28,000 ports to one server and address: give more with \
                 --source 127.0.1.0/24, or leave no TIME_WAIT behind with --close reset",
            ),
            _ => None,
        }
    }
}

/// The number of failed requests by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Failures([u64; Failure::ALL.len()]);

impl Failures {
    /// Counts one failure.
    #[inline]
    pub fn add(&mut self, kind: Failure) {
        self.0[kind as usize] += 1;
    }

    /// The number of failures of this kind.
    pub fn of(&self, kind: Failure) -> u64 {
        self.0[kind as usize]
    }

    /// The number of failures of all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds the failures of another thread.
    pub fn merge(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own += other;
        }
    }
}

/// The number of requests by outcome. `scheduled` = `completed` + `failed` + `unsent` + `unfinished`.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Requests {
    /// Requests whose instant lies in the measured part.
    pub scheduled: u64,
    /// Sent, whole or in part.
    pub sent: u64,
    /// Answered as expected.
    pub completed: u64,
    /// Ended in an error.
    pub failed: u64,
    /// Requests that the generator never dispatched.
    pub unsent: u64,
    /// Without an outcome when the run was interrupted.
    pub unfinished: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_place() {
        for (index, kind) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
            let mut failures = Failures::default();
            failures.add(kind);
            assert_eq!((failures.of(kind), failures.total()), (1, 1));
        }
    }

    #[test]
    fn system_errors_have_their_kind() {
        let of = |code| Failure::from_io(&io::Error::from_raw_os_error(code));
        assert_eq!(of(libc::EMFILE), Failure::NoDescriptors);
        assert_eq!(of(libc::EADDRNOTAVAIL), Failure::NoPorts);
        assert_eq!(of(libc::EPIPE), Failure::Reset);
        assert_eq!(of(libc::EHOSTUNREACH), Failure::Other);
    }
}
