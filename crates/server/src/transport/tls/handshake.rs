//! Performs a server's handshake, as far as the received input allows.

use super::{
    HandshakeStep, Receive,
    send::flush,
    worker::{PendingHandshake, ServerHandshake, Worker},
};
use crate::transport::listener;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use pollux_sys as sys;
use pollux_tls::{ACME_TLS_ALPN, HandshakeError, Progress};
use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::Arc,
};

/// The maximum number of bytes that are received and discarded after [`PLAIN_HTTP_REPLY`]. Bytes that nobody
/// has received make close(2) reset the connection, and a reset can destroy the answer (RFC 9112 §9.6).
const DISCARDED_MAX: usize = 256 << 10;

/// The answer to a client that speaks plain HTTP to a TLS listener.
const PLAIN_HTTP_REPLY: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 63\r\n\
    Connection: close\r\n\
    \r\n\
    This port speaks HTTPS. Use a URL that begins with \"https://\".\n";

impl Worker {
    /// Continues a handshake. When it is complete, the session exists.
    ///
    /// # Errors
    /// `Interrupted` when other connections must be served before, and otherwise the reason why the
    /// handshake has failed.
    pub(super) fn handshake(
        &mut self,
        socket: BorrowedFd<'_>,
        buffer: &mut [u8],
        receive: Receive,
    ) -> io::Result<HandshakeStep> {
        let number = socket.as_raw_fd() as usize;
        let Some((session, Some(extra))) = self.sessions.get_mut(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let pending = match &mut extra.handshake {
            Some(PendingHandshake::Server(pending)) => pending,
            Some(PendingHandshake::Refused(count)) => {
                return discard(socket, buffer, receive, count);
            }
            Some(PendingHandshake::Client(_)) | None => {
                return Err(io::ErrorKind::NotConnected.into());
            }
        };
        if pending.handshake.is_none() {
            let address = pending.address.or_else(|| {
                let peer = listener::peer_address(socket);
                peer.map(|address| address.ip())
            });
            let address = address.map(counted_address);
            if !self.limits.begin_handshake(address) {
                tracing::debug!("closing a connection: too many TLS handshakes are in progress");
                return Err(io::Error::other("too many TLS handshakes"));
            }
            pending.address = address;
            match pending.server.begin() {
                Ok(handshake) => pending.handshake = Some(Box::new(handshake)),
                Err(error) => {
                    self.limits.end_handshake(address, 0);
                    return Err(io::Error::other(error));
                }
            }
        }
        let ServerHandshake { handshake: Some(handshake), address, stored, .. } = pending else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let address = *address;
        loop {
            match flush(socket, &mut extra.output) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(HandshakeStep::NeedsRoom);
                }
                Err(error) => return Err(error),
            }
            // Checked before each step, not only at the beginning: a client could send the first byte on
            // many connections, and then the rest on all of them at once.
            if !self.limits.has_time() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let received = match receive(socket, buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(HandshakeStep::NeedsInput);
                }
                Err(error) => return Err(error),
            };
            let records = handshake.records();
            let progress = handshake.advance(&buffer[..received], &mut extra.output);
            // A part of a record costs next to nothing. If it counted, a client that sends single bytes
            // would delay the handshakes of others.
            if handshake.records() > records {
                self.limits.count_step();
            }
            match progress {
                Ok(Progress::NeedsInput) => {
                    let now = handshake.stored();
                    if !self.limits.store(std::mem::replace(stored, now), now) {
                        tracing::debug!(
                            "closing a connection: TLS handshakes store too many bytes"
                        );
                        return Err(io::Error::other("too many bytes of TLS handshakes"));
                    }
                }
                Ok(Progress::Complete) => break,
                Err(HandshakeError::PlainHttp) => {
                    tracing::debug!("closing a connection: {}", HandshakeError::PlainHttp);
                    let _ = sys::send_now(socket, PLAIN_HTTP_REPLY, false);
                    sys::shutdown_write(socket)?;
                    self.limits.end_handshake(address, *stored);
                    self.failed += 1;
                    extra.handshake = Some(PendingHandshake::Refused(0));
                    return self.handshake(socket, buffer, receive);
                }
                Err(error) => {
                    let _ = sys::send_now(socket, &extra.output, false);
                    tracing::debug!("closing a connection: {error}");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
        }
        self.limits.end_handshake(address, *stored);
        let Some(PendingHandshake::Server(ServerHandshake { handshake: Some(handshake), .. })) =
            extra.handshake.take()
        else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let established = handshake.finish();
        let established = established.map_err(|error| {
            self.failed += 1;
            io::Error::new(io::ErrorKind::InvalidData, error)
        })?;
        if established.alpn.as_deref() == Some(ACME_TLS_ALPN) {
            let _ = flush(socket, &mut extra.output);
            // RFC 8737 §3: no data follows such a handshake.
            return Err(io::Error::other("an ACME authority has validated a name"));
        }
        *session = established.session;
        self.has_shaken_hands = true;
        self.succeeded += 1;
        extra.input = established.input;
        if let Some(certificate) = established.peer_certificate {
            let field = client_certificate(&certificate);
            self.client_certificates.insert(socket.as_raw_fd(), field);
        }
        // Output that the socket does not take now is sent before the first response.
        match flush(socket, &mut extra.output) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(HandshakeStep::Done),
        }
    }
}

/// Receives and discards what a refused client sends, until it closes the connection. `count` is the number
/// of bytes so far.
///
/// # Errors
/// The client has closed the connection, or has sent too much.
fn discard(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    receive: Receive,
    count: &mut usize,
) -> io::Result<HandshakeStep> {
    while *count < DISCARDED_MAX {
        match receive(socket, buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(received) => *count += received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(HandshakeStep::NeedsInput);
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}

/// Encodes a certificate as the value of `Client-Cert`: a byte sequence of structured fields (RFC 9440
/// §2.2).
fn client_certificate(der: &[u8]) -> Arc<[u8]> {
    format!(":{}:", BASE64_STANDARD.encode(der)).into_bytes().into()
}

/// Returns the address under which a handshake is counted. For an IPv6 client, this is its 64-bit network,
/// which usually belongs to one host.
fn counted_address(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => IpAddr::from((u128::from(address) >> 64 << 64).to_be_bytes()),
        address => address,
    }
}
