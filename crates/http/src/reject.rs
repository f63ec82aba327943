//! Why a request is refused.

use crate::Status;

/// A request that is not taken: answer with `status`, then close the connection.
///
/// The connection is always closed: after a message that was not understood, nobody can say where
/// the next one begins, and guessing is how requests are smuggled (RFC 9112 §11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {}: {reason}", status.code(), status.reason())]
pub struct Reject {
    /// The status of the answer.
    pub status: Status,
    /// What was wrong, in a few words fit for a log or the answer's body.
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
