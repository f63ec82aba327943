//! The messages of a live upgrade between a server and its successor: conversion from and to bytes,
//! without I/O.
//!
//! Each message is one packet: four bytes that identify it, the version of the format, its kind,
//! and its fields. Numbers are big-endian; a text or a list follows its length. Descriptors are
//! sent with the bytes (SCM_RIGHTS); their number depends on the kind ([`Message::descriptors`]).
//! Every change of a kind or a field needs another [`VERSION`]: a server and a successor of
//! different versions refuse each other.

use crate::transport::role::Role;
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// The version of the format.
pub(crate) const VERSION: u16 = 4;
/// The first bytes of each message.
const MAGIC: [u8; 4] = *b"PLXU";
/// The maximum number of connections in one message: the kernel passes at most this many
/// descriptors with one.
pub(crate) const CONNECTIONS_MAX: usize = 253;
/// The maximum size of a message in bytes.
pub(crate) const MESSAGE_MAX: usize = 64 << 10;
/// The number of bytes before the first connection in a message of connections.
pub(crate) const MESSAGE_HEAD: usize = 8;
/// The maximum size of a text in bytes: an address, a path, or the reason of a failure.
pub(crate) const TEXT_MAX: usize = 4 << 10;
/// The maximum size in bytes of a connection's parked TLS session.
pub(crate) const SESSION_MAX: usize = 160;
/// The maximum size in bytes of the data with which a service continues a stream.
pub(crate) const STREAM_MAX: usize = 16 << 10;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// To the successor, as the first message: the number of [`Message::Listener`] that follow.
    Begin {
        /// The number of listeners.
        listeners: u32,
    },
    /// To the successor: a listening socket, which is sent with the message.
    Listener {
        /// The purpose of the listener.
        role: Role,
        /// Its number in the configuration; the sockets of one listener, for all workers, have the
        /// same number.
        index: u16,
        /// The address as it is configured, such as `127.0.0.1:0`.
        configured: String,
    },
    /// From the successor: all its workers are ready to serve.
    Ready,
    /// From the successor, as the last message: it cannot serve.
    Failed {
        /// The reason, for people.
        reason: String,
    },
    /// To the successor: a socket, sent with the message, on which a worker sends
    /// [`Message::Connections`].
    Channel,
    /// To the successor, before any channel: a socket, sent with the message, on which the hub's
    /// log is sent.
    Hub,
    /// To the successor, as the last message: the former server only finishes the exchanges that it
    /// has begun.
    Confirm,
    /// From a worker: idle connections. Their sockets are sent with the message in this order.
    Connections(Vec<IdleConnection>),
    /// To a worker: all connections of the oldest unanswered message have been accepted.
    Accepted {
        /// The number of connections.
        connections: u16,
    },
}

/// The data that the successor needs for an idle connection, besides its socket.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct IdleConnection {
    /// The number of requests that have arrived so far.
    pub(crate) requests: u32,
    /// Milliseconds until it is closed because it is idle.
    pub(crate) remaining_ms: u32,
    /// The address of the client, if it is not the peer of the socket (PROXY protocol), or if
    /// clients are limited by address.
    pub(crate) client: Option<SocketAddr>,
    /// The parked TLS session; empty without TLS.
    pub(crate) session: Vec<u8>,
    /// The data with which a service continues a stream; empty if the connection waits for a
    /// request.
    pub(crate) stream: Vec<u8>,
    /// Whether the content of the stream is chunked.
    pub(crate) is_chunked: bool,
}

/// Overwrites the session, which contains secrets.
impl Drop for IdleConnection {
    fn drop(&mut self) {
        self.session.fill(0);
        std::hint::black_box(&self.session);
    }
}

impl fmt::Debug for IdleConnection {
    /// Omits the session, which contains secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleConnection")
            .field("requests", &self.requests)
            .field("remaining_ms", &self.remaining_ms)
            .field("client", &self.client)
            .field("stream", &self.stream.escape_ascii().to_string())
            .finish_non_exhaustive()
    }
}

/// The reason why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageError {
    /// The bytes do not begin like a message.
    Foreign,
    /// The message has another version.
    Version(u16),
    /// The kind does not exist.
    Kind(u8),
    /// The message is too short or too long.
    Length,
    /// A field has an impossible value.
    Value,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("the received bytes are no message of a live upgrade"),
            Self::Version(version) => write!(
                f,
                "the two programs do not understand each other: one speaks version {version} of the upgrade's \
                 messages, the other version {VERSION}; restart the server instead"
            ),
            Self::Kind(kind) => write!(f, "a message is of kind {kind}, which does not exist"),
            Self::Length => f.write_str("a message is too short or too long"),
            Self::Value => f.write_str("a message has a field that makes no sense"),
        }
    }
}

impl std::error::Error for MessageError {}

const BEGIN: u8 = 1;
const LISTENER: u8 = 2;
const READY: u8 = 3;
const FAILED: u8 = 4;
const CHANNEL: u8 = 5;
const CONFIRM: u8 = 6;
const CONNECTIONS: u8 = 7;
const ACCEPTED: u8 = 8;
const HUB: u8 = 9;

/// The bits that say which optional fields a connection has.
const HAS_IPV4: u8 = 1;
const HAS_IPV6: u8 = 1 << 1;
const HAS_SESSION: u8 = 1 << 2;
const IS_STREAM: u8 = 1 << 3;
const IS_CHUNKED: u8 = 1 << 4;

impl Message {
    /// Returns how many descriptors are sent with the message.
    pub(crate) fn descriptors(&self) -> usize {
        match self {
            Self::Listener { .. } | Self::Channel | Self::Hub => 1,
            Self::Connections(connections) => connections.len(),
            _ => 0,
        }
    }

    /// Encodes the message. A text that is too long is cut.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // The capacity prevents a reallocation, which would leave secrets in memory.
        let capacity = match self {
            Self::Connections(connections) => {
                connections.iter().map(IdleConnection::encoded_len).sum()
            }
            _ => 0,
        };
        let mut out = Vec::with_capacity(64 + capacity);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        match self {
            Self::Begin { listeners } => {
                out.push(BEGIN);
                out.extend_from_slice(&listeners.to_be_bytes());
            }
            Self::Listener { role, index, configured } => {
                out.extend_from_slice(&[LISTENER, *role as u8]);
                out.extend_from_slice(&index.to_be_bytes());
                put_text(&mut out, configured);
            }
            Self::Ready => out.push(READY),
            Self::Failed { reason } => {
                out.push(FAILED);
                put_text(&mut out, reason);
            }
            Self::Channel => out.push(CHANNEL),
            Self::Hub => out.push(HUB),
            Self::Confirm => out.push(CONFIRM),
            Self::Connections(connections) => {
                out.push(CONNECTIONS);
                out.push(connections.len().min(CONNECTIONS_MAX) as u8);
                connections.iter().take(CONNECTIONS_MAX).for_each(|one| one.encode(&mut out));
            }
            Self::Accepted { connections } => {
                out.push(ACCEPTED);
                out.extend_from_slice(&connections.to_be_bytes());
            }
        }
        out
    }

    /// Decodes a message, which must occupy all of `bytes`.
    ///
    /// # Errors
    /// The bytes are not a message.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut reader = Reader(bytes);
        if bytes.len() > MESSAGE_MAX {
            return Err(MessageError::Length);
        }
        if reader.array() != Ok(MAGIC) {
            return Err(MessageError::Foreign);
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(MessageError::Version(version));
        }
        let message = match reader.u8()? {
            BEGIN => Self::Begin { listeners: reader.u32()? },
            LISTENER => Self::Listener {
                role: Role::of(reader.u8()?)?,
                index: reader.u16()?,
                configured: reader.text()?,
            },
            READY => Self::Ready,
            FAILED => Self::Failed { reason: reader.text()? },
            CHANNEL => Self::Channel,
            HUB => Self::Hub,
            CONFIRM => Self::Confirm,
            CONNECTIONS => {
                let count = usize::from(reader.u8()?);
                if count == 0 || count > CONNECTIONS_MAX {
                    return Err(MessageError::Value);
                }
                let connections = (0..count).map(|_| IdleConnection::decode(&mut reader));
                Self::Connections(connections.collect::<Result<_, _>>()?)
            }
            ACCEPTED => Self::Accepted { connections: reader.u16()? },
            kind => return Err(MessageError::Kind(kind)),
        };
        if reader.0.is_empty() { Ok(message) } else { Err(MessageError::Length) }
    }
}

impl Role {
    fn of(number: u8) -> Result<Self, MessageError> {
        [Self::Clients, Self::Control, Self::Admin]
            .into_iter()
            .find(|role| *role as u8 == number)
            .ok_or(MessageError::Value)
    }
}

impl IdleConnection {
    /// Returns how many bytes it occupies in a message.
    pub(crate) fn encoded_len(&self) -> usize {
        let address = match self.client {
            None => 0,
            Some(SocketAddr::V4(_)) => 6,
            Some(SocketAddr::V6(_)) => 18,
        };
        let session = if self.session.is_empty() { 0 } else { 1 + self.session.len() };
        let stream = if self.stream.is_empty() { 0 } else { 2 + self.stream.len() };
        9 + address + session + stream
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let address = match self.client {
            None => 0,
            Some(SocketAddr::V4(_)) => HAS_IPV4,
            Some(SocketAddr::V6(_)) => HAS_IPV6,
        };
        let session = if self.session.is_empty() { 0 } else { HAS_SESSION };
        let stream = if self.stream.is_empty() { 0 } else { IS_STREAM };
        let chunked = if self.is_chunked { IS_CHUNKED } else { 0 };
        out.push(address | session | stream | chunked);
        out.extend_from_slice(&self.requests.to_be_bytes());
        out.extend_from_slice(&self.remaining_ms.to_be_bytes());
        if let Some(client) = self.client {
            match client.ip() {
                IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
                IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
            }
            out.extend_from_slice(&client.port().to_be_bytes());
        }
        if session != 0 {
            debug_assert!(self.session.len() <= SESSION_MAX);
            out.push(self.session.len() as u8);
            out.extend_from_slice(&self.session);
        }
        if stream != 0 {
            debug_assert!(self.stream.len() <= STREAM_MAX);
            out.extend_from_slice(&(self.stream.len() as u16).to_be_bytes());
            out.extend_from_slice(&self.stream);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, MessageError> {
        let bits = reader.u8()?;
        let (requests, remaining_ms) = (reader.u32()?, reader.u32()?);
        let ip = match bits & (HAS_IPV4 | HAS_IPV6) {
            0 => None,
            HAS_IPV4 => Some(IpAddr::from(Ipv4Addr::from(reader.array::<4>()?))),
            HAS_IPV6 => Some(IpAddr::from(Ipv6Addr::from(reader.array::<16>()?))),
            _ => return Err(MessageError::Value),
        };
        let client = ip.map(|ip| Ok(SocketAddr::new(ip, reader.u16()?))).transpose()?;
        let mut session = Vec::new();
        if bits & HAS_SESSION != 0 {
            let len = usize::from(reader.u8()?);
            if len == 0 || len > SESSION_MAX {
                return Err(MessageError::Value);
            }
            session.extend_from_slice(reader.bytes(len)?);
        }
        let mut stream = Vec::new();
        if bits & IS_STREAM != 0 {
            let len = usize::from(reader.u16()?);
            if len == 0 || len > STREAM_MAX {
                return Err(MessageError::Value);
            }
            stream.extend_from_slice(reader.bytes(len)?);
        }
        let is_chunked = bits & IS_CHUNKED != 0;
        let known = HAS_IPV4 | HAS_IPV6 | HAS_SESSION | IS_STREAM | IS_CHUNKED;
        if bits & !known != 0 || is_chunked && stream.is_empty() {
            return Err(MessageError::Value);
        }
        Ok(Self { requests, remaining_ms, client, session, stream, is_chunked })
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let most = text.len().min(TEXT_MAX);
    let end = (0..=most).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let text = &text[..end];
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The rest of a message.
struct Reader<'m>(&'m [u8]);

impl<'m> Reader<'m> {
    fn bytes(&mut self, len: usize) -> Result<&'m [u8], MessageError> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(MessageError::Length)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let bytes = self.bytes(N)?;
        bytes.try_into().map_err(|_| MessageError::Length)
    }

    fn u8(&mut self) -> Result<u8, MessageError> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_be_bytes)
    }

    fn text(&mut self) -> Result<String, MessageError> {
        let len = usize::from(self.u16()?);
        if len > TEXT_MAX {
            return Err(MessageError::Value);
        }
        let text = std::str::from_utf8(self.bytes(len)?).map_err(|_| MessageError::Value)?;
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<Message> {
        let connection = |client: &str, session: usize| IdleConnection {
            requests: 7,
            remaining_ms: 75_000,
            client: client.parse().ok(),
            session: vec![5; session],
            stream: Vec::new(),
            is_chunked: false,
        };
        let stream = |len: usize| {
            let mut one = connection("192.0.2.7:80", SESSION_MAX);
            one.stream = vec![b's'; len];
            one.is_chunked = len == 1;
            one
        };
        vec![
            Message::Begin { listeners: 3 },
            Message::Listener {
                role: Role::Admin,
                index: 2,
                configured: "unix:/run/pollux".into(),
            },
            Message::Ready,
            Message::Failed { reason: "there is no such file: \u{e4}".into() },
            Message::Channel,
            Message::Hub,
            Message::Confirm,
            Message::Connections(vec![
                connection("", 0),
                connection("192.0.2.7:80", 0),
                connection("[2001:db8::1]:443", SESSION_MAX),
            ]),
            Message::Connections(vec![connection("[::1]:1", SESSION_MAX); CONNECTIONS_MAX]),
            Message::Connections(vec![stream(1), connection("", 0), stream(STREAM_MAX)]),
            Message::Accepted { connections: 253 },
        ]
    }

    #[test]
    fn each_message_comes_back_as_it_was() {
        for message in one_of_each() {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_MAX, "{message:?}: {} bytes", bytes.len());
            assert_eq!(Message::decode(&bytes).as_ref(), Ok(&message));
            if let Message::Connections(connections) = &message {
                let sum: usize = connections.iter().map(IdleConnection::encoded_len).sum();
                assert_eq!(sum + MESSAGE_HEAD, bytes.len());
            }
        }
    }

    #[test]
    fn what_is_cut_or_longer_is_no_message() {
        for message in one_of_each() {
            let mut bytes = message.encode();
            for len in 0..bytes.len() {
                assert!(Message::decode(&bytes[..len]).is_err(), "{message:?} of {len} bytes");
            }
            bytes.push(0);
            assert_eq!(Message::decode(&bytes), Err(MessageError::Length));
        }
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        let ready = Message::Ready.encode();
        let with = |at: usize, value: u8| {
            let mut bytes = ready.clone();
            bytes[at] = value;
            Message::decode(&bytes)
        };
        assert_eq!(with(0, b'G'), Err(MessageError::Foreign));
        assert_eq!(with(4, 9), Err(MessageError::Version(0x900 | VERSION)));
        assert_eq!(with(6, 99), Err(MessageError::Kind(99)));
        assert_eq!(with(6, CONNECTIONS), Err(MessageError::Length));
        let header = &ready[..6];
        let decode = |rest: &[u8]| Message::decode(&[header, rest].concat());
        for wrong in [
            &[CONNECTIONS, 0][..],
            &[CONNECTIONS, 254],
            &[LISTENER, 3, 0, 0, 0, 0],
            &[FAILED, 0, 1, 0xff],
            &[FAILED, 0xff, 0xff],
            &[CONNECTIONS, 1, HAS_IPV4 | HAS_IPV6, 0, 0, 0, 0, 0, 0, 0, 0],
            &[CONNECTIONS, 1, HAS_SESSION, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[CONNECTIONS, 1, IS_STREAM, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[CONNECTIONS, 1, IS_CHUNKED, 0, 0, 0, 0, 0, 0, 0, 0],
            &[CONNECTIONS, 1, 1 << 5, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert_eq!(decode(wrong), Err(MessageError::Value), "{wrong:?}");
        }
        assert_eq!(Message::decode(&vec![0; MESSAGE_MAX + 1]), Err(MessageError::Length));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let reason = "\u{e4}".repeat(TEXT_MAX);
        let bytes = Message::Failed { reason: reason.clone() }.encode();
        let cut = Message::Failed { reason: reason[..TEXT_MAX].into() };
        assert_eq!(Message::decode(&bytes), Ok(cut));
    }
}
