//! The other end: rustls' own client or server, whose encrypted messages can be altered.

use crate::ends::{Opener, Sealer};
use pollux_tls::{
    Certificates, ClientAuth, ClientConfig, ClientSettings, Handshake, Progress, ServerName,
    ServerSettings, Suite, provider, self_signed, self_signed_pem,
};
use rustls::{
    CipherSuite, ClientConnection, Connection, KeyLog, RootCertStore, ServerConfig,
    ServerConnection, SupportedProtocolVersion,
    client::Resumption,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
    version::{TLS12, TLS13},
};
use std::{
    cell::RefCell,
    collections::VecDeque,
    fs,
    io::{Cursor, Read as _, Write as _},
    sync::{Arc, OnceLock},
};

const APPLICATION_DATA: u8 = 23;

/// The suites of each version, by an index.
const SUITES: [[CipherSuite; 3]; 2] = [
    [
        CipherSuite::TLS13_AES_128_GCM_SHA256,
        CipherSuite::TLS13_AES_256_GCM_SHA384,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    ],
    [
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ],
];

/// What a handshake is like.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) we_are_client: bool,
    pub(super) is_tls12: bool,
    /// Below 3.
    pub(super) suite: usize,
    /// The server requests a certificate. rustls' client sends one, ours has none.
    pub(super) wants_certificate: bool,
    /// rustls' client offers a session of an earlier handshake.
    pub(super) resumes: bool,
}

impl Kind {
    pub(super) fn new(flags: u8) -> Self {
        Self {
            we_are_client: flags & 1 != 0,
            is_tls12: flags & 2 != 0,
            suite: usize::from(flags >> 2) % 3,
            wants_certificate: flags & 16 != 0,
            resumes: flags & 32 != 0,
        }
    }

    fn index(self) -> usize {
        (usize::from(self.is_tls12) * 3 + self.suite) * 2 + usize::from(self.wants_certificate)
    }
}

/// All configurations, which are made once.
struct Configs {
    our_servers: [Arc<ServerConfig>; 2],
    our_client: Arc<ClientConfig>,
    servers: Vec<Arc<ServerConfig>>,
    clients: Vec<Arc<ClientConfig>>,
}

fn configs() -> &'static Configs {
    static CONFIGS: OnceLock<Configs> = OnceLock::new();
    CONFIGS.get_or_init(Configs::new)
}

impl Configs {
    fn new() -> Self {
        let names = || vec!["localhost".to_owned()];
        let certificates = Arc::new(self_signed(names()).expect("a certificate"));
        let (pem, key) = self_signed_pem(names()).expect("a certificate");
        let authority =
            std::env::temp_dir().join(format!("pollux-fuzz-{}.pem", std::process::id()));
        fs::write(&authority, &pem).expect("a temporary file");
        let our_server = |client_auth| {
            let settings = ServerSettings { client_auth, ..ServerSettings::default() };
            settings.build(Arc::clone(&certificates)).expect("our server's settings")
        };
        let our_servers =
            [our_server(ClientAuth::None), our_server(ClientAuth::Optional(authority.clone()))];
        let _ = fs::remove_file(authority);
        let our_client =
            ClientSettings::trusting_anybody(&[]).build().expect("our client's settings");
        let pair = || {
            let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).expect("our PEM");
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("our PEM");
            (vec![certificate], key)
        };
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for (version, suites) in [&TLS13, &TLS12].into_iter().zip(SUITES) {
            for suite in suites {
                for wants_certificate in [false, true] {
                    servers.push(server(
                        version,
                        suite,
                        wants_certificate.then(|| pair().0),
                        pair(),
                    ));
                    clients.push(client(
                        version,
                        suite,
                        wants_certificate.then(pair),
                        &certificates,
                    ));
                }
            }
        }
        Self { our_servers, our_client, servers, clients }
    }
}

fn only(suite: CipherSuite) -> Arc<CryptoProvider> {
    let mut provider = provider();
    provider.cipher_suites.retain(|offered| offered.suite() == suite);
    Arc::new(provider)
}

type Chain = Vec<CertificateDer<'static>>;

fn server(
    version: &'static SupportedProtocolVersion,
    suite: CipherSuite,
    authority: Option<Chain>,
    (chain, key): (Chain, PrivateKeyDer<'static>),
) -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(only(suite));
    let builder = builder.with_protocol_versions(&[version]).expect("a suite of this version");
    let builder = match authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let roots = Arc::new(roots(authority));
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, only(suite));
            builder.with_client_cert_verifier(
                verifier.allow_unauthenticated().build().expect("an authority"),
            )
        }
    };
    let mut config = builder.with_single_cert(chain, key).expect("our certificate");
    config.key_log = Arc::new(HandshakeSecrets);
    Arc::new(config)
}

fn client(
    version: &'static SupportedProtocolVersion,
    suite: CipherSuite,
    pair: Option<(Chain, PrivateKeyDer<'static>)>,
    certificates: &Certificates,
) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(only(suite));
    let builder = builder.with_protocol_versions(&[version]).expect("a suite of this version");
    let builder = builder.with_root_certificates(roots(vec![certificates.default_certificate()]));
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).expect("our certificate"),
    };
    config.key_log = Arc::new(HandshakeSecrets);
    // Else an input would depend on those before it.
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

fn roots(chain: Chain) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    chain.into_iter().for_each(|certificate| roots.add(certificate).expect("our certificate"));
    roots
}

fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").expect("a name")
}

/// Our end of a handshake of this kind.
pub(super) fn ours(kind: Kind) -> Handshake {
    let configs = configs();
    let ours = match kind.we_are_client {
        true => Handshake::client(Arc::clone(&configs.our_client), name()),
        false => {
            Handshake::server(Arc::clone(&configs.our_servers[usize::from(kind.wants_certificate)]))
        }
    };
    ours.expect("our own settings")
}

thread_local! {
    /// The secret with which the peer of this thread encrypts its handshake.
    static SECRET: RefCell<[Option<Vec<u8>>; 2]> = const { RefCell::new([None, None]) };
}

/// Takes the secrets of encrypted handshakes out of rustls.
#[derive(Debug)]
struct HandshakeSecrets;

impl KeyLog for HandshakeSecrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let index = match label {
            "CLIENT_HANDSHAKE_TRAFFIC_SECRET" => 0,
            "SERVER_HANDSHAKE_TRAFFIC_SECRET" => 1,
            _ => return,
        };
        SECRET.with_borrow_mut(|secrets| secrets[index] = Some(secret.to_vec()));
    }
}

/// A record that is still to be sent.
pub(super) struct Item {
    pub(super) content: Content,
    pub(super) origin: Origin,
}

/// Where a record comes from.
#[derive(Clone)]
pub(super) enum Origin {
    /// The peer has made it, with this content.
    Peer(Content),
    /// It repeats a record of the peer's, which had this content.
    Copy(Content),
    /// The input has made it.
    Input,
    /// It is bytes of the input, and perhaps no record.
    Junk,
}

impl Item {
    /// Whether no handshake may succeed that contains it.
    pub(super) fn is_forged(&self) -> bool {
        match &self.origin {
            Origin::Peer(original) => {
                original.is_message() && original.body() != self.content.body()
            }
            Origin::Copy(_) | Origin::Input => self.content.is_message(),
            Origin::Junk => false,
        }
    }
}

#[derive(Clone)]
pub(super) enum Content {
    /// A record as it is sent.
    Raw(Vec<u8>),
    /// It is encrypted when it is sent.
    Sealed { kind: u8, content: Vec<u8>, padding: usize },
}

impl Content {
    /// Whether a handshake cannot do without it as it is: a message other than a HelloRequest, which is ignored, as
    /// rustls ignores records without content.
    pub(super) fn is_message(&self) -> bool {
        const HANDSHAKE: u8 = 22;
        let kind = match self {
            Self::Raw(record) => record.first().copied(),
            Self::Sealed { kind, .. } => Some(*kind),
        };
        kind == Some(HANDSHAKE) && self.body().first().is_some_and(|&kind| kind != 0)
    }

    fn body(&self) -> &[u8] {
        match self {
            Self::Raw(record) => record.get(5..).unwrap_or_default(),
            Self::Sealed { content, .. } => content,
        }
    }
}

pub(super) struct Peer {
    connection: Connection,
    kind: Kind,
    /// What it has sent, without what was delivered.
    pub(super) queue: VecDeque<Item>,
    keys: Option<(Opener, Sealer)>,
    is_over: bool,
}

impl Peer {
    pub(super) fn new(kind: Kind) -> Self {
        let configs = configs();
        let connection: Connection = if kind.we_are_client {
            let config = Arc::clone(&configs.servers[kind.index()]);
            ServerConnection::new(config).expect("its own settings").into()
        } else {
            let mut config = Arc::clone(&configs.clients[kind.index()]);
            if kind.resumes {
                Arc::make_mut(&mut config).resumption = Resumption::in_memory_sessions(4);
                Self::of(client_of(&config), kind).completes();
            }
            client_of(&config)
        };
        Self::of(connection, kind)
    }

    fn of(connection: Connection, kind: Kind) -> Self {
        SECRET.take();
        Self { connection, kind, queue: VecDeque::new(), keys: None, is_over: false }
    }

    /// Performs an honest handshake, after which a client has tickets.
    fn completes(mut self) {
        let mut ours = ours(self.kind);
        for _ in 0..4 {
            let (mut sent, mut out) = (Vec::new(), Vec::new());
            while self.connection.wants_write() {
                self.connection.write_tls(&mut sent).expect("a vector takes all");
            }
            let progress = ours.advance(&sent, &mut out).expect("an honest handshake");
            self.take(&out);
            if progress == Progress::Complete {
                break;
            }
        }
        assert!(!self.connection.is_handshaking() && !self.is_over);
    }

    /// Takes bytes of ours.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        let mut rest = Cursor::new(bytes);
        while !self.is_over && (rest.position() as usize) < bytes.len() {
            let taken = self.connection.read_tls(&mut rest);
            self.is_over =
                !taken.is_ok_and(|len| len > 0) || self.connection.process_new_packets().is_err();
        }
    }

    /// Moves what it wants to send into the queue.
    pub(super) fn put(&mut self) {
        let mut sent = Vec::new();
        while !self.is_over && self.connection.wants_write() {
            self.connection.write_tls(&mut sent).expect("a vector takes all");
        }
        let mut rest = sent.as_slice();
        while let &[kind, _, _, high, low, ..] = rest {
            let len = 5 + usize::from(u16::from_be_bytes([high, low]));
            let content = match kind {
                APPLICATION_DATA => {
                    let (opener, _) = self.keys();
                    let (kind, content, _) = opener.open(&rest[..len]);
                    Content::Sealed { kind, content, padding: 0 }
                }
                _ => Content::Raw(rest[..len].to_vec()),
            };
            self.queue.push_back(Item { origin: Origin::Peer(content.clone()), content });
            rest = &rest[len..];
        }
    }

    /// Whether it has begun to encrypt its handshake.
    pub(super) fn can_seal(&self) -> bool {
        self.keys.is_some()
    }

    fn keys(&mut self) -> &mut (Opener, Sealer) {
        let kind = self.kind;
        self.keys.get_or_insert_with(|| {
            let suite = Suite::tls13(SUITES[0][kind.suite]).expect("a suite of TLS 1.3");
            let secret =
                SECRET.with_borrow(|secrets| secrets[usize::from(kind.we_are_client)].clone());
            let secret = secret.expect("the secret of an encrypted handshake");
            (Opener::new(suite, secret.clone()), Sealer::new(suite, secret))
        })
    }

    /// The bytes of a record.
    pub(super) fn encode(&mut self, content: Content) -> Vec<u8> {
        match content {
            Content::Raw(record) => record,
            Content::Sealed { kind, content, padding } => {
                self.keys().1.seal(kind, &content, padding)
            }
        }
    }

    /// Whether it takes part in a handshake still, or has failed.
    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking() || self.is_over
    }

    /// The data that has arrived.
    pub(super) fn data(&mut self) -> Vec<u8> {
        let mut data = Vec::new();
        let _ = self.connection.reader().read_to_end(&mut data);
        data
    }

    /// The records with this data.
    pub(super) fn send(&mut self, data: &[u8]) -> Vec<u8> {
        let mut sent = Vec::new();
        self.connection.writer().write_all(data).expect("room for a little data");
        while self.connection.wants_write() {
            self.connection.write_tls(&mut sent).expect("a vector takes all");
        }
        sent
    }
}

fn client_of(config: &Arc<ClientConfig>) -> Connection {
    ClientConnection::new(Arc::clone(config), name()).expect("its own settings").into()
}
