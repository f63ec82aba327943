//! The address of each connection of one worker, by descriptor.

use super::{ClientLimits, RefusalReason};
use std::{
    net::{IpAddr, SocketAddr},
    os::fd::RawFd,
    sync::Arc,
};

/// The number of addresses that are allocated together. The descriptors of a worker are usually
/// dense, and a thread that serves one connection has one block.
const BLOCK: usize = 128;

/// The addresses of the clients. It is empty and allocates nothing if nothing about clients is
/// configured.
#[derive(Debug, Default)]
pub(crate) struct ClientTable {
    blocks: Vec<Option<Box<Block>>>,
    /// The guard that counts these connections, if there ever was one.
    guard: Option<Arc<ClientLimits>>,
}

/// An address with its port: shorter than a socket address, which has 32 bytes.
type Block = [Option<(IpAddr, u16)>; BLOCK];

impl ClientTable {
    /// Admits a connection, and remembers its address.
    ///
    /// # Errors
    /// The reason why the connection must be closed.
    pub(crate) fn enter(
        &mut self,
        guard: Option<&Arc<ClientLimits>>,
        fd: RawFd,
        address: Option<SocketAddr>,
    ) -> Result<(), RefusalReason> {
        self.admit(guard, fd, address, ClientLimits::enter)
    }

    /// Does the same for a connection that comes from another process, or back from it.
    ///
    /// # Errors
    /// The reason why the connection must be closed.
    pub(crate) fn readmit(
        &mut self,
        guard: Option<&Arc<ClientLimits>>,
        fd: RawFd,
        address: Option<SocketAddr>,
    ) -> Result<(), RefusalReason> {
        self.admit(guard, fd, address, ClientLimits::readmit)
    }

    fn admit(
        &mut self,
        guard: Option<&Arc<ClientLimits>>,
        fd: RawFd,
        address: Option<SocketAddr>,
        decide: impl FnOnce(&ClientLimits, IpAddr) -> Result<(), RefusalReason>,
    ) -> Result<(), RefusalReason> {
        // A UNIX socket has no address: the permissions of its file decide which processes may
        // connect.
        let Some(address) = address else { return Ok(()) };
        if let Some(guard) = guard {
            decide(guard, address.ip())?;
            if self.guard.is_none() {
                self.guard = Some(guard.clone());
            }
        }
        let (block, at) = (fd as usize / BLOCK, fd as usize % BLOCK);
        if block >= self.blocks.len() {
            self.blocks.resize_with(block + 1, || None);
        }
        self.blocks[block].get_or_insert_with(|| Box::new([None; BLOCK]))[at] =
            Some((address.ip(), address.port()));
        Ok(())
    }

    /// Forgets a connection that is closed. Does nothing if the connection was not admitted.
    #[inline]
    pub(crate) fn leave(&mut self, guard: Option<&ClientLimits>, fd: RawFd) {
        if !self.blocks.is_empty() {
            self.take_out(guard, fd);
        }
    }

    #[cold]
    fn take_out(&mut self, guard: Option<&ClientLimits>, fd: RawFd) {
        if let Some(Some(block)) = self.blocks.get_mut(fd as usize / BLOCK)
            && let Some(address) = block[fd as usize % BLOCK].take()
            && let Some(guard) = guard
        {
            guard.leave(address.0);
        }
    }

    /// Returns the address of a connection, if it is known.
    #[inline]
    pub(crate) fn address(&self, fd: RawFd) -> Option<IpAddr> {
        self.entry(fd).map(|(address, _)| address)
    }

    /// Returns the address of a connection with its port, if it is known.
    pub(crate) fn socket_address(&self, fd: RawFd) -> Option<SocketAddr> {
        self.entry(fd).map(SocketAddr::from)
    }

    #[inline]
    fn entry(&self, fd: RawFd) -> Option<(IpAddr, u16)> {
        self.blocks.get(fd as usize / BLOCK)?.as_ref()?[fd as usize % BLOCK]
    }
}

/// A worker that panics closes its connections without calling [`ClientTable::leave`]. They must
/// not be counted any more.
impl Drop for ClientTable {
    fn drop(&mut self) {
        let Some(guard) = &self.guard else { return };
        let entries = self.blocks.iter().flatten().flat_map(|block| block.iter().flatten());
        entries.for_each(|(address, _)| guard.leave(*address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::ClientConfig;
    use std::num::NonZeroU32;

    #[test]
    fn an_address_is_known_from_its_entry_to_its_end() {
        let config = ClientConfig { connections: NonZeroU32::new(1), ..Default::default() };
        let guard = ClientLimits::new(&config).map(Arc::new);
        let mut table = ClientTable::default();
        let address = "192.0.2.1:7".parse().ok();
        table.leave(guard.as_deref(), 3);
        table.enter(guard.as_ref(), 300, address).unwrap();
        assert_eq!((table.socket_address(300), table.address(3)), (address, None));
        assert_eq!(table.enter(guard.as_ref(), 301, address), Err(RefusalReason::Connections));
        // A connection that was refused does not change the count when it leaves.
        table.leave(guard.as_deref(), 301);
        assert_eq!(table.enter(guard.as_ref(), 301, address), Err(RefusalReason::Connections));
        table.leave(guard.as_deref(), 300);
        table.enter(guard.as_ref(), 301, address).unwrap();
        table.enter(guard.as_ref(), 302, None).unwrap();
        // The worker of these connections has panicked.
        drop(table);
        ClientTable::default().enter(guard.as_ref(), 303, address).unwrap();
    }
}
