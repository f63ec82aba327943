//! The command to pass a client's connection to another process (`--handover`).

use super::ExchangeId;
use std::{io, path::Path, sync::Arc};

/// A connection and the process that receives it.
#[derive(Debug)]
pub(crate) struct HandOver {
    pub(crate) exchange: ExchangeId,
    /// The path of the receiving process's socket.
    pub(crate) path: Arc<Path>,
    /// The request's head exactly as the client sent it.
    pub(crate) head: Vec<u8>,
    line: usize,
}

/// The reason why a client was not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverError {
    /// Responses to earlier requests of this connection are not sent yet.
    OutputFirst,
    /// A system call has failed: for example, no process listens on the path, or its queue is full.
    Error(io::ErrorKind),
}

impl HandOver {
    /// Creates the command to pass the connection of `exchange` to the process at `path`. `head` begins
    /// with the request line `line`.
    pub(crate) fn new(exchange: ExchangeId, path: &Arc<Path>, head: Vec<u8>, line: &[u8]) -> Self {
        Self { exchange, path: path.clone(), head, line: line.len() }
    }

    /// Returns the request line.
    pub(crate) fn line(&self) -> &[u8] {
        &self.head[..self.line]
    }
}
