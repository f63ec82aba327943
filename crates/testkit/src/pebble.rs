//! An ACME authority for one test: Pebble, with a name server that resolves every name to 127.0.0.1.

use crate::{child::KillOnDrop, http, ports::Port, wait::becomes_true};
use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// How long Pebble may take until it listens.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// The behaviour of an authority.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// How long its certificates are valid.
    pub lifetime: Duration,
    /// How many of a hundred requests are refused because of their nonce.
    pub refused_nonces: u8,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self { lifetime: Duration::from_secs(90 * 86_400), refused_nonces: 5 }
    }
}

/// A running authority. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Pebble {
    process: Option<KillOnDrop>,
    folder: TempDir,
    program: PathBuf,
    behaviour: Behaviour,
    directory: Port,
    management: Port,
    /// The port at which Pebble validates names over plain HTTP.
    pub http: Port,
    /// The port at which Pebble validates names over TLS.
    pub tls: Port,
    dns: String,
}

impl Pebble {
    /// Starts an authority. Returns `None`, and prints that, where Pebble is not installed
    /// (`scripts/setup build acme`). With POLLUX_PEBBLE_REQUIRED in the environment, a missing Pebble
    /// is a failure.
    pub fn start(behaviour: Behaviour) -> Option<Self> {
        let Some(program) = find() else {
            assert!(
                env::var_os("POLLUX_PEBBLE_REQUIRED").is_none(),
                "pebble is not installed, and POLLUX_PEBBLE_REQUIRED is set: scripts/setup build acme"
            );
            eprintln!("skipped: pebble is not installed: scripts/setup build acme");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let mut pebble = Self {
            process: None,
            folder,
            program,
            behaviour,
            directory: Port::reserve(),
            management: Port::reserve(),
            http: Port::reserve(),
            tls: Port::reserve(),
            dns: answer_names(),
        };
        pebble.make_certificate();
        pebble.restart();
        Some(pebble)
    }

    /// Returns the URL of the ACME directory.
    pub fn url(&self) -> String {
        format!("https://localhost:{}/dir", self.directory.number())
    }

    /// Returns the file with the root of the directory's own certificate.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("own.pem")
    }

    /// Makes the authority answer queries for the renewal window of a certificate, which is PEM, with this text.
    pub fn suggest_renewal(&self, certificate: &str, answer: &str) {
        let end = certificate.find("-----BEGIN PRIVATE KEY").unwrap_or(certificate.len());
        let body = serde_json::json!({ "certificate": certificate[..end], "ariResponse": answer });
        let path = self.folder.path().join("renewal.json");
        fs::write(&path, body.to_string()).expect("a file");
        let output = Command::new("curl")
            .args(["-sSf", "--cacert"])
            .arg(self.root())
            .arg("--data-binary")
            .arg(format!("@{}", path.display()))
            .arg(format!("https://localhost:{}/set-renewal-info/", self.management.number()))
            .output()
            .expect("curl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Stops the authority: after this call no process listens at its URL.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Starts the authority again. The new process knows no accounts.
    pub fn restart(&mut self) {
        self.process = None;
        let own = |name: &str| self.folder.path().join(name).display().to_string();
        let config = serde_json::json!({ "pebble": {
            "listenAddress": self.directory.address().to_string(),
            "managementListenAddress": self.management.address().to_string(),
            "certificate": own("own.pem"),
            "privateKey": own("own.key"),
            "httpPort": self.http.number(),
            "tlsPort": self.tls.number(),
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            "retryAfter": { "authz": 1, "order": 1 },
            "profiles": { "default": {
                "description": "the only one",
                "validityPeriod": self.behaviour.lifetime.as_secs(),
            } },
        } });
        fs::write(own("config.json"), config.to_string()).expect("a file");
        let log = fs::File::create(own("log")).expect("a file");
        let child = Command::new(&self.program)
            .args(["-config", &own("config.json"), "-dnsserver", &self.dns])
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_WFE_NONCEREJECT", self.behaviour.refused_nonces.to_string())
            // Pebble validates each order, even for a name that it has just validated.
            .env("PEBBLE_AUTHZREUSE", "0")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("pebble");
        self.process = Some(KillOnDrop(child));
        let listens = || TcpStream::connect(self.directory.address()).is_ok();
        assert!(becomes_true(START_PATIENCE, listens), "pebble does not listen: {}", self.log());
    }

    /// Returns the output of Pebble so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Creates the authority's own certificate, which is also its root.
    fn make_certificate(&self) {
        let output = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
            ])
            .args([
                "-days",
                "30",
                "-subj",
                "/CN=localhost",
                "-keyout",
                "own.key",
                "-out",
                "own.pem",
            ])
            .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .current_dir(self.folder.path())
            .output()
            .expect("openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Returns the path of the program, which is on the PATH or where `go install` puts it.
fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let go = env::var_os("GOBIN").map(PathBuf::from);
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join("go/bin"));
    let mut folders = env::split_paths(&path).chain(go).chain(home);
    folders.find_map(|folder| Some(folder.join("pebble")).filter(|program| program.is_file()))
}

/// Starts a name server that answers every query for an IPv4 address with 127.0.0.1, and any other
/// query with no record. It uses TCP, as Pebble expects. Returns the address of the name server, whose
/// thread runs until the process ends.
fn answer_names() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let address = listener.local_addr().expect("its address").to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = answer_query(&mut stream);
        }
    });
    address
}

/// Answers one query. RFC 1035 §4.2.2: the length precedes each message.
fn answer_query(stream: &mut TcpStream) -> io::Result<()> {
    http::set_options(stream)?;
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let mut query = vec![0; u16::from_be_bytes(len).into()];
    stream.read_exact(&mut query)?;
    let reply = reply_to(&query).unwrap_or_default();
    let len = u16::try_from(reply.len()).unwrap_or(0);
    stream.write_all(&[&len.to_be_bytes()[..], &reply].concat())
}

/// Returns the reply to a query. RFC 1035 §4: it repeats the header and the question, with one record
/// if the query is for an IPv4 address.
fn reply_to(query: &[u8]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    let name = query.get(HEADER..)?.iter().position(|&byte| byte == 0)?;
    let end = HEADER + name + 1;
    let kind = query.get(end..end + 2)?;
    let is_address = kind == [0, 1];
    let mut reply = query[..2].to_vec();
    reply.extend([0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
    reply.extend_from_slice(query.get(HEADER..end + 4)?);
    if is_address {
        reply.extend([0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]);
    }
    Some(reply)
}
