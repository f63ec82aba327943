//! The sessions of one worker, by descriptor number.

use crate::{
    Session,
    sys::{BLOCK_ENTRIES, Block},
};
use std::io;

/// A session, and the other data of its connection while it is busy: partial records, a handshake.
///
/// Zeros are a valid entry, which is not in use: `Session` consists of integers, arrays of them, an
/// `Option<Box>` and the fieldless enum `Suite`, whose first variant is 0; an `Option<Box>` of zeros is
/// `None`, as Rust guarantees. `Block` depends on it.
#[repr(C)]
pub(crate) struct Entry<E> {
    session: Session,
    extra: Option<Box<E>>,
}

/// The goal of the design: the whole memory that an idle connection needs for TLS.
const _: () = assert!(size_of::<Entry<()>>() <= 104);

/// A worker's sessions, each under a small number such as its descriptor: 104 bytes for each, in pages
/// that are excluded from core dumps and from forked children.
///
/// A number with a session may also have an `E`, as long as the connection needs more than its session;
/// during a handshake it has only an `E`.
pub struct SessionTable<E> {
    blocks: Vec<Option<Block<E>>>,
}

impl<E> Default for SessionTable<E> {
    fn default() -> Self {
        Self { blocks: Vec::new() }
    }
}

impl<E> SessionTable<E> {
    /// Inserts a connection that has no session yet.
    ///
    /// # Errors
    /// mmap(2), when a further block of entries is needed.
    pub fn insert(&mut self, number: usize, extra: Box<E>) -> io::Result<()> {
        let index = number / BLOCK_ENTRIES;
        if index >= self.blocks.len() {
            self.blocks.resize_with(index + 1, || None);
        }
        let block = &mut self.blocks[index];
        let block = match block {
            Some(block) => block,
            None => block.insert(Block::new()?),
        };
        block[number % BLOCK_ENTRIES] = Entry { session: Session::none(), extra: Some(extra) };
        Ok(())
    }

    /// The session of a connection whose handshake is complete, and its other data.
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<(&mut Session, &mut Option<Box<E>>)> {
        let block = self.blocks.get_mut(number / BLOCK_ENTRIES)?.as_mut()?;
        let entry = &mut block[number % BLOCK_ENTRIES];
        Some((&mut entry.session, &mut entry.extra))
    }

    /// Removes a connection. Its secrets are zeroed when the session is dropped.
    pub fn remove(&mut self, number: usize) -> Option<(Session, Option<Box<E>>)> {
        let block = self.blocks.get_mut(number / BLOCK_ENTRIES)?.as_mut()?;
        let entry = &mut block[number % BLOCK_ENTRIES];
        let session = std::mem::replace(&mut entry.session, Session::none());
        Some((session, entry.extra.take()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, Role, Suite, stored_secrets::Flow};

    fn session() -> Session {
        let direction = Direction { secret: &[5; 32], sequence: 3 };
        Session::new(Suite::Tls13ChaCha20, Role::Server, &direction, &direction)
    }

    #[test]
    fn a_fresh_entry_is_not_in_use() {
        let mut table = SessionTable::<u32>::default();
        assert!(table.get_mut(7).is_none());
        table.insert(7, Box::new(1)).unwrap();
        for number in 0..BLOCK_ENTRIES {
            let (session, extra) = table.get_mut(number).unwrap();
            assert!(!session.is_established());
            assert_eq!(extra.is_some(), number == 7);
        }
    }

    #[test]
    fn a_session_that_is_taken_out_leaves_nothing() {
        let mut table = SessionTable::<u32>::default();
        for number in [0, 5, BLOCK_ENTRIES, 5 * BLOCK_ENTRIES + 1] {
            table.insert(number, Box::new(1)).unwrap();
            *table.get_mut(number).unwrap().0 = session();
        }
        let (taken, extra) = table.remove(5).unwrap();
        assert!(taken.is_established() && extra.is_some());
        let (left, extra) = table.get_mut(5).unwrap();
        assert!(!left.is_established() && extra.is_none());
        assert_eq!(left.secret(Flow::Receive).0, [0; 48]);
        assert!(table.get_mut(0).unwrap().0.is_established());
    }
}
