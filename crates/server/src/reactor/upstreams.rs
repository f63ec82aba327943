//! Connections that applications have dialled.

use super::EventTarget;
use crate::transport::{outbox::Outbox, tls::TlsPeer};
use slab::Slab;
use std::{cell::RefCell, net::SocketAddr, os::fd::OwnedFd, path::PathBuf, rc::Rc, sync::Arc};

/// Where to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// TCP.
    Tcp(SocketAddr),
    /// TLS over TCP.
    Tls(SocketAddr, Arc<TlsPeer>),
    /// A UNIX stream socket at a path.
    Unix(PathBuf),
    /// Nowhere: a connected socket that somebody has made already, such as one of a pair.
    Connected(ConnectedSocket),
}

/// A connected socket, for the one driver that takes it.
#[derive(Clone, Debug)]
pub(crate) struct ConnectedSocket(Rc<RefCell<Option<OwnedFd>>>);

impl ConnectedSocket {
    /// A connection may be made of `socket`: connected, non-blocking, of a kind that every mechanism can
    /// wait for.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(Rc::new(RefCell::new(Some(socket))))
    }

    /// The socket, once.
    pub(crate) fn take(&self) -> Option<OwnedFd> {
        self.0.borrow_mut().take()
    }
}

impl PartialEq for ConnectedSocket {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ConnectedSocket {}

/// A dialled connection, or one that once was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamId {
    index: u32,
    serial: u32,
}

/// How far a connection has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamState {
    /// It is to be dialled, within so many ticks.
    ToDial(Endpoint, u32),
    /// It is being connected: the driver's number for it.
    Connecting(i32),
    /// It is connected, and the TLS handshake is under way.
    Handshaking(i32),
    /// It is connected.
    Open(i32),
}

/// The state that a service has requested for an upstream connection, and the output to send.
#[derive(Debug)]
pub(crate) struct UpstreamConnection {
    /// The receiver of its events.
    pub(crate) to: EventTarget,
    /// How far it has come; the driver's to set.
    pub(crate) adapter: UpstreamState,
    /// Whom a TLS handshake is to be held with, once it is connected.
    pub(crate) tls: Option<Arc<TlsPeer>>,
    /// What is to be sent.
    pub(crate) output: Outbox,
    /// Nothing is to be received.
    pub(crate) is_paused: bool,
    /// Our side is to be closed when the output is gone.
    pub(crate) is_finished: bool,
    /// It is to be closed at once.
    pub(crate) is_closed: bool,
    /// The output was full: the receiver gets an event when it is low. The driver's to set.
    pub(crate) is_owed_room: bool,
    /// The peer has closed its side. The driver's to set.
    pub(crate) has_ended: bool,
    /// Our side is closed. The driver's to set.
    pub(crate) has_shut: bool,
    pub(super) is_queued: bool,
}

impl UpstreamState {
    /// The driver's number for it, once it is dialled.
    pub(crate) fn fd(&self) -> Option<i32> {
        match *self {
            Self::ToDial(..) => None,
            Self::Connecting(fd) | Self::Handshaking(fd) | Self::Open(fd) => Some(fd),
        }
    }
}

/// All upstream connections.
#[derive(Debug, Default)]
pub(crate) struct UpstreamConnections {
    entries: Slab<Entry>,
    /// The serial number of the last connection.
    serial: u32,
    /// Where output goes that belongs to no connection.
    nowhere: Outbox,
}

#[derive(Debug)]
struct Entry {
    /// The connection's: places are used again.
    serial: u32,
    upstream: Box<UpstreamConnection>,
}

impl UpstreamConnections {
    pub(super) fn insert(
        &mut self,
        endpoint: Endpoint,
        timeout: u32,
        to: EventTarget,
    ) -> UpstreamId {
        let tls = match &endpoint {
            Endpoint::Tls(_, peer) => Some(Arc::clone(peer)),
            Endpoint::Tcp(_) | Endpoint::Unix(_) | Endpoint::Connected(_) => None,
        };
        let upstream = Box::new(UpstreamConnection {
            to,
            tls,
            adapter: UpstreamState::ToDial(endpoint, timeout),
            output: Outbox::default(),
            is_paused: false,
            is_finished: false,
            is_closed: false,
            is_owed_room: false,
            has_ended: false,
            has_shut: false,
            is_queued: false,
        });
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        UpstreamId { index: self.entries.insert(Entry { serial, upstream }) as u32, serial }
    }

    /// A connection, if it is still there.
    pub(crate) fn get(&self, id: UpstreamId) -> Option<&UpstreamConnection> {
        let entry = self.entries.get(id.index as usize)?;
        (entry.serial == id.serial).then_some(&*entry.upstream)
    }

    /// A connection, if it is still there.
    pub(crate) fn get_mut(&mut self, id: UpstreamId) -> Option<&mut UpstreamConnection> {
        let entry = self.entries.get_mut(id.index as usize)?;
        (entry.serial == id.serial).then_some(&mut *entry.upstream)
    }

    /// The connection with the place of this number, for a driver that has noted it
    /// ([`UpstreamId::index`]).
    pub(crate) fn at(&self, index: u32) -> Option<UpstreamId> {
        let serial = self.entries.get(index as usize)?.serial;
        Some(UpstreamId { index, serial })
    }

    /// Takes a connection out: it is closed, or its output and its socket belong to something else now.
    pub(crate) fn remove(&mut self, id: UpstreamId) -> Option<Box<UpstreamConnection>> {
        self.get(id)?;
        Some(self.entries.remove(id.index as usize).upstream)
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn output(&mut self, id: UpstreamId) -> &mut Outbox {
        match self.entries.get_mut(id.index as usize) {
            Some(entry) if entry.serial == id.serial => &mut entry.upstream.output,
            _ => {
                self.nowhere.clear();
                &mut self.nowhere
            }
        }
    }
}

impl UpstreamId {
    /// The number of its place: small, and used again.
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}
