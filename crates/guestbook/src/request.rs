//! Requests to a store, and its answers.

use std::sync::Arc;

/// A request to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A visit: count it, and return the newest remarks.
    Visit {
        /// The maximum number of remarks to return.
        shown: u32,
    },
    /// Store a remark.
    Post {
        /// The remark in UTF-8.
        remark: Vec<u8>,
    },
}

/// The answer of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The answer to a visit.
    Visit {
        /// The newest remarks in the order in which they were written. Other programs may write to
        /// the store, so they may contain any bytes. Visits that were answered together share one
        /// list.
        remarks: Arc<[Vec<u8>]>,
        /// The number of this visit.
        visitor: i64,
    },
    /// The remark is stored durably, even if the store's process ends now.
    Posted,
}
