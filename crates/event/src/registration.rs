//! Registered descriptors with their generation and interest: four bytes each.

use crate::{Error, Interest, Token};
use std::os::fd::RawFd;

/// The registrations of one interest set, indexed by descriptor number.
///
/// One `u32` per descriptor: 24 bits of generation, 8 of state. Each `insert` uses a new generation, so
/// a token that outlives its registration does no harm. A stale event could only be accepted after 2^24
/// reuses of its number while it is queued; no kernel queue is that long.
#[derive(Debug, Default)]
pub struct Registrations {
    cells: Vec<u32>,
    live: usize,
}

const LIVE: u32 = 0x80;
const INTEREST: u32 = 0x03;
const GENERATION_SHIFT: u32 = 8;

impl Registrations {
    /// Registers `fd` and returns its token.
    ///
    /// # Errors
    /// [`Error::AlreadyAdded`] when the descriptor is registered.
    #[inline]
    pub fn insert(&mut self, fd: RawFd, interest: Interest) -> Result<Token, Error> {
        let index = fd as usize;
        if index >= self.cells.len() {
            // The table grows in blocks: at most one page beyond the highest descriptor is unused.
            self.cells.resize((index + 1).next_multiple_of(1024), 0);
        }
        let cell = &mut self.cells[index];
        if *cell & LIVE != 0 {
            return Err(Error::AlreadyAdded(fd));
        }
        let generation = (*cell >> GENERATION_SHIFT).wrapping_add(1) & 0x00ff_ffff;
        *cell = generation << GENERATION_SHIFT | LIVE | u32::from(interest.bits());
        self.live += 1;
        Ok(Token { fd, generation })
    }

    /// Replaces the interest of `token`; returns the former one.
    ///
    /// # Errors
    /// [`Error::NotAdded`] when the token is not live.
    #[inline]
    pub fn replace(&mut self, token: Token, interest: Interest) -> Result<Interest, Error> {
        let former = self.interest(token).ok_or(Error::NotAdded(token.fd))?;
        let cell = &mut self.cells[token.fd as usize];
        *cell = *cell & !INTEREST | u32::from(interest.bits());
        Ok(former)
    }

    /// Ends the registration of `token`.
    ///
    /// # Errors
    /// [`Error::NotAdded`] when the token is not live.
    #[inline]
    pub fn remove(&mut self, token: Token) -> Result<Interest, Error> {
        let former = self.interest(token).ok_or(Error::NotAdded(token.fd))?;
        self.cells[token.fd as usize] &= !(LIVE | INTEREST);
        self.live -= 1;
        Ok(former)
    }

    /// The interest of `token`; `None` when its registration has ended.
    #[inline]
    pub fn interest(&self, token: Token) -> Option<Interest> {
        let cell = *self.cells.get(token.fd as usize)?;
        (cell & LIVE != 0 && cell >> GENERATION_SHIFT == token.generation)
            .then(|| Interest::from_bits_truncate((cell & INTEREST) as u8))
    }

    /// The live token and interest of descriptor `fd`, for mechanisms whose kernel interface has
    /// only descriptor numbers (select, poll, RT signals).
    #[inline]
    pub fn by_fd(&self, fd: RawFd) -> Option<(Token, Interest)> {
        let cell = *self.cells.get(fd as usize)?;
        (cell & LIVE != 0).then(|| {
            let token = Token { fd, generation: cell >> GENERATION_SHIFT };
            (token, Interest::from_bits_truncate((cell & INTEREST) as u8))
        })
    }

    /// All live registrations, in descriptor order.
    pub fn iter(&self) -> impl Iterator<Item = (Token, Interest)> + '_ {
        (0..self.cells.len() as RawFd).filter_map(|fd| self.by_fd(fd))
    }

    /// The number of live registrations.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether none is live.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_number_gets_a_new_generation() {
        let mut set = Registrations::default();
        let first = set.insert(5, Interest::READ).unwrap();
        set.remove(first).unwrap();
        let second = set.insert(5, Interest::WRITE).unwrap();
        assert_ne!(first, second);
        assert_eq!(set.interest(first), None);
        assert_eq!(set.interest(second), Some(Interest::WRITE));
        assert!(matches!(set.remove(first), Err(Error::NotAdded(5))));
        assert_eq!(set.len(), 1);
    }

    #[test]
    fn twice_is_an_error() {
        let mut set = Registrations::default();
        set.insert(5, Interest::READ).unwrap();
        assert!(matches!(set.insert(5, Interest::READ), Err(Error::AlreadyAdded(5))));
    }

    #[test]
    fn the_generation_wraps_without_touching_the_state() {
        let mut set = Registrations { cells: vec![0xffff_ff00; 6], live: 0 };
        let token = set.insert(5, Interest::READ | Interest::WRITE).unwrap();
        assert_eq!(token.generation, 0);
        assert_eq!(set.interest(token), Some(Interest::READ | Interest::WRITE));
    }
}
