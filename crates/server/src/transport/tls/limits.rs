//! Limits the number of handshakes in progress, so that clients that begin many handshakes and complete
//! none cannot use up the memory and the time for other clients.

use std::{collections::HashMap, net::IpAddr, time::Duration};

/// The maximum duration of a handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of handshakes in progress in one worker. Each has some 5 KB, and what it stores of
/// received bytes.
const HANDSHAKES_MAX: usize = 8192;
/// The maximum number of handshakes in progress for one client address.
const HANDSHAKES_PER_ADDRESS_MAX: u32 = 4096;
/// The maximum number of received bytes that the handshakes of a worker store together. It is reached only
/// by clients that send long messages and do not complete them: a handshake alone may store 80 KiB
/// ([`pollux_tls::HANDSHAKE_BYTES_MAX`]), and all of them could store 670 MB.
const STORED_MAX: usize = 32 << 20;
/// The number of bytes that each handshake may store even then: more than a usual ClientHello has. With it,
/// all handshakes of a worker can store another 32 MiB.
const STORED_ALWAYS: usize = 4 << 10;
/// The maximum number of steps of handshakes in one iteration of a loop. A step is the reaction to whole
/// records of a client; the most expensive one makes a signature. They take some 2 ms in total.
const STEPS_PER_ITERATION: u32 = 16;

/// The handshakes of a worker.
#[derive(Debug, Default)]
pub(super) struct Limits {
    running: usize,
    addresses: HashMap<IpAddr, u32>,
    steps_in_iteration: u32,
    stored: usize,
}

impl Limits {
    pub(super) fn begin_iteration(&mut self) {
        self.steps_in_iteration = 0;
    }

    /// Returns whether this iteration has time for a further step of a handshake.
    pub(super) fn has_time(&self) -> bool {
        self.steps_in_iteration < STEPS_PER_ITERATION
    }

    /// Counts a step of a handshake.
    pub(super) fn count_step(&mut self) {
        self.steps_in_iteration += 1;
    }

    /// Requests one more handshake. Counts it and returns true if it may begin.
    pub(super) fn begin_handshake(&mut self, address: Option<IpAddr>) -> bool {
        if self.running >= HANDSHAKES_MAX {
            return false;
        }
        if let Some(address) = address {
            let of_address = self.addresses.entry(address).or_default();
            if *of_address >= HANDSHAKES_PER_ADDRESS_MAX {
                return false;
            }
            *of_address += 1;
        }
        self.running += 1;
        true
    }

    /// Counts the bytes that a handshake stores: `now` in place of `before`. Returns whether it may.
    pub(super) fn store(&mut self, before: usize, now: usize) -> bool {
        self.stored = self.stored - before + now;
        now <= STORED_ALWAYS || self.stored <= STORED_MAX
    }

    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.running
    }

    #[cfg(test)]
    pub(super) fn running_for(&self, address: IpAddr) -> u32 {
        self.addresses.get(&address).copied().unwrap_or_default()
    }

    /// Ends a handshake that was counted under this address and stored this number of bytes.
    pub(super) fn end_handshake(&mut self, address: Option<IpAddr>, stored: usize) {
        self.running -= 1;
        self.stored -= stored;
        let Some(address) = address else { return };
        if let Some(of_address) = self.addresses.get_mut(&address) {
            *of_address -= 1;
            if *of_address == 0 {
                self.addresses.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn address(last: u8) -> Option<IpAddr> {
        Some(Ipv4Addr::new(127, 0, 0, last).into())
    }

    #[test]
    fn one_address_leaves_room_for_others() {
        let mut limits = Limits::default();
        for _ in 0..HANDSHAKES_PER_ADDRESS_MAX {
            assert!(limits.begin_handshake(address(1)));
        }
        assert!(!limits.begin_handshake(address(1)));
        assert!(limits.begin_handshake(address(2)));
        limits.end_handshake(address(1), 0);
        assert!(limits.begin_handshake(address(1)));
    }

    #[test]
    fn a_worker_has_a_limit_and_forgets_what_has_ended() {
        let mut limits = Limits::default();
        for number in 0..HANDSHAKES_MAX {
            assert!(limits.begin_handshake(address(1 + (number % 2) as u8)));
        }
        assert!(!limits.begin_handshake(address(3)) && !limits.begin_handshake(None));
        for number in 0..HANDSHAKES_MAX {
            limits.end_handshake(address(1 + (number % 2) as u8), 0);
        }
        assert_eq!(limits.running, 0);
        assert!(limits.addresses.is_empty());
    }

    #[test]
    fn long_handshakes_share_their_memory_and_short_ones_always_have_some() {
        const LONG: usize = 80 << 10;
        let mut limits = Limits::default();
        let mut count = 0;
        while limits.store(0, LONG) {
            assert!(limits.begin_handshake(None));
            count += 1;
        }
        assert_eq!(count, STORED_MAX / LONG);
        // The one that was refused ends.
        limits.store(LONG, 0);
        assert!(limits.begin_handshake(None));
        assert!(limits.store(0, STORED_ALWAYS) && !limits.store(STORED_ALWAYS, LONG));
        limits.end_handshake(None, LONG);
        for _ in 0..count {
            limits.end_handshake(None, LONG);
        }
        assert_eq!((limits.running, limits.stored), (0, 0));
    }

    #[test]
    fn an_iteration_has_time_for_some_steps() {
        let mut limits = Limits::default();
        for _ in 0..STEPS_PER_ITERATION {
            assert!(limits.has_time());
            limits.count_step();
        }
        assert!(!limits.has_time());
        limits.begin_iteration();
        assert!(limits.has_time());
    }
}
