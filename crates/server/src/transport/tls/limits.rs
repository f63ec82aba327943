//! Limits the number of handshakes in progress, so that clients that begin many handshakes and complete
//! none cannot use up the memory and the time for other clients.

use std::{collections::HashMap, net::IpAddr, time::Duration};

/// The maximum duration of a handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of handshakes in progress in one worker. Each has some 5 KB.
const HANDSHAKES_MAX: usize = 8192;
/// The maximum number of handshakes in progress for one client address.
const HANDSHAKES_PER_ADDRESS_MAX: u32 = 4096;
/// The maximum number of handshakes that are begun in one iteration of a loop. Each makes one signature:
/// some 2 ms in total.
const HANDSHAKES_PER_ITERATION: u32 = 16;

/// The handshakes of a worker.
#[derive(Debug, Default)]
pub(super) struct Limits {
    running: usize,
    addresses: HashMap<IpAddr, u32>,
    begun_in_iteration: u32,
}

/// Whether a handshake may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Granted,
    /// The handshake may begin after other connections were served.
    Later,
    /// There are too many handshakes.
    Refused,
}

impl Limits {
    pub(super) fn begin_iteration(&mut self) {
        self.begun_in_iteration = 0;
    }

    /// Requests one more handshake, and counts it if it is granted.
    pub(super) fn begin_handshake(&mut self, address: Option<IpAddr>) -> Admission {
        if self.begun_in_iteration >= HANDSHAKES_PER_ITERATION {
            return Admission::Later;
        }
        if self.running >= HANDSHAKES_MAX {
            return Admission::Refused;
        }
        if let Some(address) = address {
            let of_address = self.addresses.entry(address).or_default();
            if *of_address >= HANDSHAKES_PER_ADDRESS_MAX {
                return Admission::Refused;
            }
            *of_address += 1;
        }
        self.running += 1;
        self.begun_in_iteration += 1;
        Admission::Granted
    }

    #[cfg(test)]
    pub(super) fn running(&self) -> usize {
        self.running
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
        for number in 0..HANDSHAKES_PER_ADDRESS_MAX {
            if number % HANDSHAKES_PER_ITERATION == 0 {
                limits.begin_iteration();
            }
            assert_eq!(limits.begin_handshake(address(1)), Admission::Granted);
        }
        limits.begin_iteration();
        assert_eq!(limits.begin_handshake(address(1)), Admission::Refused);
        assert_eq!(limits.begin_handshake(address(2)), Admission::Granted);
        limits.end_handshake(address(1));
        assert_eq!(limits.begin_handshake(address(1)), Admission::Granted);
    }

    #[test]
    fn an_iteration_has_a_budget() {
        let mut limits = Limits::default();
        for _ in 0..HANDSHAKES_PER_ITERATION {
            assert_eq!(limits.begin_handshake(None), Admission::Granted);
        }
        assert_eq!(limits.begin_handshake(None), Admission::Later);
        limits.begin_iteration();
        assert_eq!(limits.begin_handshake(None), Admission::Granted);
        for _ in 0..=HANDSHAKES_PER_ITERATION {
            limits.end_handshake(None);
        }
        assert_eq!(limits.running, 0);
        assert!(limits.addresses.is_empty());
    }
}
