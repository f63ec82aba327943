//! A TLS client that sends and receives as many bytes as the test chooses, and one that seals any
//! records that the test wants.

use pollux_testkit::http::PATIENCE;
use pollux_tls::ClientSettings;
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType, ExtractedSecrets,
    ProtocolVersion,
    crypto::cipher::{
        AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
        OutboundPlainMessage,
    },
    pki_types::ServerName,
};
use socket2::{Domain, Socket, Type};
use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Returns a client's configuration that trusts any certificate and does not resume sessions.
pub(super) fn config() -> Arc<ClientConfig> {
    ClientSettings::trusting_anybody(&[b"http/1.1"]).build().unwrap()
}

/// The way in which the server's half of a connection has ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// With close_notify.
    Closed,
    /// With an end of stream without close_notify.
    Truncated,
    /// With an alert, or with records that cannot be read.
    Failed(rustls::Error),
    Reset,
}

/// A client that sends and receives only in [`Peer::step`].
pub(super) struct Peer {
    socket: TcpStream,
    pub(super) tls: ClientConnection,
    output: Vec<u8>,
    /// The data that the server has sent, decrypted.
    pub(super) received: Vec<u8>,
    has_closed: bool,
    pub(super) end: Option<End>,
}

impl Peer {
    pub(super) fn connect(address: &str) -> Self {
        Self::with(address, &config(), "localhost", Ipv4Addr::LOCALHOST)
    }

    /// Opens a connection from an address of the loopback network.
    pub(super) fn with(
        address: &str,
        config: &Arc<ClientConfig>,
        name: &str,
        from: Ipv4Addr,
    ) -> Self {
        let socket = connect(address, from);
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        Self {
            socket,
            tls: ClientConnection::new(Arc::clone(config), name).unwrap(),
            output: Vec::new(),
            received: Vec::new(),
            has_closed: false,
            end: None,
        }
    }

    pub(super) fn send(&mut self, plaintext: &[u8]) {
        self.tls.writer().write_all(plaintext).unwrap();
    }

    pub(super) fn get(&mut self, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    }

    /// Sends at most `write` bytes and receives at most `read` bytes. Returns whether any were
    /// transferred.
    pub(super) fn step(&mut self, write: usize, read: usize) -> bool {
        if self.end.is_some() {
            return false;
        }
        let mut has_progressed = false;
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.output).unwrap();
        }
        let len = self.output.len().min(write);
        if len > 0 {
            match self.socket.write(&self.output[..len]) {
                Ok(written) => {
                    self.output.drain(..written);
                    has_progressed = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The data that the server has sent before can still be read.
                Err(_) => self.output.clear(),
            }
        }
        let mut buffer = [0; 16 << 10];
        let room = read.min(buffer.len());
        match self.socket.read(&mut buffer[..room]) {
            Ok(0) if room > 0 => {
                self.end = Some(if self.has_closed { End::Closed } else { End::Truncated });
            }
            Ok(len) => {
                has_progressed |= len > 0;
                self.take(&buffer[..len]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.end = Some(End::Reset),
        }
        has_progressed
    }

    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.tls.read_tls(&mut bytes).unwrap();
            match self.tls.process_new_packets() {
                Ok(state) => {
                    self.has_closed |= state.peer_has_closed();
                    let start = self.received.len();
                    self.received.resize(start + state.plaintext_bytes_to_read(), 0);
                    self.tls.reader().read_exact(&mut self.received[start..]).unwrap();
                }
                Err(error) => {
                    self.end = Some(End::Failed(error));
                    return;
                }
            }
        }
    }

    /// Steps in large pieces until `is_enough` returns true, or the server ends the connection.
    pub(super) fn run(&mut self, is_enough: impl Fn(&Self) -> bool) {
        drive(std::slice::from_mut(self), |_| (1 << 20, 1 << 20), is_enough);
    }

    /// Returns the content of the response, once it is complete.
    pub(super) fn content(&self) -> Option<&[u8]> {
        let head_len = self.received.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&self.received[..head_len]);
        let len: usize = head.lines().find_map(|line| {
            line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
        })?;
        let content = &self.received[head_len..];
        assert!(content.len() <= len, "more content than was announced");
        (content.len() == len).then_some(content)
    }

    /// Sends a request and returns the content of its response.
    pub(super) fn fetch(&mut self, path: &str) -> Vec<u8> {
        self.get(path);
        self.run(|peer| peer.content().is_some());
        let content = self.content().unwrap_or_else(|| panic!("{path}: {:?}", self.end)).to_vec();
        self.received.clear();
        content
    }

    /// Shuts down the sending half of the connection, without close_notify.
    pub(super) fn cut(&self) {
        self.socket.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Continues with records that the test makes. A response must have been received, so that no
    /// record is on its way.
    pub(super) fn into_forger(self) -> Forger {
        let suite = self.tls.negotiated_cipher_suite().unwrap();
        let aead = suite.tls13().unwrap().aead_alg;
        let ExtractedSecrets { tx, rx } = self.tls.dangerous_extract_secrets().unwrap();
        let ((send_sequence, tx), (receive_sequence, rx)) = (tx, rx);
        let ((key, iv), (receive_key, receive_iv)) = (key_and_iv(tx), key_and_iv(rx));
        self.socket.set_nonblocking(false).unwrap();
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Forger {
            socket: self.socket,
            encrypter: aead.encrypter(key, iv),
            send_sequence,
            decrypter: aead.decrypter(receive_key, receive_iv),
            receive_sequence,
        }
    }
}

fn key_and_iv(secrets: ConnectionTrafficSecrets) -> (AeadKey, Iv) {
    use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
    match secrets {
        Aes128Gcm { key, iv } | Aes256Gcm { key, iv } | Chacha20Poly1305 { key, iv } => (key, iv),
        _ => panic!("a suite of another kind"),
    }
}

/// Opens a connection from this address, so that no address has more handshakes than the server
/// allows.
pub(super) fn connect(address: &str, from: Ipv4Addr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    let address: SocketAddr = address.parse().unwrap();
    socket.connect(&address.into()).unwrap();
    socket.into()
}

/// Lets all peers step in turn until each has enough or has reached the server's end. `piece` returns
/// the maximum number of bytes that a peer sends and receives in a step.
pub(super) fn drive(
    peers: &mut [Peer],
    mut piece: impl FnMut(usize) -> (usize, usize),
    is_enough: impl Fn(&Peer) -> bool,
) {
    let mut progressed_at = Instant::now();
    loop {
        let (mut has_progressed, mut is_over) = (false, true);
        for (index, peer) in peers.iter_mut().enumerate() {
            if peer.end.is_some() || is_enough(peer) {
                continue;
            }
            is_over = false;
            let (write, read) = piece(index);
            has_progressed |= peer.step(write, read);
        }
        if is_over {
            return;
        }
        if has_progressed {
            progressed_at = Instant::now();
        } else {
            assert!(progressed_at.elapsed() < PATIENCE, "nothing moves");
            // Leaves the CPU to the server, whose next bytes one of many sockets will receive.
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A client that has completed its handshake and seals records that no honest client sends.
pub(super) struct Forger {
    pub(super) socket: TcpStream,
    encrypter: Box<dyn MessageEncrypter>,
    send_sequence: u64,
    decrypter: Box<dyn MessageDecrypter>,
    receive_sequence: u64,
}

impl Forger {
    pub(super) fn seal(&mut self, kind: ContentType, content: &[u8]) -> Vec<u8> {
        let message = OutboundPlainMessage {
            typ: kind,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(content),
        };
        let sealed = self.encrypter.encrypt(message, self.send_sequence).unwrap();
        self.send_sequence += 1;
        sealed.encode()
    }

    pub(super) fn send(&mut self, kind: ContentType, content: &[u8]) {
        self.seal_and_send(kind, content).unwrap();
    }

    /// Does the same as `send`, where the server may have closed the connection.
    pub(super) fn seal_and_send(&mut self, kind: ContentType, content: &[u8]) -> io::Result<()> {
        let record = self.seal(kind, content);
        self.socket.write_all(&record)
    }

    /// Reads to the end of the connection. Returns the received data, and the level and the
    /// description of the last alert.
    pub(super) fn read_to_end(&mut self) -> (Vec<u8>, Option<(u8, u8)>) {
        let mut bytes = Vec::new();
        if let Err(error) = self.socket.read_to_end(&mut bytes) {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "the server does not close");
        }
        let (mut data, mut alert) = (Vec::new(), None);
        let mut rest = bytes.as_mut_slice();
        while rest.len() > 5 {
            let len = usize::from(u16::from_be_bytes([rest[3], rest[4]]));
            let Some((record, behind)) = rest.split_at_mut_checked(5 + len) else { break };
            rest = behind;
            let opaque = InboundOpaqueMessage::new(
                ContentType::ApplicationData,
                ProtocolVersion::TLSv1_2,
                &mut record[5..],
            );
            let plain = self.decrypter.decrypt(opaque, self.receive_sequence).unwrap();
            self.receive_sequence += 1;
            match plain.typ {
                ContentType::Alert => alert = Some((plain.payload[0], plain.payload[1])),
                ContentType::ApplicationData => data.extend_from_slice(plain.payload),
                _ => {}
            }
        }
        (data, alert)
    }
}
