//! A thread's connections: a table by descriptor number, and the queue of free connections.

use crate::client::{Connection, ConnectionState};
use pollux_event::Token;
use std::{collections::VecDeque, os::fd::RawFd};

/// All connections of one thread, at most `limit`.
#[derive(Debug)]
pub(crate) struct Pool {
    table: Vec<Option<Connection>>,
    /// Free connections, the longest free first, so that all are used in turn. A connection that was
    /// closed in the meantime is recognised by its stale token. Each push follows a pop or an opening,
    /// so the queue is never longer than the largest number of connections that were open at once.
    free: VecDeque<Token>,
    open: usize,
    limit: usize,
}

impl Pool {
    pub(crate) fn new(limit: usize) -> Self {
        Self { table: Vec::new(), free: VecDeque::new(), open: 0, limit }
    }

    /// The number of connections, in any state.
    #[inline]
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// Whether one more may be opened.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.open < self.limit
    }

    /// Adds a connection.
    #[inline]
    pub(crate) fn insert(&mut self, connection: Connection) {
        let index = connection.token.fd as usize;
        if index >= self.table.len() {
            self.table.resize_with((index + 1).next_multiple_of(256), || None);
        }
        debug_assert!(self.table[index].is_none());
        self.table[index] = Some(connection);
        self.open += 1;
    }

    /// The connection with this number.
    #[inline]
    pub(crate) fn get(&mut self, fd: RawFd) -> Option<&mut Connection> {
        self.table.get_mut(fd as usize)?.as_mut()
    }

    /// Removes a connection.
    #[inline]
    pub(crate) fn remove(&mut self, fd: RawFd) -> Option<Connection> {
        let connection = self.table.get_mut(fd as usize)?.take()?;
        self.open -= 1;
        Some(connection)
    }

    /// Queues a connection whose state has become [`ConnectionState::Free`].
    #[inline]
    pub(crate) fn push_free(&mut self, token: Token) {
        self.free.push_back(token);
    }

    /// The connection that has been free longest.
    #[inline]
    pub(crate) fn pop_free(&mut self) -> Option<RawFd> {
        while let Some(token) = self.free.pop_front() {
            let live = self.get(token.fd).is_some_and(|connection| {
                connection.token == token && connection.state == ConnectionState::Free
            });
            if live {
                return Some(token.fd);
            }
        }
        None
    }

    /// Removes all connections, at the end.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Connection> + '_ {
        self.open = 0;
        self.table.iter_mut().filter_map(Option::take)
    }
}
