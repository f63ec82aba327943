//! The reason why a request is rejected.

use crate::Status;

/// A rejected request: respond with `status`, then close the connection.
///
/// The connection is always closed. After a message that was not understood the start of the next
/// one is unknown, and guessing it would permit request smuggling (RFC 9112 §11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {}: {reason}", status.code(), status.reason())]
pub struct Reject {
    /// The status of the response.
    pub status: Status,
    /// The fault, in a few words for a log or for the body of the response.
    pub reason: &'static str,
}

impl Reject {
    pub(crate) const fn new(status: Status, reason: &'static str) -> Self {
        Self { status, reason }
    }

    pub(crate) const fn bad(reason: &'static str) -> Self {
        Self::new(Status::BadRequest, reason)
    }
}
