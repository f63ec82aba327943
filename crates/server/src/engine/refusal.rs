//! What an error of accept(2) means, for every engine.

use std::io;

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The queue is empty.
    Empty,
    /// The connection was dead before it was accepted, or a signal came; there may be others.
    Dead,
    /// A descriptor or memory is wanting.
    Exhausted,
    /// A policy forbids it: the next call fails, too, until the policy changes.
    Forbidden,
    /// It is no listener any more (a process that shares it has shut it down), and every call would
    /// fail in the same way.
    Gone,
}

impl Refusal {
    /// What this error means. An unknown error does not pass by itself either: if it were taken for
    /// an empty queue, the mechanism would report the connection again at once, without end.
    #[cold]
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Self::Empty,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => Self::Exhausted,
            Some(libc::EINVAL | libc::EBADF | libc::ENOTSOCK) => Self::Gone,
            // accept(2), "Error handling": errors of the new connection are handed over here, and are
            // none of ours. Not EOPNOTSUPP, which is this listener's own.
            Some(
                libc::ECONNABORTED
                | libc::EINTR
                | libc::ENETDOWN
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH
                | libc::ETIMEDOUT
                | libc::ECONNRESET,
            ) => Self::Dead,
            // EPERM and EACCES of a firewall or a security module, ENOSYS of a seccomp filter,
            // EOPNOTSUPP, and whatever else there may be.
            _ => Self::Forbidden,
        }
    }

    /// What to do about it; for messages.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::Exhausted => {
                "Raise the limit with `ulimit -n`, or lower --max-connections or --pool"
            }
            _ => "Look for a seccomp filter, a firewall or a security module that forbids it",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_passes_by_itself_is_passed_over() {
        for (number, meaning) in [
            (libc::EAGAIN, Refusal::Empty),
            (libc::ECONNABORTED, Refusal::Dead),
            (libc::EINTR, Refusal::Dead),
            (libc::EMFILE, Refusal::Exhausted),
            (libc::EINVAL, Refusal::Gone),
            (libc::EPERM, Refusal::Forbidden),
            (libc::ENOSYS, Refusal::Forbidden),
            (libc::EIO, Refusal::Forbidden),
        ] {
            assert_eq!(Refusal::of(&io::Error::from_raw_os_error(number)), meaning, "{number}");
        }
    }
}
