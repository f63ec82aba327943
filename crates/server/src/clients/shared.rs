//! The present use of each client address, in memory that the processes of a server share.
//!
//! The memory and the lock are created before the processes are forked. A process may be killed at any
//! moment, also while it holds the lock: the lock is robust, and each word is valid by itself.
//! Connections are counted by the slots of the scoreboard: a slot contains the address of the
//! connection that its process serves, and the supervisor clears the slot of a process that has ended.
//! So no connection is counted that no longer exists.

use super::{ADDRESSES_MAX, Rate, RefusalReason, network::client_key};
use pollux_sys::{SharedLock, SharedWords};
use std::{
    hash::{BuildHasher, RandomState},
    io,
    net::IpAddr,
    num::NonZeroU32,
    sync::atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

/// The number of entries for one value of the hash. A new address replaces the one of them that has been
/// quiet longest.
const WAYS: usize = 8;
/// The words of an entry: the address, and the times at which its next connection and its next
/// request are due at the full rate.
const ENTRY: usize = 3;
const CONNECTION: usize = 1;
const REQUEST: usize = 2;

/// The connections and the rates of all addresses.
#[derive(Debug)]
pub(super) struct SharedUse {
    /// The slots with the [`client_key`] of each connection that is counted, and after them the entries.
    words: SharedWords,
    lock: SharedLock,
    /// Its key is random, because clients choose their addresses.
    hasher: RandomState,
    slots: usize,
    sets: usize,
    /// The slot of this process. Each process has its own copy of this number.
    own: AtomicUsize,
}

impl SharedUse {
    /// Creates the memory for this many processes at a time.
    ///
    /// # Errors
    /// No memory is left.
    pub(super) fn new(slots: usize) -> io::Result<Self> {
        let sets = ADDRESSES_MAX / WAYS;
        Ok(Self {
            words: SharedWords::new(slots + sets * WAYS * ENTRY)?,
            lock: SharedLock::new()?,
            hasher: RandomState::new(),
            slots,
            sets,
            own: AtomicUsize::new(0),
        })
    }

    /// Sets the slot of this process.
    pub(super) fn claim(&self, slot: usize) {
        self.own.store(slot, Relaxed);
    }

    fn open(&self) -> &[AtomicU64] {
        &self.words[..self.slots]
    }

    /// Admits a connection, and counts it if there is a maximum.
    ///
    /// # Errors
    /// The reason why the connection must be closed.
    pub(super) fn enter(
        &self,
        address: IpAddr,
        connections: Option<NonZeroU32>,
        rate: Option<Rate>,
        now_ns: u64,
    ) -> Result<(), RefusalReason> {
        let client = client_key(address);
        // No error of this lock is known; after one, the words would still be valid.
        let _held = self.lock.hold();
        if let Some(most) = connections {
            let open = self.open().iter().filter(|open| open.load(SeqCst) == client).count();
            if open >= most.get() as usize {
                return Err(RefusalReason::Connections);
            }
        }
        if let Some(rate) = rate {
            self.take(client, CONNECTION, rate, now_ns).map_err(|_| RefusalReason::AcceptRate)?;
        }
        if connections.is_some()
            && let Some(own) = self.open().get(self.own.load(Relaxed))
        {
            own.store(client, SeqCst);
        }
        Ok(())
    }

    /// Notes that this process has closed its connection.
    pub(super) fn leave(&self) {
        self.forget(self.own.load(Relaxed));
    }

    /// Notes that the process with this slot has ended.
    pub(super) fn forget(&self, slot: usize) {
        if let Some(open) = self.open().get(slot) {
            open.store(0, SeqCst);
        }
    }

    /// Admits a request.
    ///
    /// # Errors
    /// The rate is exceeded; the value is the time in nanoseconds until a request is admitted again.
    pub(super) fn request(&self, address: IpAddr, rate: Rate, now_ns: u64) -> Result<(), u64> {
        let _held = self.lock.hold();
        self.take(client_key(address), REQUEST, rate, now_ns)
    }

    /// Counts an event of this client. The lock must be held.
    fn take(&self, client: u64, which: usize, rate: Rate, now_ns: u64) -> Result<(), u64> {
        let word = &self.entry(client)[which];
        let mut arrival_ns = word.load(Relaxed);
        let outcome = rate.take(&mut arrival_ns, now_ns);
        word.store(arrival_ns, Relaxed);
        outcome
    }

    /// Returns the entry of this client. The lock must be held.
    fn entry(&self, client: u64) -> &[AtomicU64] {
        let set = self.hasher.hash_one(client) as usize % self.sets;
        let start = self.slots + set * WAYS * ENTRY;
        let entries = || self.words[start..start + WAYS * ENTRY].chunks_exact(ENTRY);
        let last_ns = |entry: &&[AtomicU64]| {
            entry[CONNECTION].load(Relaxed).max(entry[REQUEST].load(Relaxed))
        };
        let known = entries().find(|entry| entry[0].load(Relaxed) == client);
        // The times of an entry that is not in use are 0.
        let Some(entry) = known.or_else(|| entries().min_by_key(last_ns)) else {
            return &self.words[start..start + ENTRY];
        };
        if known.is_none() {
            // A process that is killed in between leaves an entry that is not in use.
            for (word, value) in entry.iter().rev().zip([0, 0, client]) {
                word.store(value, Relaxed);
            }
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn a_connection_is_counted_until_its_process_has_ended() {
        let shared = SharedUse::new(3).unwrap();
        let most = NonZeroU32::new(2);
        let enter = |slot: usize, client: u32| {
            shared.claim(slot);
            shared.enter(address(client), most, None, 1)
        };
        enter(0, 7).unwrap();
        enter(1, 7).unwrap();
        assert_eq!(enter(2, 7), Err(RefusalReason::Connections));
        enter(2, 8).unwrap();
        // The process of slot 1 was killed.
        shared.forget(1);
        enter(1, 7).unwrap();
        shared.claim(0);
        shared.leave();
        enter(0, 7).unwrap();
        assert_eq!(enter(0, 7), Err(RefusalReason::Connections));
    }

    #[test]
    fn connections_and_requests_of_each_address_have_their_own_rates() {
        let shared = SharedUse::new(1).unwrap();
        let rate: Rate = "1/m:1".parse().unwrap();
        let now_ns = 1_000_000_000;
        shared.request(address(1), rate, now_ns).unwrap();
        shared.enter(address(1), None, Some(rate), now_ns).unwrap();
        shared.request(address(2), rate, now_ns).unwrap();
        assert_eq!(shared.request(address(1), rate, now_ns), Err(60_000_000_000));
        let refused = shared.enter(address(1), None, Some(rate), now_ns);
        assert_eq!(refused, Err(RefusalReason::AcceptRate));
        shared.request(address(1), rate, now_ns + 60_000_000_000).unwrap();
    }

    #[test]
    fn a_busy_address_is_remembered_however_many_others_come() {
        let shared = SharedUse::new(1).unwrap();
        let rate: Rate = "1/m:100".parse().unwrap();
        let now_ns = 1_000_000_000;
        (0..100).for_each(|_| shared.request(address(1), rate, now_ns).unwrap());
        for number in 0..4 * ADDRESSES_MAX as u32 {
            shared.request(address(1_000 + number), rate, now_ns).unwrap();
        }
        assert!(shared.request(address(1), rate, now_ns).is_err());
    }
}
