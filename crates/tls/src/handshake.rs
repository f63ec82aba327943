//! A handshake, driven through rustls' unbuffered interface; it results in a [`Session`].
//!
//! rustls decides about the handshake. This module passes it one record at a time, and refuses the few records that the
//! RFCs forbid and rustls accepts. It also makes the alerts that rustls does not make.

mod alerts;
mod checks;
mod client_hello;
#[cfg(test)]
mod tests;

use crate::{
    Error, Role, Session, Suite,
    capture::{self, TrafficSecrets},
    keys::{SECRET_MAX, Secret},
    record::{EXPANSION_MAX_TLS12, HEADER_LEN, PLAINTEXT_MAX},
    session::Direction,
};
use alerts::{DECODE_ERROR, FATAL, Fault, is_alert};
use client_hello::ClientHello;
use rustls::{
    ClientConfig, ConnectionTrafficSecrets, ExtractedSecrets, ServerConfig,
    client::{ClientConnectionData, UnbufferedClientConnection},
    kernel::KernelConnection,
    pki_types::ServerName,
    server::{ServerConnectionData, UnbufferedServerConnection},
    unbuffered::{
        ConnectionState, EncodeError, EncodeTlsData, InsufficientSizeError, UnbufferedStatus,
    },
};
use std::{fmt, sync::Arc};

/// How many bytes of a handshake are stored until a message is complete. rustls accepts messages of 64
/// KiB.
pub const HANDSHAKE_BYTES_MAX: usize = 80 << 10;
/// The longest record of a handshake, with its header: that of TLS 1.2.
const HANDSHAKE_RECORD_MAX: usize = HEADER_LEN + PLAINTEXT_MAX + EXPANSION_MAX_TLS12;
/// The maximum length of a whole handshake in bytes.
pub const HANDSHAKE_TOTAL_MAX: usize = 256 << 10;

/// A handshake in progress. It takes about 4 KB, which are freed when it ends.
pub struct Handshake {
    connection: Connection,
    /// Received bytes that rustls has not consumed, in the order that rustls requires: first the records
    /// that it has seen and keeps, then the records that it has not seen.
    input: Vec<u8>,
    /// The number of these bytes that rustls has seen.
    offered: usize,
    total: usize,
    records: u32,
    secrets: TrafficSecrets,
    /// Whether all records that rustls has sent are unencrypted.
    is_plain: bool,
    /// Whether the peer's first message names a version before TLS 1.2.
    is_old: bool,
    /// The client's last hello; `None` on the client's side, and if the hello was not in one record.
    hello: Option<ClientHello>,
    /// Whether the peer has sent change_cipher_spec: behind it the records of TLS 1.2 are encrypted.
    has_changed_cipher: bool,
    /// The number of bytes of early data that were skipped, and of the records without content among them.
    skipped: usize,
}

enum Connection {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

/// The state of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More input from the peer is required.
    NeedsInput,
    /// The handshake is complete: call [`Handshake::finish`].
    Complete,
}

/// The reason why a handshake failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// The received bytes are not TLS but look like a request of plain HTTP.
    PlainHttp,
    /// The handshake is longer than its maximum.
    TooLong,
    /// The peer ended the connection, by close_notify or without an alert. [`Handshake`] cannot detect the latter; its
    /// user reports it.
    Closed,
    /// A record or a hello that rustls would accept is not allowed; the text says why. The alert for the peer is in the
    /// output.
    Refused(&'static str),
    /// rustls' reason. The alert for the peer is in the output.
    Tls(rustls::Error),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlainHttp => f.write_str("the client speaks plain HTTP on a TLS port"),
            Self::TooLong => f.write_str("the TLS handshake is longer than any may be"),
            Self::Closed => f.write_str("the peer closed the connection during the TLS handshake"),
            Self::Refused(reason) => write!(f, "the TLS handshake failed: {reason}"),
            Self::Tls(error) => write!(f, "the TLS handshake failed: {error}"),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl HandshakeError {
    /// Whether the peer's certificate is the reason: not signed by a trusted authority, expired, for
    /// another name, …
    pub fn is_certificate(&self) -> bool {
        matches!(self, Self::Tls(rustls::Error::InvalidCertificate(_)))
    }

    /// The alert with which the peer ended the handshake, if it sent one.
    pub fn received_alert(&self) -> Option<u8> {
        match self {
            Self::Tls(rustls::Error::AlertReceived(alert)) => Some(u8::from(*alert)),
            _ => None,
        }
    }
}

/// The result of a complete handshake.
pub struct HandshakeResult {
    /// The record layer's state.
    pub session: Session,
    /// Bytes that arrived after the handshake: records to open.
    pub input: Vec<u8>,
    /// Whether an earlier session was resumed, without certificates.
    pub is_resumed: bool,
    /// The protocol agreed on (ALPN).
    pub alpn: Option<Vec<u8>>,
    /// The certificate that the peer sent, DER: the client's own, if the server requested one.
    pub peer_certificate: Option<Vec<u8>>,
    /// A client's connection in rustls' form, which accepts tickets for resumption. Drop it where
    /// connections are not resumed.
    pub tickets: Option<TicketReceiver>,
}

/// Takes a client's session tickets into its configuration's store.
pub struct TicketReceiver(KernelConnection<ClientConnectionData>);

impl TicketReceiver {
    /// Takes the body of a NewSessionTicket message.
    ///
    /// # Errors
    /// The ticket is malformed.
    pub fn receive(&mut self, ticket: &[u8]) -> Result<(), Error> {
        self.0.handle_new_session_ticket(ticket).map_err(|_| Error::Decode("a session ticket"))
    }

    /// Takes whole NewSessionTicket messages: the content of a record of session tickets.
    ///
    /// # Errors
    /// A ticket is malformed.
    pub fn receive_messages(&mut self, mut messages: &[u8]) -> Result<(), Error> {
        while let Some((&[_, high, middle, low], rest)) = messages.split_first_chunk() {
            let len = u32::from_be_bytes([0, high, middle, low]) as usize;
            let (ticket, rest) =
                rest.split_at_checked(len).ok_or(Error::Decode("a session ticket"))?;
            self.receive(ticket)?;
            messages = rest;
        }
        Ok(())
    }
}

impl Handshake {
    /// Begins a server's handshake. `config` must have been prepared by [`crate::prepare_server`]: it needs this
    /// crate's key log.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub fn server(config: Arc<ServerConfig>) -> Result<Self, HandshakeError> {
        let connection = UnbufferedServerConnection::new(config).map_err(HandshakeError::Tls)?;
        Ok(Self::new(Connection::Server(Box::new(connection))))
    }

    /// Begins a client's handshake; [`Handshake::advance`] with no input produces its first flight.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, HandshakeError> {
        let connection =
            UnbufferedClientConnection::new(config, name).map_err(HandshakeError::Tls)?;
        Ok(Self::new(Connection::Client(Box::new(connection))))
    }

    fn new(connection: Connection) -> Self {
        Self {
            connection,
            input: Vec::new(),
            offered: 0,
            total: 0,
            records: 0,
            secrets: TrafficSecrets::default(),
            is_plain: true,
            is_old: false,
            hello: None,
            has_changed_cipher: false,
            skipped: 0,
        }
    }

    /// How many bytes of memory the received bytes occupy that are stored until a message is complete.
    pub fn stored(&self) -> usize {
        self.input.capacity()
    }

    /// The number of the peer's records that have been processed: while it stays the same, a call of
    /// [`Handshake::advance`] has only stored bytes.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Handles received bytes, and appends to `out` the bytes to send. After an error these bytes are
    /// the alert.
    ///
    /// # Errors
    /// The handshake is over; send `out` and close the connection.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        let result = self.proceed(input, out);
        if result.is_err() {
            // An alert may have been sealed with this secret: neither another one nor a session may use it again.
            self.secrets.server = None;
        }
        result
    }

    fn proceed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        self.input.extend_from_slice(input);
        self.total += input.len();
        let is_first = self.total == input.len();
        if is_first && self.is_server() && is_plain_http(input) {
            return Err(HandshakeError::PlainHttp);
        }
        if self.records == 0 {
            self.is_old = alerts::is_old_hello(&self.input);
        }
        loop {
            let start = out.len();
            let (result, fault) = self.process(out);
            self.is_plain &= alerts::is_plain(&out[start..], self.is_server());
            match result {
                Ok(true) => {
                    if let Some(fault) = fault {
                        return Err(self.refuse(fault, out));
                    }
                }
                Ok(false) => return Ok(Progress::Complete),
                Err(error) => {
                    let before_alert = out.len();
                    self.collect_alert(out);
                    self.correct_alert(&error, fault, start, before_alert, out);
                    return Err(HandshakeError::Tls(error));
                }
            }
            match self.offer_record() {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => return Err(self.refuse(fault, out)),
            }
        }
        if self.input.len() > HANDSHAKE_BYTES_MAX || self.total > HANDSHAKE_TOTAL_MAX {
            self.put_alert([FATAL, DECODE_ERROR], out);
            return Err(HandshakeError::TooLong);
        }
        // A handshake may last as long as its user allows, and the peer chooses how much arrives at once.
        if self.input.len() < self.input.capacity() / 2 {
            self.input.shrink_to_fit();
        }
        Ok(Progress::NeedsInput)
    }

    /// After an error: appends the records that rustls still wants to send; the last one is the alert.
    ///
    /// The input is left unchanged, since rustls may refer to messages in it and panics if they are
    /// missing. rustls is not called again after the alert, since it would process the same input once
    /// more.
    fn collect_alert(&mut self, out: &mut Vec<u8>) {
        let offered = &mut self.input[..self.offered];
        match &mut self.connection {
            Connection::Server(c) => encode_until_alert(&mut **c, offered, out),
            Connection::Client(c) => encode_until_alert(&mut **c, offered, out),
        }
    }

    /// Lets rustls process all input that it has been offered. Returns whether the handshake continues, and the result
    /// of [`Handshake::fault_of_record`].
    fn process(&mut self, out: &mut Vec<u8>) -> (Result<bool, rustls::Error>, Option<Fault>) {
        let offered = &mut self.input[..self.offered];
        let (discard, result) = match &mut self.connection {
            Connection::Server(c) => drive(&mut **c, offered, out),
            Connection::Client(c) => drive(&mut **c, offered, out),
        };
        self.secrets.add(capture::take());
        let fault = self.fault_of_record(&result);
        self.input.drain(..discard);
        self.offered -= discard;
        let is_handshaking = match &self.connection {
            Connection::Server(c) => c.is_handshaking(),
            Connection::Client(c) => c.is_handshaking(),
        };
        (result.map(|()| is_handshaking), fault)
    }

    /// Ends a handshake that is complete.
    ///
    /// # Errors
    /// The handshake is not complete, or its suite is not one of [`Suite`].
    pub fn finish(self) -> Result<HandshakeResult, HandshakeError> {
        let Self { connection, input, secrets, .. } = self;
        match connection {
            Connection::Server(connection) => {
                let is_resumed =
                    connection.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
                let alpn = connection.alpn_protocol().map(<[u8]>::to_vec);
                let certificates = connection.peer_certificates();
                let peer_certificate = certificates.and_then(<[_]>::first).map(|c| c.to_vec());
                let (extracted, kernel) =
                    connection.dangerous_into_kernel_connection().map_err(HandshakeError::Tls)?;
                let suite = suite_of(&kernel, &extracted)?;
                let session = session(suite, Role::Server, &secrets, &extracted)?;
                let tickets = None;
                Ok(HandshakeResult { session, input, is_resumed, alpn, peer_certificate, tickets })
            }
            Connection::Client(connection) => {
                let is_resumed =
                    connection.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
                let alpn = connection.alpn_protocol().map(<[u8]>::to_vec);
                let certificates = connection.peer_certificates();
                let peer_certificate = certificates.and_then(<[_]>::first).map(|c| c.to_vec());
                let (extracted, kernel) =
                    connection.dangerous_into_kernel_connection().map_err(HandshakeError::Tls)?;
                let suite = suite_of(&kernel, &extracted)?;
                let session = session(suite, Role::Client, &secrets, &extracted)?;
                let tickets = suite.is_tls13().then_some(TicketReceiver(kernel));
                Ok(HandshakeResult { session, input, is_resumed, alpn, peer_certificate, tickets })
            }
        }
    }
}

/// The operations that rustls' two unbuffered connections have in common.
trait Process {
    type Data;
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
}

impl Process for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }
}

impl Process for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }
}

/// Processes until more input is needed or the handshake is complete. Returns how many bytes of input
/// are used up.
fn drive<P: Process>(
    connection: &mut P,
    input: &mut [u8],
    out: &mut Vec<u8>,
) -> (usize, Result<(), rustls::Error>) {
    let mut used = 0;
    loop {
        let UnbufferedStatus { discard, state } = connection.process(&mut input[used..]);
        used += discard;
        match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, out),
            Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
            Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
                return (used, Ok(()));
            }
            // The peer closed before the handshake was complete, or sent early data, which was not
            // offered.
            Ok(_) => {
                return (used, Err(rustls::Error::General("the peer ended the handshake".into())));
            }
            Err(error) => return (used, Err(error)),
        }
    }
}

/// Appends a record that rustls has for the peer.
fn encode<Data>(data: &mut EncodeTlsData<'_, Data>, out: &mut Vec<u8>) {
    let start = out.len();
    let len = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
            out.resize(start + required_size, 0);
            data.encode(&mut out[start..])
        }
        other => other,
    };
    out.truncate(start + len.unwrap_or(0));
}

/// The most records that rustls may have for the peer when it fails: a flight and the alert.
const LAST_RECORDS_MAX: usize = 16;

fn encode_until_alert<P: Process>(connection: &mut P, input: &mut [u8], out: &mut Vec<u8>) {
    for _ in 0..LAST_RECORDS_MAX {
        let UnbufferedStatus { state: Ok(ConnectionState::EncodeTlsData(mut data)), .. } =
            connection.process(input)
        else {
            return;
        };
        let start = out.len();
        encode(&mut data, out);
        if is_alert(&out[start..]) {
            return;
        }
    }
}

/// The length of the first record of `input`; `None` until its header is complete.
fn record_len(input: &[u8]) -> Option<usize> {
    let &[_, _, _, high, low] = input.first_chunk::<5>()?;
    Some(5 + usize::from(u16::from_be_bytes([high, low])))
}

/// Whether the input begins like a request line. No TLS record does: its first byte is 20 to 24.
fn is_plain_http(input: &[u8]) -> bool {
    input.first().is_some_and(u8::is_ascii_uppercase)
}

fn suite_of<Data>(
    kernel: &KernelConnection<Data>,
    extracted: &ExtractedSecrets,
) -> Result<Suite, HandshakeError> {
    let (version, suite) = (kernel.protocol_version(), kernel.negotiated_cipher_suite().suite());
    Suite::of(version, suite, &extracted.tx.1)
        .ok_or_else(|| unknown("the cipher suite is not known"))
}

fn session(
    suite: Suite,
    role: Role,
    secrets: &TrafficSecrets,
    extracted: &ExtractedSecrets,
) -> Result<Session, HandshakeError> {
    let ((tx_sequence, tx), (rx_sequence, rx)) = (&extracted.tx, &extracted.rx);
    let (receive, send) = if suite.is_tls13() {
        let (Some(client), Some(server)) = (&secrets.client, &secrets.server) else {
            return Err(unknown("no traffic secrets: the configuration has another key log"));
        };
        let (receive, send) = match role {
            Role::Server => (client, server),
            Role::Client => (server, client),
        };
        (Secret(receive.0), Secret(send.0))
    } else {
        (key_and_iv(rx)?, key_and_iv(tx)?)
    };
    let len = suite.secret_len();
    Ok(Session::new(
        suite,
        role,
        &Direction { secret: &receive.0[..len], sequence: *rx_sequence },
        &Direction { secret: &send.0[..len], sequence: *tx_sequence },
    ))
}

fn key_and_iv(secrets: &ConnectionTrafficSecrets) -> Result<Secret, HandshakeError> {
    use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
    let (Aes128Gcm { key, iv } | Aes256Gcm { key, iv } | Chacha20Poly1305 { key, iv }) = secrets
    else {
        return Err(unknown("the cipher suite is not known"));
    };
    let (key, iv) = (key.as_ref(), iv.as_ref());
    let mut secret = Secret([0; SECRET_MAX]);
    secret.0[..key.len()].copy_from_slice(key);
    secret.0[key.len()..][..iv.len()].copy_from_slice(iv);
    Ok(secret)
}

fn unknown(reason: &str) -> HandshakeError {
    HandshakeError::Tls(rustls::Error::General(reason.into()))
}
