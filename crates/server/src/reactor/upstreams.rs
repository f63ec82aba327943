//! The connections that services have dialled.

use super::EventTarget;
use crate::transport::{outbox::Outbox, tls::TlsPeer};
use slab::Slab;
use std::{cell::RefCell, net::SocketAddr, os::fd::OwnedFd, path::PathBuf, rc::Rc, sync::Arc};

/// The address to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// TCP.
    Tcp(SocketAddr),
    /// TLS over TCP.
    Tls(SocketAddr, Arc<TlsPeer>),
    /// A UNIX stream socket at a path.
    Unix(PathBuf),
    /// A socket that is already connected, such as one of a pair; there is nothing to dial.
    Connected(ConnectedSocket),
}

/// A connected socket, for the one engine that takes it.
#[derive(Clone, Debug)]
pub(crate) struct ConnectedSocket(Rc<RefCell<Option<OwnedFd>>>);

impl ConnectedSocket {
    /// Creates an endpoint of `socket`, which must be connected, non-blocking, and of a kind for which
    /// every mechanism can wait.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(Rc::new(RefCell::new(Some(socket))))
    }

    /// Takes the socket; `None` if it was already taken.
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

/// The identifier of a dialled connection, which may no longer exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamId {
    index: u32,
    serial: u32,
}

/// The progress of an upstream connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamState {
    /// The endpoint is to be dialled, within this number of ticks.
    ToDial(Endpoint, u32),
    /// The socket with this descriptor is being connected.
    Connecting(i32),
    /// The socket is connected, and the TLS handshake is in progress.
    Handshaking(i32),
    /// The connection is established.
    Open(i32),
}

/// The state that a service has requested for an upstream connection, and the output to send.
#[derive(Debug)]
pub(crate) struct UpstreamConnection {
    /// The receiver of its events.
    pub(crate) to: EventTarget,
    /// The progress of the connection; set by the engine.
    pub(crate) adapter: UpstreamState,
    /// The server for the TLS handshake after connecting; `None` without TLS.
    pub(crate) tls: Option<Arc<TlsPeer>>,
    /// The output to send.
    pub(crate) output: Outbox,
    /// Whether nothing is to be received for now.
    pub(crate) is_paused: bool,
    /// Whether this side's direction is to be closed when all output was sent.
    pub(crate) is_finished: bool,
    /// Whether the connection is to be closed at once.
    pub(crate) is_closed: bool,
    /// Whether the output was full, so that the receiver gets an event when it is low. Set by the engine.
    pub(crate) is_owed_room: bool,
    /// Whether the peer has closed its side. Set by the engine.
    pub(crate) has_ended: bool,
    /// Whether this side's direction is closed. Set by the engine.
    pub(crate) has_shut: bool,
    pub(super) is_queued: bool,
}

impl UpstreamState {
    /// Returns the descriptor, once the connection is dialled.
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
    entries: Slab<UpstreamEntry>,
    /// The serial number of the last connection.
    serial: u32,
    /// The outbox for output to connections that no longer exist; its content is discarded.
    nowhere: Outbox,
}

#[derive(Debug)]
struct UpstreamEntry {
    /// The serial number of the connection: indices are reused.
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
        UpstreamId { index: self.entries.insert(UpstreamEntry { serial, upstream }) as u32, serial }
    }

    /// Returns a connection, if it still exists.
    pub(crate) fn get(&self, id: UpstreamId) -> Option<&UpstreamConnection> {
        let entry = self.entries.get(id.index as usize)?;
        (entry.serial == id.serial).then_some(&*entry.upstream)
    }

    /// Returns a connection, if it still exists.
    pub(crate) fn get_mut(&mut self, id: UpstreamId) -> Option<&mut UpstreamConnection> {
        let entry = self.entries.get_mut(id.index as usize)?;
        (entry.serial == id.serial).then_some(&mut *entry.upstream)
    }

    /// Returns the identifier of the connection with this index, for an engine that has stored the index
    /// ([`UpstreamId::index`]).
    pub(crate) fn at(&self, index: u32) -> Option<UpstreamId> {
        let serial = self.entries.get(index as usize)?.serial;
        Some(UpstreamId { index, serial })
    }

    /// Removes a connection: it is closed, or its output and its socket now belong to something else.
    pub(crate) fn remove(&mut self, id: UpstreamId) -> Option<Box<UpstreamConnection>> {
        self.get(id)?;
        Some(self.entries.remove(id.index as usize).upstream)
    }

    /// Returns the number of connections.
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
    /// Returns the index: small, and reused for later connections.
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}
