//! The client's side of TLS: connections to origins.

use super::{
    send::flush,
    worker::{Extra, PendingHandshake, Worker},
};
use anyhow::Context as _;
use pollux_sys as sys;
use pollux_tls::{
    ClientConfig, ClientSettings, ClientTrust, Handshake, HandshakeError, MinVersion, Progress,
    RECORD_MAX, ServerName, Trust,
};
use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::{Arc, Mutex, PoisonError},
};

/// The maximum number of session tickets that are stored for an origin. Each is stored with the certificates of
/// its connection, so an origin decides how much memory it takes: up to 80 KB.
const TICKETS_MAX: usize = 64;

/// The settings of TLS to origins, which all workers share: the trusted authorities, and the tickets of
/// earlier sessions.
#[derive(Clone, Debug)]
pub struct OriginTls {
    config: Arc<ClientConfig>,
    authorities: Trust,
}

impl OriginTls {
    /// Reads the authorities.
    ///
    /// # Errors
    /// The file cannot be read or has no certificate; the system trusts no authority.
    pub fn new(trust: &ClientTrust) -> anyhow::Result<Self> {
        let authorities = match trust {
            ClientTrust::File(_) => trust.read().context("--origin-ca")?,
            ClientTrust::System | ClientTrust::Anybody => trust.read().context(
                "an https origin needs trusted authorities; --origin-ca FILE names others",
            )?,
        };
        let settings = ClientSettings {
            trust: authorities.clone(),
            min_version: MinVersion::Tls12,
            alpn: vec![b"http/1.1".to_vec()],
            tickets_max: TICKETS_MAX,
            cipher: None,
            logs_secrets: false,
        };
        Ok(Self { config: settings.build()?, authorities })
    }

    /// Returns whether both trust the same authorities. The order in which they were read does not matter.
    pub(crate) fn has_same_authorities(&self, other: &Self) -> bool {
        match (&self.authorities, &other.authorities) {
            (Trust::Anybody, Trust::Anybody) => true,
            (Trust::Roots(one), Trust::Roots(other)) => {
                let (one, other) = (&one.roots, &other.roots);
                one.len() == other.len() && one.iter().all(|root| other.contains(root))
            }
            _ => false,
        }
    }

    /// Returns the server with this name; its certificate must contain the name.
    pub(crate) fn peer(&self, name: ServerName<'static>) -> Arc<TlsPeer> {
        let config = Arc::clone(&self.config);
        Arc::new(TlsPeer { config, name, last_failure: Mutex::default() })
    }
}

/// A server to which connections use TLS.
#[derive(Debug)]
pub(crate) struct TlsPeer {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// The failure that was logged last, so that repeated failures are not logged each time.
    last_failure: Mutex<Option<String>>,
}

impl PartialEq for TlsPeer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config) && self.name == other.name
    }
}

impl Eq for TlsPeer {}

impl TlsPeer {
    fn log(&self, failure: Option<&HandshakeError>) {
        let failure = failure.map(ToString::to_string);
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == failure {
            return;
        }
        if let Some(reason) = &failure {
            tracing::warn!("TLS to the origin {}: {reason}", self.name.to_str());
        }
        *last = failure;
    }
}

/// The condition under which a handshake can continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeStep {
    /// The handshake is complete.
    Done,
    /// The handshake needs bytes from the server.
    NeedsInput,
    /// The handshake needs room in the socket.
    NeedsRoom,
}

/// A client's handshake that has not ended.
pub(super) struct ClientHandshake {
    peer: Arc<TlsPeer>,
    handshake: Box<Handshake>,
}

impl Worker {
    /// Begins a handshake on a connection that this side has made.
    pub(super) fn connect(
        &mut self,
        socket: BorrowedFd<'_>,
        peer: &Arc<TlsPeer>,
    ) -> io::Result<()> {
        self.forget(socket.as_raw_fd());
        let refuse = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut handshake =
            Handshake::client(Arc::clone(&peer.config), peer.name.clone()).map_err(refuse)?;
        let mut extra = Extra::default();
        handshake.advance(&[], &mut extra.output).map_err(refuse)?;
        let (peer, handshake) = (Arc::clone(peer), Box::new(handshake));
        extra.handshake = Some(PendingHandshake::Client(ClientHandshake { peer, handshake }));
        self.sessions.insert(socket.as_raw_fd() as usize, Box::new(extra))
    }

    /// Continues a client's handshake, as far as possible without waiting.
    ///
    /// # Errors
    /// The handshake has failed. The error contains a [`HandshakeError`], or is the socket's own error.
    pub(super) fn client_handshake(&mut self, socket: BorrowedFd<'_>) -> io::Result<HandshakeStep> {
        let number = socket.as_raw_fd() as usize;
        // The buffer for encrypted output can be used to receive: the received handshake bytes are not
        // secret either. At most one record is received at once: what follows the handshake must fit into
        // the buffer of the first receive.
        let Self { sessions, output, .. } = self;
        let scratch = &mut output[..RECORD_MAX];
        let Some((session, Some(extra))) = sessions.get_mut(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let Extra { handshake, output, .. } = &mut **extra;
        let Some(PendingHandshake::Client(ClientHandshake { peer, handshake })) = handshake else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        loop {
            match flush(socket, output) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(HandshakeStep::NeedsRoom);
                }
                Err(error) => return Err(error),
            }
            let received = match sys::recv_now(socket, scratch) {
                Ok(received) => received,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(HandshakeStep::NeedsInput),
                    io::ErrorKind::Interrupted => continue,
                    _ => return Err(error),
                },
            };
            let progress = match received {
                0 => Err(HandshakeError::Closed),
                received => handshake.advance(&scratch[..received], output),
            };
            match progress {
                Ok(Progress::NeedsInput) => {}
                Ok(Progress::Complete) => break,
                Err(error) => {
                    let _ = sys::send_now(socket, output, false);
                    peer.log(Some(&error));
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
        }
        let Some(PendingHandshake::Client(ClientHandshake { peer, handshake })) =
            extra.handshake.take()
        else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        peer.log(None);
        let established = handshake
            .finish()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        *session = established.session;
        extra.input = established.input;
        extra.tickets = established.tickets.map(Box::new);
        // Output that the socket does not take now is sent before the first request.
        flush(socket, &mut extra.output).or_else(|error| match error.kind() {
            io::ErrorKind::WouldBlock => Ok(()),
            _ => Err(error),
        })?;
        Ok(HandshakeStep::Done)
    }
}
