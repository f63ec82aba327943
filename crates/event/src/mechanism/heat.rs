//! Who reports often during a stay with the partner, and is better disarmed for the rest of it.

use std::os::fd::RawFd;

/// The events in one stay with the partner at which a descriptor is disarmed. To disarm it and to arm
/// it again takes four calls, so that connections with a few requests are left alone.
const HOT: u32 = 8;

/// Events by descriptor number since a beginning.
#[derive(Debug, Default)]
pub(crate) struct Heat {
    /// 24 bits that say in which stay, 8 that count.
    cells: Vec<u32>,
    stay: u32,
}

impl Heat {
    /// All counts are 0.
    pub(crate) fn begin(&mut self) {
        self.stay = self.stay.wrapping_add(1) & 0x00ff_ffff;
    }

    /// One more event of `fd`: whether it has now had [`HOT`].
    #[inline]
    pub(crate) fn is_hot(&mut self, fd: RawFd) -> bool {
        let index = fd as usize;
        if index >= self.cells.len() {
            self.cells.resize((index + 1).next_multiple_of(1024), 0);
        }
        let cell = &mut self.cells[index];
        let count = if *cell >> 8 == self.stay { (*cell & 0xff) + 1 } else { 1 };
        // It stays where it is reached, and is said once.
        *cell = self.stay << 8 | count.min(HOT + 1);
        count == HOT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_hot_is_said_once_in_a_stay() {
        let mut heat = Heat::default();
        for _ in 0..3 {
            heat.begin();
            let said: Vec<u32> = (1..1_000).filter(|_| heat.is_hot(5)).collect();
            assert_eq!(said, [HOT]);
            assert!((1..HOT).all(|_| !heat.is_hot(6)), "each has a count of its own");
        }
    }
}
