//! The sessions of one thread.

use super::{
    client::ClientHandshake,
    kernel::{KernelCounts, KernelTls},
    limits::Limits,
    settings::Tls,
};
use pollux_tls::{
    Handshake, KeyCache, OVERHEAD_MAX, PLAINTEXT_MAX, Session, SessionTable, TicketReceiver,
};
use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
    sync::Arc,
};

/// The maximum number of records in one send, at full size.
const RECORDS_PER_SEND: usize = 4;
/// The number of expanded keys that are cached for busy connections. An entry has some 1.2 KB.
const KEY_CACHE_SLOTS: usize = 64;

pub(super) struct Worker {
    pub(super) sessions: SessionTable<Extra>,
    pub(super) keys: KeyCache,
    /// The buffer in which records are encrypted. Between calls it contains only encrypted data.
    pub(super) output: Box<[u8]>,
    pub(super) limits: Limits,
    /// The certificates that clients have sent, by descriptor, as values of `Client-Cert`.
    pub(super) client_certificates: HashMap<RawFd, Arc<[u8]>>,
    /// The numbers of handshakes since the last count: those that succeeded, and those that failed.
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    /// See [`super::may_have_more`].
    pub(super) may_have_more: bool,
    /// See [`super::has_just_shaken_hands`].
    pub(super) has_shaken_hands: bool,
    /// The abilities of the kernel; `None` if it does not encrypt long files.
    pub(super) kernel: Option<KernelTls>,
    pub(super) kernel_counts: KernelCounts,
}

/// The further state of a connection besides its session; it exists only while it is needed.
#[derive(Default)]
pub(super) struct Extra {
    /// The handshake that has not ended.
    pub(super) handshake: Option<PendingHandshake>,
    /// The received part of an incomplete record.
    pub(super) input: Vec<u8>,
    /// Records that the socket has not taken yet.
    pub(super) output: Vec<u8>,
    /// The number of bytes of plaintext that are in these records, or in the kernel, and were not reported
    /// to the caller as sent yet.
    pub(super) sealed_ahead: usize,
    /// For a connection to an origin: receives its session tickets, until the first response begins. Later
    /// tickets are dropped, so that an idle connection needs no memory besides its session.
    pub(super) tickets: Option<Box<TicketReceiver>>,
}

/// A handshake that has not ended.
pub(super) enum PendingHandshake {
    Server(ServerHandshake),
    /// The client speaks plain HTTP and was answered. This many bytes were discarded since.
    Refused(usize),
    Client(ClientHandshake),
}

/// A server's handshake that has not ended.
pub(super) struct ServerHandshake {
    pub(super) server: Arc<Tls>,
    /// The handshake, which begins when the first bytes are to be read: until then a connection needs no
    /// memory for it.
    pub(super) handshake: Option<Box<Handshake>>,
    /// The client's address if it is known, otherwise that of the peer; under it the handshake is counted
    /// once it has begun.
    pub(super) address: Option<IpAddr>,
    /// The number of bytes that the handshake stores, as the limits have counted them.
    pub(super) stored: usize,
}

impl Extra {
    /// Returns whether there is no further state.
    pub(super) fn is_empty(&self) -> bool {
        self.handshake.is_none()
            && self.input.is_empty()
            && self.output.is_empty()
            && self.sealed_ahead == 0
            && self.tickets.is_none()
    }
}

impl Default for Worker {
    fn default() -> Self {
        Self {
            sessions: SessionTable::default(),
            keys: KeyCache::new(KEY_CACHE_SLOTS),
            output: vec![0; RECORDS_PER_SEND * (PLAINTEXT_MAX + OVERHEAD_MAX)].into_boxed_slice(),
            limits: Limits::default(),
            client_certificates: HashMap::new(),
            succeeded: 0,
            failed: 0,
            may_have_more: false,
            has_shaken_hands: false,
            kernel: None,
            kernel_counts: KernelCounts::default(),
        }
    }
}

impl Worker {
    pub(super) fn accept(
        &mut self,
        socket: BorrowedFd<'_>,
        address: Option<IpAddr>,
        server: &Arc<Tls>,
    ) -> io::Result<()> {
        // A worker that panicked has closed its connection without `forget`, and its thread goes on.
        self.forget(socket.as_raw_fd());
        self.kernel = server.kernel();
        let server = Arc::clone(server);
        let handshake = ServerHandshake { server, handshake: None, address, stored: 0 };
        let handshake = Some(PendingHandshake::Server(handshake));
        let extra = Extra { handshake, ..Extra::default() };
        self.sessions.insert(socket.as_raw_fd() as usize, Box::new(extra))
    }

    /// Returns the session of an idle connection, for another process. Returns `None` also if the client
    /// has sent a certificate: the authorities in the successor's configuration decide which certificates
    /// are valid.
    pub(super) fn park(&mut self, socket: BorrowedFd<'_>) -> Option<Vec<u8>> {
        if self.client_certificates.contains_key(&socket.as_raw_fd()) {
            return None;
        }
        let (session, extra) = self.sessions.get_mut(socket.as_raw_fd() as usize)?;
        if extra.is_some() { None } else { session.park() }
    }

    pub(super) fn resume(
        &mut self,
        socket: BorrowedFd<'_>,
        parked: &[u8],
        server: &Arc<Tls>,
    ) -> io::Result<()> {
        self.forget(socket.as_raw_fd());
        self.kernel = server.kernel();
        let no_session = || io::Error::new(io::ErrorKind::InvalidData, "it is no session");
        let session = Session::unpark(parked).ok_or_else(no_session)?;
        let number = socket.as_raw_fd() as usize;
        self.sessions.insert(number, Box::default())?;
        let (slot, extra) = self.sessions.get_mut(number).ok_or_else(no_session)?;
        *slot = session;
        *extra = None;
        Ok(())
    }

    pub(super) fn forget(&mut self, fd: RawFd) {
        let Some((session, extra)) = self.sessions.remove(fd as usize) else { return };
        if session.is_established() {
            self.keys.forget(fd as usize, &session);
        }
        if !self.client_certificates.is_empty() {
            self.client_certificates.remove(&fd);
        }
        if let Some(PendingHandshake::Server(ServerHandshake {
            handshake: Some(_),
            address,
            stored,
            ..
        })) = extra.and_then(|extra| extra.handshake)
        {
            self.limits.end_handshake(address, stored);
            self.failed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TlsConfig;
    use std::os::{fd::AsFd as _, unix::net::UnixStream};

    /// A thread whose worker has panicked keeps this state, and the closed descriptor is used again.
    #[test]
    fn a_descriptor_that_is_used_again_has_nothing_of_its_last_use() {
        let server = Arc::new(Tls::new(&TlsConfig::default()).unwrap());
        let (near, _far) = UnixStream::pair().unwrap();
        let (socket, fd) = (near.as_fd(), near.as_raw_fd());
        let mut worker = Worker::default();
        let mut buffer = vec![0; pollux_tls::RECORD_MAX];

        worker.accept(socket, None, &server).unwrap();
        let error = worker.receive(socket, &mut buffer, pollux_sys::recv_now).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(worker.limits.running(), 1);
        worker.client_certificates.insert(fd, Arc::from(&b":former:"[..]));

        worker.accept(socket, None, &server).unwrap();
        assert_eq!(worker.limits.running(), 0);
        assert!(worker.client_certificates.is_empty());
    }
}
