//! A client that is to be another process' own.

use super::ExchangeId;
use std::{io, path::Path, sync::Arc};

/// Whose client, and to whom.
#[derive(Debug)]
pub(crate) struct HandOver {
    pub(crate) exchange: ExchangeId,
    /// The path of the receiving process's socket.
    pub(crate) path: Arc<Path>,
    /// The request's head, byte by byte.
    pub(crate) head: Vec<u8>,
    line: usize,
}

/// Why a client was not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// Replies to its earlier requests have not left yet.
    OutputFirst,
    /// Nobody is there, or takes more.
    Error(io::ErrorKind),
}

impl HandOver {
    /// The client of `exchange`; `line` is the request line, with which `head` begins.
    pub(crate) fn new(exchange: ExchangeId, path: &Arc<Path>, head: Vec<u8>, line: &[u8]) -> Self {
        Self { exchange, path: path.clone(), head, line: line.len() }
    }

    /// The request line.
    pub(crate) fn line(&self) -> &[u8] {
        &self.head[..self.line]
    }
}
