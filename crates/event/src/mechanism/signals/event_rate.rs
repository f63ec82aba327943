//! Finds descriptors that report often while the hybrid waits for its partner: it disarms them
//! until it returns to signals.

use std::os::fd::RawFd;

/// The number of events, within one stay with the partner, at which a descriptor is disarmed.
/// Disarming and arming again take four system calls, so connections with few requests stay armed.
const FREQUENT: u32 = 8;

/// Events by descriptor number, counted within one stay with the partner.
#[derive(Debug, Default)]
pub(crate) struct EventRate {
    /// By descriptor number: 24 bits identify the stay that the count belongs to, 8 bits are the
    /// count.
    cells: Vec<u32>,
    stay: u32,
}

impl EventRate {
    /// Begins a stay. All counts belong to earlier stays, so they are 0 from now on.
    pub(crate) fn begin(&mut self) {
        self.stay = self.stay.wrapping_add(1) & 0x00ff_ffff;
    }

    /// Counts an event of `fd`. True when the count reaches [`FREQUENT`], once in a stay.
    #[inline]
    pub(crate) fn is_frequent(&mut self, fd: RawFd) -> bool {
        let index = fd as usize;
        if index >= self.cells.len() {
            self.cells.resize((index + 1).next_multiple_of(1024), 0);
        }
        let cell = &mut self.cells[index];
        let count = if *cell >> 8 == self.stay { (*cell & 0xff) + 1 } else { 1 };
        // Stops above the limit, so that it is reported once.
        *cell = self.stay << 8 | count.min(FREQUENT + 1);
        count == FREQUENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frequent_descriptor_is_reported_once_per_polling_period() {
        let mut rate = EventRate::default();
        for _ in 0..3 {
            rate.begin();
            let frequent: Vec<u32> = (1..1_000).filter(|_| rate.is_frequent(5)).collect();
            assert_eq!(frequent, [FREQUENT]);
            assert!((1..FREQUENT).all(|_| !rate.is_frequent(6)), "each has a count of its own");
        }
    }
}
