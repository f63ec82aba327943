//! The errors of mechanisms.

use std::{io, os::fd::RawFd};

/// An error of a mechanism. Each message names the descriptor, limit or feature at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This kernel, or this process's permissions, do not offer the mechanism.
    #[error("mechanism {mechanism} is not available here: {reason}")]
    Unavailable {
        /// The mechanism's name as on the command line.
        mechanism: &'static str,
        /// The attempt, the kernel's answer, and the remedy.
        reason: String,
    },
    /// No mechanism has this name, or the mechanism has no such option.
    #[error("{0}")]
    Spec(String),
    /// The descriptor is above the mechanism's maximum (`select`: FD_SETSIZE).
    #[error("descriptor {fd} does not fit: {mechanism} holds descriptors below {limit} only")]
    DescriptorTooLarge {
        /// The mechanism's name.
        mechanism: &'static str,
        /// The descriptor that was passed.
        fd: RawFd,
        /// The first number that does not fit.
        limit: usize,
    },
    /// The descriptor is in the set already; use modify.
    #[error("descriptor {0} is already in the interest set")]
    AlreadyAdded(RawFd),
    /// The token's descriptor is not, or no longer, in the interest set.
    #[error("descriptor {0} is not in the interest set")]
    NotAdded(RawFd),
    /// The mechanism cannot wait for this kind of descriptor (EPERM).
    #[error("descriptor {fd} cannot be waited for: {reason}")]
    CannotWait {
        /// The descriptor that was passed.
        fd: RawFd,
        /// The reason, and an alternative.
        reason: &'static str,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    Io {
        /// The system call.
        call: &'static str,
        /// The error that it returned.
        source: io::Error,
    },
}

impl Error {
    /// An error from the system call `call`, for `map_err`.
    pub fn io(call: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { call, source }
    }

    /// The operating system's error number, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Error::Io { source, .. } => source.raw_os_error(),
            Error::CannotWait { .. } => Some(libc::EPERM),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Io { source, .. } => source,
            refusal @ Error::CannotWait { .. } => {
                io::Error::new(io::ErrorKind::PermissionDenied, refusal)
            }
            other => io::Error::other(other),
        }
    }
}
