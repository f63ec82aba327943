//! The meaning of an error of accept(2), for every engine.

use std::io;

/// The reason why accept(2) has returned no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The queue is empty.
    Empty,
    /// The connection was closed before it was accepted, or a signal interrupted the call; other
    /// connections may be waiting.
    Dead,
    /// The process or the system has no free descriptor or memory.
    Exhausted,
    /// A policy forbids the call. The next call fails too, until the policy changes.
    Forbidden,
    /// The socket is no longer a listener (a process that shares it has shut it down). Every further call
    /// would fail in the same way.
    Gone,
}

impl Refusal {
    /// Returns the meaning of this error. An unknown error counts as lasting: if it were treated as an
    /// empty queue, the mechanism would report the connection again at once, without end.
    #[cold]
    pub(crate) fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Self::Empty,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => Self::Exhausted,
            Some(libc::EINVAL | libc::EBADF | libc::ENOTSOCK) => Self::Gone,
            // accept(2), "Error handling": accept returns errors of the new connection here, and they do
            // not concern the listener. EOPNOTSUPP is not in this list, because it is an error of the
            // listener.
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
            // EPERM and EACCES of a firewall or a security module, ENOSYS of a seccomp filter, EOPNOTSUPP,
            // and all unknown errors.
            _ => Self::Forbidden,
        }
    }

    /// Returns advice for the operator; for messages.
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
