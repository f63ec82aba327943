//! The common parts of the tests of handshakes: a certificate, configurations, and rustls' own client.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use pollux_tls::{Handshake, HandshakeResult, Progress, prepare_client, prepare_server, provider};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, RootCertStore, ServerConfig,
    crypto::CryptoProvider,
    pki_types::{PrivateKeyDer, ServerName},
    version::{TLS12, TLS13},
};
use std::{
    io::{Cursor, Read as _},
    sync::Arc,
};

pub const SUITES: [CipherSuite; 6] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];

fn only(suite: CipherSuite) -> Arc<CryptoProvider> {
    let mut provider = provider();
    provider.cipher_suites.retain(|offered| offered.suite() == suite);
    Arc::new(provider)
}

/// A server's and a client's configuration that agree on one suite.
pub fn configs(suite: CipherSuite) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let is_tls13 = format!("{suite:?}").starts_with("TLS13");
    let versions = if is_tls13 { [&TLS13] } else { [&TLS12] };
    let certified = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let mut server = ServerConfig::builder_with_provider(only(suite))
        .with_protocol_versions(&versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    prepare_server(&mut server, false);
    server.ticketer = rustls::crypto::ring::Ticketer::new().unwrap();
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut client = ClientConfig::builder_with_provider(only(suite))
        .with_protocol_versions(&versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    prepare_client(&mut client, false);
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    (Arc::new(server), Arc::new(client))
}

pub fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

/// rustls' own client, which sends and receives through vectors.
pub struct Peer(pub ClientConnection);

impl Peer {
    pub fn new(config: Arc<ClientConfig>) -> Self {
        Self(ClientConnection::new(config, name()).unwrap())
    }

    /// The bytes that it wants to send now.
    pub fn output(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        while self.0.wants_write() {
            self.0.write_tls(&mut out).unwrap();
        }
        out
    }

    /// Passes our bytes to it; returns the application data in them.
    pub fn input(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut rest = Cursor::new(bytes);
        let mut data = Vec::new();
        while (rest.position() as usize) < bytes.len() {
            self.0.read_tls(&mut rest).unwrap();
            self.0.process_new_packets().unwrap();
            let mut buffer = vec![0; 1 << 16];
            while let Ok(len) = self.0.reader().read(&mut buffer) {
                if len == 0 {
                    break;
                }
                data.extend_from_slice(&buffer[..len]);
            }
        }
        data
    }
}

/// Performs a handshake between our server and rustls' client, which sends `early` after its last
/// flight, in the same bytes.
pub fn shake_hands(
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    piece: usize,
) -> (HandshakeResult, Peer) {
    let mut peer = Peer::new(client);
    let mut handshake = Handshake::server(server).unwrap();
    for _ in 0..10 {
        let mut out = Vec::new();
        let mut progress = Progress::NeedsInput;
        let bytes = peer.output();
        for (index, chunk) in bytes.chunks(piece).enumerate() {
            if progress == Progress::Complete {
                // These bytes arrived after the handshake.
                let mut established = handshake.finish().unwrap();
                established.input.extend_from_slice(&bytes[index * piece..]);
                peer.input(&out);
                return (established, peer);
            }
            progress = handshake.advance(chunk, &mut out).unwrap();
        }
        peer.input(&out);
        if progress == Progress::Complete {
            return (handshake.finish().unwrap(), peer);
        }
    }
    panic!("the handshake does not end");
}
