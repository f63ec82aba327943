//! `--kernel-tls send`: on a kernel without TLS, and in guests, whose kernels support it.

use super::{POLLUX, big, curl, serve};
use crate::guest;
use pollux_testkit::{read_slowly, serve::Serve, wait_until_stalled};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::{
    env, fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The name of this test, which the guest runs.
const IN_GUEST: &str = "tls::kernel::the_kernel_encrypts_long_files_in_guests";
const SEND: [&str; 2] = ["--kernel-tls", "send"];

#[test]
fn a_kernel_without_tls_is_an_error_that_says_what_to_do() {
    let ulps = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    if ulps.split_whitespace().any(|name| name == "tls") {
        eprintln!("skipped: this kernel has TLS");
        return;
    }
    let directory = TempDir::new().unwrap();
    let output = Command::new(POLLUX)
        .args(["serve", ".", "--listen", "127.0.0.1:0", "--tls", "self-signed"])
        .args(SEND)
        .current_dir(directory.path())
        .output()
        .unwrap();
    // The server may just have loaded the kernel's module.
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    for words in ["--kernel-tls send", "modprobe tls", "leave the flag out"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn it_is_of_a_server_with_tls() {
    let directory = TempDir::new().unwrap();
    let output = Command::new(POLLUX)
        .args(["serve", ".", "--listen", "127.0.0.1:0"])
        .args(SEND)
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("--kernel-tls") && text.contains("--tls-cert"), "{text}");
}

/// Runs the checks in the default kernel, or in those that POLLUX_TLS_KERNELS names (`6.1 6.12
/// newest`). POLLUX_TLS_CHECK selects the checks whose name contains its value.
#[test]
#[ignore = "slow: boots a guest"]
fn the_kernel_encrypts_long_files_in_guests() {
    if let Ok(release) = env::var("POLLUX_VM") {
        return checks(&release);
    }
    let named = env::var("POLLUX_TLS_KERNELS").unwrap_or_default();
    let mut kernels: Vec<_> = named.split_whitespace().map(str::to_owned).collect();
    if kernels.is_empty() {
        let list = &mut guest::pollux("vm", &["--list-kernels"]);
        let Some(list) = guest::success_of(list) else { return };
        let list = String::from_utf8_lossy(&list.stdout);
        kernels = list.lines().take(1).map(str::to_owned).collect();
    }
    let program = env::current_exe().unwrap();
    for kernel in kernels {
        let vm = ["--module", "none", "--kernel", &kernel, "--timeout", "1500", "--"];
        let mut guest = guest::pollux("vm", &vm);
        guest.arg(&program).args(["--ignored", "--exact", "--nocapture", IN_GUEST]);
        let Some(output) = guest::success_of(&mut guest) else { return };
        let text = String::from_utf8_lossy(&output.stdout);
        eprint!("{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("1 passed"), "{kernel}: {text}");
    }
}

/// Runs the checks in the guest, one after another.
fn checks(release: &str) {
    let site = site();
    let selected = env::var("POLLUX_TLS_CHECK").unwrap_or_default();
    for (name, check) in [
        ("curl, and what the kernel is not needed for", curl_and_limits as fn(&TempDir)),
        ("several requests in each suite", suites),
        ("architectures", architectures),
        ("a client that is slow until the end", slow_clients_get_everything),
        ("an upgrade", upgrades_keep_the_kernels_keys),
    ] {
        if !name.contains(&selected) {
            continue;
        }
        let begun = Instant::now();
        check(&site);
        eprintln!("{release}: {name}: {:?}", begun.elapsed());
    }
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|n| n.parse().ok()).collect();
    let changes_keys = numbers[..2] >= [6, 14][..];
    key_updates(&site, changes_keys);
    eprintln!("{release}: KeyUpdate, the kernel can change keys: {changes_keys}");
}

/// Creates the site of the other tests, with a certificate that rustls also accepts, because it is not
/// the certificate of an authority.
fn site() -> TempDir {
    let directory = super::site();
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "30", "-subj", "/CN=localhost", "-keyout", "a.key", "-out", "a.pem"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .current_dir(directory.path())
        .output()
        .expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    directory
}

/// Starts a server whose sandbox kills it if it makes a system call that is not on the list.
fn server(site: &TempDir, arguments: &[&str]) -> Serve {
    let serve = serve(site, &[&SEND, &["--sandbox", "kill"], arguments].concat());
    let sandbox = &serve.listening()["sandbox"];
    assert_eq!(sandbox["seccomp"], "kill", "{sandbox}");
    assert!(sandbox["landlock"].is_number(), "{sandbox}");
    serve
}

/// Ends a server, and checks that the kernel encrypted on `kernel` of its connections.
fn ends(serve: Serve, kernel: u64) {
    let said = serve.stderr_text();
    let (status, statistics) = serve.stop();
    let tls = &statistics["tls"];
    assert!(status.success(), "{said}");
    assert_eq!(tls["kernel"], kernel, "{tls} {said}");
    assert_eq!(tls["kernel_refused"], 0, "{tls} {said}");
}

/// Programs start slowly in a guest, so only one of the clients is curl; the others use rustls.
fn curl_and_limits(site: &TempDir) {
    let serve = server(site, &["--mechanism", "epoll"]);
    // The kernel is not needed for content that is short or in memory.
    let mut stream = connect(site, &serve, None, &ALL_SUITES);
    request(&mut stream, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(body(&mut stream).unwrap(), b"hello\n");
    request(
        &mut stream,
        "GET /big HTTP/1.1\r\nHost: localhost\r\nRange: bytes=70000-70099\r\n\r\n",
    );
    assert_eq!(body(&mut stream).unwrap(), big()[70000..70100]);
    drop(stream);
    assert!(curl(site, &serve, "/big", &[]) == big());
    ends(serve, 1);
}

fn suites(site: &TempDir) {
    let serve = server(site, &["--mechanism", "epoll-et"]);
    for suite in ALL_SUITES {
        let mut stream = connect(site, &serve, None, &[suite]);
        // Between two long files there are short responses, which the kernel encrypts, too.
        for path in ["", "big", "", "big", ""] {
            request(&mut stream, &format!("GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
            let expected = if path.is_empty() { b"hello\n".to_vec() } else { big() };
            assert!(body(&mut stream).unwrap() == expected, "{suite:?}");
        }
    }
    ends(serve, ALL_SUITES.len() as u64);
}

fn architectures(site: &TempDir) {
    for arguments in [
        &["--architecture", "threaded"][..],
        &["--architecture", "prethreaded", "--pool", "2"],
        &["--large-file", "cork"],
    ] {
        let serve = server(site, arguments);
        let mut stream = connect(site, &serve, None, &ALL_SUITES);
        for _ in 0..2 {
            request(&mut stream, GET_BIG);
            assert!(body(&mut stream).unwrap() == big(), "{arguments:?}");
        }
        drop(stream);
        ends(serve, 1);
    }
}

const ALL_SUITES: [CipherSuite; 6] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];

type Stream = BufReader<StreamOwned<ClientConnection, TcpStream>>;

/// Opens a connection with a client that offers these suites.
fn connect(
    site: &TempDir,
    serve: &Serve,
    receive_buffer: Option<usize>,
    suites: &[CipherSuite],
) -> Stream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    if let Some(bytes) = receive_buffer {
        socket.set_recv_buffer_size(bytes).unwrap();
    }
    let address: std::net::SocketAddr = serve.address().parse().unwrap();
    socket.connect(&address.into()).unwrap();
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(site.path().join("a.pem")).unwrap()).unwrap();
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|suite| suites.contains(&suite.suite()));
    let has = |is_13| provider.cipher_suites.iter().any(|s| s.tls13().is_some() == is_13);
    let mut versions = Vec::new();
    versions.extend(has(true).then_some(&rustls::version::TLS13));
    versions.extend(has(false).then_some(&rustls::version::TLS12));
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_protocol_versions(&versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    BufReader::new(StreamOwned::new(session, socket))
}

fn request(stream: &mut Stream, text: &str) {
    stream.get_mut().write_all(text.as_bytes()).unwrap();
    stream.get_mut().flush().unwrap();
}

const GET_BIG: &str = "GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Reads a response with status 200 or 206 and returns its body.
fn body(stream: &mut Stream) -> io::Result<Vec<u8>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    assert!(head.starts_with("HTTP/1.1 20"), "{head}");
    let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    let mut body = vec![0; len.parse().unwrap()];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// When a socket is closed, the kernel drops records that it has not yet passed to TCP: the server
/// must not close the socket before.
fn slow_clients_get_everything(site: &TempDir) {
    for arguments in [&["--mechanism", "epoll-et"][..], &["--architecture", "threaded"]] {
        let serve = server(site, arguments);
        for pause_ms in [0, 1, 5, 20] {
            let mut stream = connect(site, &serve, Some(4096), &ALL_SUITES);
            request(
                &mut stream,
                "GET /big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            );
            wait_until_stalled(stream.get_ref().get_ref());
            // An end of stream without close_notify is an error.
            let got = read_slowly(&mut stream, Duration::from_millis(pause_ms), 64 << 10).unwrap();
            assert!(got.ends_with(&big()), "{arguments:?}, {pause_ms} ms: {} bytes", got.len());
        }
        ends(serve, 4);
    }
}

/// The client changes its keys and requests that the server does the same.
fn key_updates(site: &TempDir, changes_keys: bool) {
    let serve = server(site, &[]);
    let mut stream = connect(site, &serve, None, &ALL_SUITES);
    for _ in 0..3 {
        request(&mut stream, GET_BIG);
        assert!(body(&mut stream).unwrap() == big());
        stream.get_mut().conn.refresh_traffic_keys().unwrap();
        if !changes_keys {
            break;
        }
    }
    request(&mut stream, GET_BIG);
    if changes_keys {
        assert!(body(&mut stream).unwrap() == big());
        drop(stream);
    } else {
        // The server sends close_notify, and nothing before it.
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
    }
    // Other connections continue.
    let mut stream = connect(site, &serve, None, &ALL_SUITES);
    request(&mut stream, GET_BIG);
    assert!(body(&mut stream).unwrap() == big());
    drop(stream);
    ends(serve, 2);
}

/// The kernel keeps the keys with the socket, which is handed to the new process.
fn upgrades_keep_the_kernels_keys(site: &TempDir) {
    let control = site.path().join("ctl");
    let control = control.to_str().unwrap();
    let mut serve = server(site, &["--control", control]);
    let mut streams = [ALL_SUITES[0], ALL_SUITES[3]].map(|suite| {
        let mut stream = connect(site, &serve, None, &[suite]);
        request(&mut stream, GET_BIG);
        assert!(body(&mut stream).unwrap() == big());
        stream
    });
    let upgrade = Command::new(POLLUX).args(["ctl", "--control", control, "upgrade"]).output();
    let upgrade = upgrade.unwrap();
    assert!(upgrade.status.success(), "{}", String::from_utf8_lossy(&upgrade.stderr));
    let next = serve.next_process();
    for stream in &mut streams {
        request(stream, GET_BIG);
        assert!(body(stream).unwrap() == big());
    }
    next.signal(rustix::process::Signal::TERM);
    next.wait();
    let statistics = loop {
        let statistics = serve.last_statistics();
        if statistics["connections"]["taken_over"] == 2 {
            break statistics;
        }
    };
    // The new process had no keys to give to the kernel.
    assert_eq!(statistics["tls"]["kernel"], 0, "{statistics}");
    assert_eq!(statistics["tls"]["handshakes"], 0, "{statistics}");
}
