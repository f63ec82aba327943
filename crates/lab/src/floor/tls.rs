//! The floor over TLS 1.3: epoll, and the least cryptography that a TLS server needs.
//!
//! rustls performs the handshake and then exports its keys. After that, a request costs one wait, one recv,
//! one record decrypted in place, one record encrypted in place and one send. The AEAD is that of the
//! server's provider. Each connection stores its expanded keys, so that no key is derived again: the work
//! that a server does to hold idle connections in less memory is its own cost.

use super::{BUFFER, each_ready::each_ready};
use anyhow::Context as _;
use pollux_sys as sys;
use pollux_tls::{MinVersion, ServerSettings, self_signed};
use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use rustls::{ConnectionTrafficSecrets, ServerConfig, ServerConnection};
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// Type, version and length (RFC 8446 §5.1).
const HEADER: usize = 5;
/// The longest content of a record.
const CONTENT_MAX: usize = 1 << 14;
/// The longest record with its header; also the longest incomplete record that is stored.
const RECORD_MAX: usize = HEADER + CONTENT_MAX + 256;
const TAG: usize = 16;
const DATA: u8 = 23;

/// Serves `reply` over TLS 1.3 with one epoll loop at a port of 127.0.0.1 until the process is ended, with
/// a self-signed certificate. `announce` receives the address.
///
/// # Errors
/// Those of the system calls on the set and on the listener, of rustls about its configuration, and of `announce`.
pub fn serve_tls(
    reply: &[u8],
    announce: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<Infallible> {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let settings = ServerSettings {
        min_version: MinVersion::Tls13,
        alpn: vec![b"http/1.1".to_vec()],
        ..ServerSettings::default()
    };
    let config = settings.build(Arc::new(self_signed(names)?))?;

    let mut buffers = Buffers { input: vec![0; RECORD_MAX + BUFFER], output: Vec::new() };
    each_ready(
        Vec::new(),
        announce,
        |socket| Connection::new(socket, &config),
        |_, place| {
            let is_open = place.as_mut().and_then(|it| it.on_input(&mut buffers, reply)).is_some();
            if !is_open {
                *place = None;
            }
            Ok(())
        },
    )
}

/// The buffers of the loop, which all connections share.
struct Buffers {
    input: Vec<u8>,
    output: Vec<u8>,
}

struct Connection {
    socket: OwnedFd,
    state: State,
    /// The start of a record whose end has not arrived.
    partial: Vec<u8>,
}

enum State {
    Handshake(Box<ServerConnection>),
    /// The keys for receiving and for sending.
    Open(Box<[Direction; 2]>),
    /// The connection will be closed.
    Over,
}

impl Connection {
    fn new(socket: OwnedFd, config: &Arc<ServerConfig>) -> anyhow::Result<Self> {
        let connection = ServerConnection::new(Arc::clone(config)).context("rustls")?;
        let state = State::Handshake(Box::new(connection));
        Ok(Self { socket, state, partial: Vec::new() })
    }

    /// Receives once and answers once. Returns `None` when the connection is to be closed.
    fn on_input(&mut self, buffers: &mut Buffers, reply: &[u8]) -> Option<()> {
        let Buffers { input, output } = buffers;
        let partial_len = self.partial.len();
        input[..partial_len].copy_from_slice(&self.partial);
        let received = match sys::recv(self.socket.as_fd(), &mut input[partial_len..]) {
            Ok(0) => return None,
            Ok(received) => received,
            Err(error) => return (error.kind() == io::ErrorKind::WouldBlock).then_some(()),
        };
        self.partial.clear();
        let mut rest = &mut input[..partial_len + received];
        let mut has_data = false;
        while let Some(len) = record_len(rest) {
            if len > RECORD_MAX {
                return None;
            }
            if rest.len() < len {
                break;
            }
            let (record, behind) = rest.split_at_mut(len);
            rest = behind;
            match &mut self.state {
                State::Handshake(_) => self.shake_hands(record)?,
                State::Open(keys) => has_data |= keys[0].open(record)?,
                State::Over => return None,
            }
        }
        self.partial.extend_from_slice(rest);
        if let (State::Open(keys), true) = (&mut self.state, has_data) {
            output.clear();
            for content in reply.chunks(CONTENT_MAX) {
                keys[1].seal(content, output)?;
            }
            send(self.socket.as_fd(), output)?;
        }
        Some(())
    }

    /// Passes one record to rustls, so that rustls never decrypts a record that follows the handshake.
    fn shake_hands(&mut self, mut record: &[u8]) -> Option<()> {
        let State::Handshake(connection) = &mut self.state else { return None };
        while !record.is_empty() {
            connection.read_tls(&mut record).ok()?;
        }
        connection.process_new_packets().ok()?;
        let mut output = Vec::new();
        while connection.wants_write() {
            connection.write_tls(&mut output).ok()?;
        }
        if !output.is_empty() {
            send(self.socket.as_fd(), &output)?;
        }
        if !connection.is_handshaking() {
            let State::Handshake(connection) = std::mem::replace(&mut self.state, State::Over)
            else {
                return None;
            };
            let secrets = connection.dangerous_extract_secrets().ok()?;
            let [receive, send] = [secrets.rx, secrets.tx].map(Direction::new);
            self.state = State::Open(Box::new([receive?, send?]));
        }
        Some(())
    }
}

/// Returns the length of the first record, if its header is complete.
fn record_len(input: &[u8]) -> Option<usize> {
    let &[_, _, _, high, low] = input.first_chunk::<HEADER>()?;
    Some(HEADER + usize::from(u16::from_be_bytes([high, low])))
}

/// Sends `bytes` in one call. Returns `None` if the socket does not take all of them: a client that does
/// not read its response is disconnected.
fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Option<()> {
    sys::send(socket, bytes, false).is_ok_and(|sent| sent == bytes.len()).then_some(())
}

/// The key, the IV and the number of the next record of one direction.
struct Direction {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

impl Direction {
    fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Option<Self> {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        let (algorithm, key, iv) = match secrets {
            Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return None,
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).ok()?);
        Some(Self { key, iv: iv.as_ref().try_into().ok()?, sequence })
    }

    /// Returns the IV combined with the sequence number (RFC 8446 §5.3).
    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, of_sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= of_sequence;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Decrypts a record in place. Returns whether it contains data; `None` if it is not application data,
    /// for example the close_notify that ends a connection.
    fn open(&mut self, record: &mut [u8]) -> Option<bool> {
        let (header, body) = record.split_first_chunk_mut::<HEADER>()?;
        let header = *header;
        let nonce = self.next_nonce();
        let inner = self.key.open_in_place(nonce, Aad::from(header), body).ok()?;
        match inner.iter().rposition(|byte| *byte != 0).map(|end| (inner[end], end)) {
            Some((DATA, len)) => Some(len > 0),
            _ => None,
        }
    }

    /// Encrypts `content` as a record and appends it to `output`.
    fn seal(&mut self, content: &[u8], output: &mut Vec<u8>) -> Option<()> {
        let [high, low] = ((content.len() + 1 + TAG) as u16).to_be_bytes();
        let header = [DATA, 3, 3, high, low];
        output.extend_from_slice(&header);
        let start = output.len();
        output.extend_from_slice(content);
        output.push(DATA);
        let nonce = self.next_nonce();
        let body = &mut output[start..];
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(header), body).ok()?;
        output.extend_from_slice(tag.as_ref());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::tests::connections;
    use pollux_tls::ClientSettings;
    use std::io::{Read as _, Write as _};

    #[test]
    fn every_request_over_tls_has_the_same_answer_on_a_connection_that_stays() {
        // The reply is longer than one record.
        let reply: Vec<u8> = (0..40_000_u32).map(|at| (at % 251) as u8).collect();
        let served = reply.clone();
        let streams = connections::<2>(move |sender| {
            serve_tls(&served, |address| Ok(sender.send(address)?)).unwrap();
        });
        let config = ClientSettings::trusting_anybody(&[b"http/1.1"]).build().unwrap();
        let mut sessions = streams.map(|stream| {
            let name = "localhost".try_into().unwrap();
            let tls = rustls::ClientConnection::new(Arc::clone(&config), name).unwrap();
            rustls::StreamOwned::new(tls, stream)
        });
        for _ in 0..3 {
            for stream in &mut sessions {
                stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
                let mut answer = vec![0; reply.len()];
                stream.read_exact(&mut answer).unwrap();
                assert!(answer == reply);
            }
        }
        // close_notify ends a connection, and so does a damaged record.
        let [mut closing, mut damaged] = sessions;
        closing.conn.send_close_notify();
        closing.conn.complete_io(&mut closing.sock).unwrap();
        assert_eq!(closing.sock.read(&mut [0; 1]).unwrap(), 0);
        damaged.sock.write_all(&[DATA, 3, 3, 0, 20, 0, 0, 0, 0, 0]).unwrap();
        damaged.sock.write_all(&[0; 15]).unwrap();
        assert_eq!(damaged.sock.read(&mut [0; 1]).unwrap(), 0);
    }
}
