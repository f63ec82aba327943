//! Limits the number of handshakes in progress, so that clients that begin many handshakes and complete
//! none cannot use up the memory and the time for other clients.

use std::{collections::HashMap, net::IpAddr, time::Duration};

/// The maximum duration of a handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of handshakes in progress in one worker. Each has some 5 KB.
const HANDSHAKES_MAX: usize = 8192;
/// The maximum number of handshakes in progress for one client address.
const HANDSHAKES_PER_ADDRESS_MAX: u32 = 4096;
/// The maximum number of steps of handshakes in one iteration of a loop. A step is the reaction to whole
/// records of a client; the most expensive one makes a signature. They take some 2 ms in total.
const STEPS_PER_ITERATION: u32 = 16;

/// The handshakes of a worker.
#[derive(Debug, Default)]
pub(super) struct Limits {
    running: usize,
    addresses: HashMap<IpAddr, u32>,
    steps_in_iteration: u32,
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

    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.running
    }

    #[cfg(test)]
    pub(super) fn running_for(&self, address: IpAddr) -> u32 {
        self.addresses.get(&address).copied().unwrap_or_default()
    }

    pub(super) fn end_handshake(&mut self, address: Option<IpAddr>) {
        self.running -= 1;
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
        limits.end_handshake(address(1));
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
            limits.end_handshake(address(1 + (number % 2) as u8));
        }
        assert_eq!(limits.running, 0);
        assert!(limits.addresses.is_empty());
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
