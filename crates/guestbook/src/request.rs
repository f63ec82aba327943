//! What a store is asked, and what it answers.

use std::sync::Arc;

/// A request to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Somebody visits: count the visit, and say the newest remarks.
    Visit {
        /// How many remarks at most.
        shown: u32,
    },
    /// Keep a remark.
    Post {
        /// The remark, UTF-8.
        remark: Vec<u8>,
    },
}

/// A store's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To a visit.
    Visit {
        /// The newest remarks, the oldest of them first. Whoever else writes into the store decides
        /// what they are: any octets. Several visits that were answered together have one list.
        remarks: Arc<[Vec<u8>]>,
        /// The number of this visit.
        visitor: i64,
    },
    /// The remark is kept: it is there also when the store's process dies now.
    Posted,
}
