//! TLS peers for the tests: certificates, a client, and an origin that uses rustls alone and behaves
//! as a test chooses.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig, ServerConnection,
    StreamOwned, SupportedProtocolVersion,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
};
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
};
use tempfile::TempDir;

/// An authority, and the directory with its files and those of its certificates.
pub(super) struct Authority {
    pub(super) directory: TempDir,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// A certificate with its key.
pub(super) struct Identity {
    pub(super) chain: PathBuf,
    pub(super) key: PathBuf,
    config: Arc<ServerConfig>,
    pub(super) certificate: CertificateDer<'static>,
    der_key: PrivateKeyDer<'static>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        fs::write(directory.path().join("ca.pem"), certificate.pem()).unwrap();
        let certificate = certificate.der().clone();
        Self { directory, issuer: Issuer::new(params, key), certificate }
    }

    /// Returns the file for `--origin-ca`.
    pub(super) fn file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Creates a certificate for `host`.
    pub(super) fn identity(&self, host: &str) -> Identity {
        self.identity_until(host, 4096)
    }

    /// Creates a certificate for `host` that expires at the beginning of `year`.
    pub(super) fn identity_until(&self, host: &str, year: i32) -> Identity {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = |kind| self.directory.path().join(format!("{host}-{year}.{kind}"));
        let (chain, key_file) = (path("pem"), path("key"));
        fs::write(&chain, certificate.pem()).unwrap();
        fs::write(&key_file, key.serialize_pem()).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let certificate = certificate.der().clone();
        let config = Arc::new(server(&certificate, &key, rustls::DEFAULT_VERSIONS));
        Identity { chain, key: key_file, config, certificate, der_key: key }
    }
}

impl Identity {
    /// Returns the configuration of an origin that speaks only this version.
    pub(super) fn server(&self, version: &'static SupportedProtocolVersion) -> ServerConfig {
        server(&self.certificate, &self.der_key, &[version])
    }
}

fn server(
    certificate: &CertificateDer<'static>,
    key: &PrivateKeyDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key.clone_key())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

impl Authority {
    /// Returns the configuration of a client that trusts this authority and shows the certificate of
    /// `identity`, if there is one.
    pub(super) fn client(&self, identity: Option<&Identity>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = vec![identity.certificate.clone()];
                builder.with_client_auth_cert(chain, identity.der_key.clone_key()).unwrap()
            }
        })
    }
}

/// Sends `request` to a TLS server and reads until its close_notify. Returns the reply and the kind of
/// the handshake.
pub(super) fn exchange(
    config: &Arc<ClientConfig>,
    address: SocketAddr,
    request: &str,
) -> (String, HandshakeKind) {
    let (reply, kind, is_whole) = exchange_until_end(config, address, request);
    assert!(is_whole, "no close_notify: {reply}");
    (reply, kind)
}

/// Does the same as [`exchange`], and also returns whether a close_notify came before the end.
pub(super) fn exchange_until_end(
    config: &Arc<ClientConfig>,
    address: SocketAddr,
    request: &str,
) -> (String, HandshakeKind, bool) {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address).unwrap());
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = Vec::new();
    let is_whole = stream.read_to_end(&mut reply).is_ok();
    let reply = String::from_utf8(reply).unwrap();
    (reply, stream.conn.handshake_kind().unwrap(), is_whole)
}

pub(super) type Stream = StreamOwned<ServerConnection, TcpStream>;

/// A handshake: its kind, the requested server name, and the protocol chosen with ALPN.
pub(super) type Handshake = (HandshakeKind, Option<String>, Option<Vec<u8>>);

/// An origin that uses rustls alone.
pub(super) struct TlsOrigin {
    pub(super) address: SocketAddr,
    /// The handshake of the connection of each request that was received.
    pub(super) handshakes: Arc<Mutex<Vec<Handshake>>>,
}

impl TlsOrigin {
    /// Starts an origin. `answer` gets the connection and the head of each request, and returns
    /// whether the connection stays open.
    pub(super) fn start(
        identity: &Identity,
        answer: impl Fn(&mut Stream, &str) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let handshakes = Arc::new(Mutex::new(Vec::new()));
        let (config, answer, noted) =
            (Arc::clone(&identity.config), Arc::new(answer), Arc::clone(&handshakes));
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (config, answer, noted) =
                    (Arc::clone(&config), Arc::clone(&answer), Arc::clone(&noted));
                thread::spawn(move || {
                    let connection = ServerConnection::new(config).unwrap();
                    let mut stream = StreamOwned::new(connection, socket);
                    while let Some(head) = read_head(&mut stream) {
                        let connection = &stream.conn;
                        noted.lock().unwrap().push((
                            connection.handshake_kind().unwrap(),
                            connection.server_name().map(str::to_owned),
                            connection.alpn_protocol().map(<[u8]>::to_vec),
                        ));
                        if !answer(&mut stream, &head) {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, handshakes }
    }

    pub(super) fn url(&self, host: &str) -> String {
        format!("https://{host}:{}", self.address.port())
    }
}

fn read_head(stream: &mut Stream) -> Option<String> {
    let mut head = String::new();
    let mut reader = BufReader::with_capacity(1, stream);
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

/// Answers with `ok` and the request's body, of any length.
pub(super) fn echo(stream: &mut Stream, head: &str) -> bool {
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\nok", length + 2);
    stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&body).is_ok()
}
