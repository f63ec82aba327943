//! Idle TLS connections continue in the new process, without a handshake.

use super::*;
use crate::operations::subscriber::Subscriber;
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, DEFAULT_VERSIONS, RootCertStore, StreamOwned,
    SupportedProtocolVersion,
    client::WantsClientCert,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
};

type Stream = BufReader<StreamOwned<ClientConnection, TcpStream>>;

fn connect(address: &str, config: &Arc<ClientConfig>) -> Stream {
    BufReader::new(open(address, config))
}

/// Opens a connection without a buffer.
pub(super) fn open(
    address: &str,
    config: &Arc<ClientConfig>,
) -> StreamOwned<ClientConnection, TcpStream> {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(pollux_testkit::http::PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(config.clone(), name).unwrap();
    StreamOwned::new(session, socket)
}

fn get(stream: &mut Stream) -> String {
    stream.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream.get_mut().flush().unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(stream.read_line(&mut head).unwrap() > 0, "{head:?}");
    }
    let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    let mut body = vec![0; len.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(body, b"site a\n");
    head
}

/// Begins the configuration of a client that trusts a certificate.
fn builder(
    trusted: CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted).unwrap();
    let provider = rustls::crypto::ring::default_provider().into();
    let config = ClientConfig::builder_with_provider(provider);
    config.with_protocol_versions(versions).unwrap().with_root_certificates(roots)
}

/// Returns the configuration of a client that trusts a certificate.
pub(super) fn trusting(certificate: &str) -> Arc<ClientConfig> {
    let certificate = CertificateDer::from_pem_file(certificate).unwrap();
    Arc::new(builder(certificate, DEFAULT_VERSIONS).with_no_client_auth())
}

/// Returns the configuration of a client that trusts a certificate, and shows it itself.
fn showing(certificate: &str, key: &str) -> Arc<ClientConfig> {
    let shown = CertificateDer::from_pem_file(certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let config = builder(shown.clone(), DEFAULT_VERSIONS);
    Arc::new(config.with_client_auth_cert(vec![shown], key).unwrap())
}

/// Creates a certificate and its key. Returns the paths of both.
pub(super) fn make_certificate(folder: &Folder) -> (String, String) {
    // Other tests use the certificate of an authority; rustls refuses such a certificate for a server.
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "30", "-subj", "/CN=localhost", "-keyout", "a.key", "-out", "a.pem"])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .current_dir(folder.0.path())
        .output()
        .expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = |name: &str| folder.0.path().join(name).display().to_string();
    (path("a.pem"), path("a.key"))
}

#[test]
fn upgrades_keep_tls_connections() {
    limits::raise_descriptor_limit();
    let folder = Folder::new();
    let (cert, key) = make_certificate(&folder);
    folder.write("keep-alive = \"10m\"", "root = \"a\"");
    let mut server = folder.serve(&["--workers", "2", "--tls-cert", &cert, "--tls-key", &key]);
    let trusted = CertificateDer::from_pem_file(&cert).unwrap();
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    let configs = versions
        .map(|version| Arc::new(builder(trusted.clone(), &[version]).with_no_client_auth()));
    let mut idle: Vec<_> = (0..IDLE)
        .map(|number| {
            let mut stream = connect(server.address(), &configs[usize::from(number % 8 == 0)]);
            get(&mut stream);
            stream
        })
        .collect();
    let mut processes = Vec::new();
    for round in 1..=UPGRADES {
        let text = printed(&folder.ctl("upgrade"));
        assert_eq!(handed_over(&text), IDLE);
        processes.push(successor(&mut server));
        // The sequence numbers continue.
        idle.iter_mut().skip(round).step_by(50).for_each(|stream| drop(get(stream)));
    }
    idle.iter_mut().for_each(|stream| drop(get(stream)));
    let last = processes.last().unwrap();
    last.signal(Signal::TERM);
    last.wait();
    let statistics = statistics_of(&mut server, |all| {
        all["connections"]["taken_over"] == IDLE && all["tls"]["handshakes"] == 0
    });
    assert_eq!(statistics["tls"]["failures"], 0, "{statistics}");
}

/// Regression: the new process took both listeners for HTTPS, and then could not listen for plain HTTP.
#[test]
fn the_listener_for_plain_http_is_handed_over_although_its_configured_address_is_the_same() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let tls = ["--tls", "self-signed", "--redirect-http", "127.0.0.1:0"];
    let mut server = folder.serve(&[&tls[..], &["--workers", "2"]].concat());
    let plain = crate::tls::redirect_address(&server);
    let port = server.address().rsplit(':').next().unwrap().to_owned();
    let mut processes = Vec::new();
    for _ in 0..2 {
        printed(&folder.ctl("upgrade"));
        processes.push(successor(&mut server));
        let addresses = processes.last().unwrap().listening()["addresses"].as_array().unwrap();
        assert_eq!(addresses.len(), 1, "{addresses:?}");
        let mut client = Client::connect(&plain);
        client.send(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let reply = client.reply();
        let location = format!("https://localhost:{port}/a");
        assert_eq!((reply.status, reply.field("location")), (308, Some(&*location)));
    }
    end(processes);
}

/// The configuration decides whether a client's certificate is valid, so such a connection stays in
/// the process that verified the certificate.
#[test]
fn a_client_with_a_certificate_stays_in_the_old_process() {
    let folder = Folder::new();
    let (cert, key) = make_certificate(&folder);
    folder.write("keep-alive = \"10m\"", "root = \"a\"");
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &cert];
    let mut server = folder.serve(&[&tls[..], &["--tls-client-optional"]].concat());
    let mut with = connect(server.address(), &showing(&cert, &key));
    let mut without = connect(server.address(), &trusting(&cert));
    get(&mut with);
    get(&mut without);
    assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), 1);
    let process = successor(&mut server);
    get(&mut with);
    get(&mut without);
    assert!(server.is_running(), "it has a client");
    drop(with);
    server.wait_for_end();
    get(&mut without);
    end(vec![process]);
}

/// Regression: the stream of a client with a certificate stayed in the old process, and got only heartbeats, but none
/// of the updates of the new process.
#[test]
fn a_subscriber_with_a_certificate_connects_again() {
    let folder = Folder::new();
    let (cert, key) = make_certificate(&folder);
    folder.write("", "root = \"a\"");
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &cert];
    let hub = ["--hub", "--hub-anonymous", "--hub-publish-anonymous"];
    let mut server = folder.serve(&[&tls[..], &hub].concat());
    let client = showing(&cert, &key);
    let subscribe =
        |server: &Serve| Subscriber::new(open(server.address(), &client), "match=a", "");
    let mut subscriber = subscribe(&server);
    assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), 0);
    let process = successor(&mut server);
    subscriber.read_to_end();
    server.wait_for_end();
    drop(subscribe(&server));
    end(vec![process]);
}
