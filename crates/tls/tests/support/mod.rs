//! The common parts of the tests of handshakes: a certificate, configurations, and rustls' own client and server.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

mod ends;
mod ours;
pub mod relay;

pub use ours::Ours;
pub use relay::{Relay, Secrets};

use pollux_tls::{
    Handshake, HandshakeResult, Progress, Role, prepare_client, prepare_server, provider,
};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig,
    ServerConnection,
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

/// rustls' own client or server, which sends and receives through vectors.
pub struct Peer(pub Connection);

impl Peer {
    pub fn new(config: Arc<ClientConfig>) -> Self {
        Self(ClientConnection::new(config, name()).unwrap().into())
    }

    pub fn server(config: Arc<ServerConfig>) -> Self {
        Self(ServerConnection::new(config).unwrap().into())
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

/// Performs a handshake between our server and rustls' client.
pub fn shake_hands(
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    piece: usize,
) -> (HandshakeResult, Peer) {
    let (result, peer, _) = shake_hands_as(Role::Server, server, client, piece);
    (result, peer)
}

/// Performs a handshake between our end, which has this role, and rustls' end. rustls' bytes come in pieces of
/// `piece` bytes. Also returns the server's random bytes.
pub fn shake_hands_as(
    role: Role,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    piece: usize,
) -> (HandshakeResult, Peer, Vec<u8>) {
    let (mut ours, mut peer) = match role {
        Role::Server => (Handshake::server(server).unwrap(), Peer::new(client)),
        Role::Client => (Handshake::client(client, name()).unwrap(), Peer::server(server)),
    };
    let (mut out, mut server_hello) = (Vec::new(), Vec::new());
    if role == Role::Client {
        ours.advance(&[], &mut out).unwrap();
    }
    for _ in 0..10 {
        peer.input(&out);
        out.clear();
        let bytes = peer.output();
        let mut progress = Progress::NeedsInput;
        let mut late: &[u8] = &[];
        for (index, chunk) in bytes.chunks(piece).enumerate() {
            progress = ours.advance(chunk, &mut out).unwrap();
            if progress == Progress::Complete {
                // The rest arrives after the handshake.
                late = bytes.get((index + 1).saturating_mul(piece)..).unwrap_or_default();
                break;
            }
        }
        if server_hello.is_empty() {
            server_hello.extend_from_slice(if role == Role::Server { &out } else { &bytes });
        }
        if progress == Progress::Complete {
            peer.input(&out);
            let mut result = ours.finish().unwrap();
            result.input.extend_from_slice(late);
            // It is behind the headers of record and message, and the version.
            return (result, peer, server_hello[5 + 4 + 2..][..32].to_vec());
        }
    }
    panic!("the handshake does not end");
}

/// As [`shake_hands_as`], with a [`Relay`] for the records that rustls sends after the handshake.
pub fn connect(
    role: Role,
    suite: CipherSuite,
    piece: usize,
    fragment: Option<usize>,
) -> (Ours, Peer, Relay) {
    let (mut server, mut client) = configs(suite);
    let secrets = Arc::new(Secrets::default());
    match role {
        Role::Server => {
            let config = Arc::make_mut(&mut client);
            config.key_log = secrets.clone();
            config.max_fragment_size = fragment;
        }
        Role::Client => {
            let config = Arc::make_mut(&mut server);
            config.key_log = secrets.clone();
            config.max_fragment_size = fragment;
        }
    }
    let (result, peer, server_random) = shake_hands_as(role, server, client, piece);
    assert!(result.input.is_empty(), "rustls sends nothing by itself before it has our last bytes");
    let relay = Relay::new(result.session.suite(), role, &secrets, &server_random);
    (Ours::new(result.session, result.input), peer, relay)
}
