//! A handshake, driven through rustls' unbuffered interface; it results in a [`Session`].

use crate::{
    Error, Role, Session, Suite,
    capture::{self, TrafficSecrets},
    keys::{SECRET_MAX, Secret},
    record::{EXPANSION_MAX_TLS12, HEADER_LEN, PLAINTEXT_MAX},
    session::Direction,
};
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
    /// The peer closed the connection without an alert. [`Handshake`] cannot detect that; its user
    /// reports it.
    Closed,
    /// rustls' reason. The alert for the peer is in the output.
    Tls(rustls::Error),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlainHttp => f.write_str("the client speaks plain HTTP on a TLS port"),
            Self::TooLong => f.write_str("the TLS handshake is longer than any may be"),
            Self::Closed => f.write_str("the peer closed the connection during the TLS handshake"),
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
        self.input.extend_from_slice(input);
        self.total += input.len();
        let is_first = self.total == input.len();
        if is_first && matches!(self.connection, Connection::Server(_)) && is_plain_http(input) {
            return Err(HandshakeError::PlainHttp);
        }
        if self.records == 0 {
            self.is_old = is_old_hello(&self.input);
        }
        loop {
            let start = out.len();
            let result = self.process(out);
            self.is_plain &= is_plain(&out[start..]);
            let is_handshaking = match result {
                Ok(is_handshaking) => is_handshaking,
                Err(error) => {
                    let before_alert = out.len();
                    self.collect_alert(out);
                    if self.is_old && lacks_signature_algorithms(&error) {
                        // rustls misses the extension before it looks at the version.
                        out.truncate(start);
                        out.extend(plain_alert(PROTOCOL_VERSION));
                    } else if self.is_plain
                        && (out.len() == before_alert || is_fault_of_header(&error))
                    {
                        // For some errors rustls makes no alert, and for these faults another one.
                        out.truncate(before_alert);
                        out.extend(missing_alert(&error).into_iter().flatten());
                    }
                    return Err(HandshakeError::Tls(error));
                }
            };
            if !is_handshaking {
                return Ok(Progress::Complete);
            }
            // rustls gets one record at a time, so that it never opens a record after the handshake.
            let unseen = &self.input[self.offered..];
            match record_len(unseen) {
                Some(len) if unseen.len() >= len => self.offered += len,
                // rustls refuses such a record by its header, so the rest of the record is not needed.
                Some(len) if len > HANDSHAKE_RECORD_MAX => self.offered = self.input.len(),
                _ => break,
            }
            self.records += 1;
        }
        if self.input.len() > HANDSHAKE_BYTES_MAX || self.total > HANDSHAKE_TOTAL_MAX {
            if self.is_plain {
                out.extend(plain_alert(DECODE_ERROR));
            }
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

    /// Lets rustls process all input that it has been offered. Returns whether the handshake continues.
    fn process(&mut self, out: &mut Vec<u8>) -> Result<bool, rustls::Error> {
        let offered = &mut self.input[..self.offered];
        let (discard, result) = match &mut self.connection {
            Connection::Server(c) => drive(&mut **c, offered, out),
            Connection::Client(c) => drive(&mut **c, offered, out),
        };
        let TrafficSecrets { client, server } = capture::take();
        self.secrets.client = client.or(self.secrets.client.take());
        self.secrets.server = server.or(self.secrets.server.take());
        self.input.drain(..discard);
        self.offered -= discard;
        result?;
        Ok(match &self.connection {
            Connection::Server(c) => c.is_handshaking(),
            Connection::Client(c) => c.is_handshaking(),
        })
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

const UNEXPECTED_MESSAGE: u8 = 10;
const RECORD_OVERFLOW: u8 = 22;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;

/// A fatal alert that is not encrypted.
fn plain_alert(description: u8) -> [u8; 7] {
    [21, 3, 3, 0, 2, 2, description]
}

/// Whether the type or the length in a record's header is wrong.
fn is_fault_of_header(error: &rustls::Error) -> bool {
    use rustls::{
        Error,
        InvalidMessage::{InvalidContentType, MessageTooLarge},
    };
    matches!(error, Error::InvalidMessage(InvalidContentType | MessageTooLarge))
}

/// The alert for an error for which rustls makes none, or the right alert for a fault of a record's header, for which
/// rustls makes a wrong one.
fn missing_alert(error: &rustls::Error) -> Option<[u8; 7]> {
    use rustls::{Error, InvalidMessage, PeerMisbehaved};
    Some(plain_alert(match error {
        // These are faults of a record's header: its type (RFC 8446 §5, RFC 5246 §6) and its length (RFC 8446 §5.1).
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => UNEXPECTED_MESSAGE,
        Error::InvalidMessage(InvalidMessage::MessageTooLarge) => RECORD_OVERFLOW,
        Error::InvalidMessage(_) => DECODE_ERROR,
        Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::PeerMisbehaved(PeerMisbehaved::MessageInterleavedWithHandshakeMessage) => {
            UNEXPECTED_MESSAGE
        }
        Error::PeerMisbehaved(_) => ILLEGAL_PARAMETER,
        // The peer has sent an alert itself, or the error is this end's fault.
        _ => return None,
    }))
}

/// Whether rustls refuses a hello because it has no extension signature_algorithms.
fn lacks_signature_algorithms(error: &rustls::Error) -> bool {
    use rustls::{Error, PeerIncompatible};
    matches!(error, Error::PeerIncompatible(PeerIncompatible::SignatureAlgorithmsExtensionRequired))
}

/// Whether the input begins with a ClientHello of a version before TLS 1.2. A client without TLS 1.2
/// sends no signature_algorithms, and must get the alert protocol_version (RFC 5246 appendix E.1).
fn is_old_hello(input: &[u8]) -> bool {
    /// The header of the record, and the type and length of the message.
    const VERSION_AT: usize = HEADER_LEN + 4;
    const HANDSHAKE: u8 = 22;
    const CLIENT_HELLO: u8 = 1;
    const TLS12: [u8; 2] = [3, 3];
    input.first() == Some(&HANDSHAKE)
        && input.get(HEADER_LEN) == Some(&CLIENT_HELLO)
        && input.get(VERSION_AT..VERSION_AT + 2).is_some_and(|version| version < &TLS12[..])
}

/// Whether records that rustls wants to send are unencrypted messages: from change_cipher_spec on they
/// may be encrypted.
fn is_plain(mut records: &[u8]) -> bool {
    const HANDSHAKE: u8 = 22;
    while let (Some(&kind), Some(len)) = (records.first(), record_len(records)) {
        if kind != HANDSHAKE {
            return false;
        }
        records = records.get(len..).unwrap_or_default();
    }
    true
}

/// Whether a record is an alert: by its type or, where TLS 1.3 hides the type, by its length (2 bytes,
/// the inner type and the tag), which no other message of a handshake has.
fn is_alert(record: &[u8]) -> bool {
    const ALERT: u8 = 21;
    const APPLICATION_DATA: u8 = 23;
    match record.first() {
        Some(&ALERT) => true,
        Some(&APPLICATION_DATA) => record.len() == 5 + 2 + 1 + 16,
        _ => false,
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
