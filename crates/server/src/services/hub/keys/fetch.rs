//! Fetches a small document over HTTP or HTTPS, on a thread that may block.

use anyhow::{Context, anyhow, bail, ensure};
use pollux_http::reply::{Event, Reader, RequestInfo};
use pollux_tls::{ClientSettings, ClientTrust, HandshakeError, MinVersion, ServerName};
use rustls::{ClientConnection, StreamOwned};
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    path::Path,
    time::{Duration, Instant},
};
use url::Url;

/// The timeout of each connection attempt, read and write, and the time after which no further part of the
/// response is read.
const PATIENCE: Duration = Duration::from_secs(10);
/// The maximum length of the document.
const MOST_BYTES: usize = 1 << 20;

/// Fetches `url`, without following redirections. `authorities` is a PEM file with the authorities that are
/// trusted instead of the system's.
///
/// # Errors
/// It cannot be fetched in time, is too long, or the status is not 200.
pub(super) fn fetch(url: &Url, authorities: Option<&Path>) -> anyhow::Result<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let socket = connect(url).with_context(|| format!("cannot connect to {url}"))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let host = url.host_str().unwrap_or_default();
    let authority = match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    let request = format!(
        "GET {}{query} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: pollux\r\n\
         Accept: application/jwk-set+json, application/json\r\nConnection: close\r\n\r\n",
        url.path()
    );
    let document = if url.scheme() == "https" {
        let trust = match authorities {
            Some(path) => ClientTrust::File(path.to_owned()),
            None => ClientTrust::System,
        };
        // The brackets of an IPv6 address belong to the URL, not to the name.
        let name = host.trim_matches(['[', ']']);
        exchange(secure(socket, name, &trust)?, &request, deadline)
    } else {
        exchange(socket, &request, deadline)
    };
    document.with_context(|| format!("fetching {url}"))
}

fn connect(url: &Url) -> anyhow::Result<TcpStream> {
    let mut last = anyhow!("the host has no address");
    for address in url.socket_addrs(|| None)? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

fn secure(
    mut socket: TcpStream,
    host: &str,
    trust: &ClientTrust,
) -> anyhow::Result<StreamOwned<ClientConnection, TcpStream>> {
    let settings = ClientSettings {
        trust: trust.read().context("--hub-jwks-ca")?,
        min_version: MinVersion::Tls12,
        alpn: vec![b"http/1.1".to_vec()],
        tickets_max: 0,
        cipher: None,
        logs_secrets: false,
    };
    let name = ServerName::try_from(host.to_owned())
        .with_context(|| format!("{host} is no name that a certificate can have"))?;
    let mut connection = ClientConnection::new(settings.build()?, name)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).map_err(|error| {
            match error.downcast::<rustls::Error>() {
                Ok(reason) => {
                    let reason = HandshakeError::Tls(reason);
                    anyhow!(trust.explain(&reason, host, "--hub-jwks-ca", None))
                }
                Err(error) => anyhow!("the TLS handshake with {host} failed: {error}"),
            }
        })?;
    }
    Ok(StreamOwned::new(connection, socket))
}

fn exchange(
    mut stream: impl Read + Write,
    request: &str,
    deadline: Instant,
) -> anyhow::Result<Vec<u8>> {
    stream.write_all(request.as_bytes())?;
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(RequestInfo::default());
    let mut document = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    loop {
        ensure!(Instant::now() < deadline, "the server takes longer than {PATIENCE:?}");
        let received = match stream.read(&mut buffer) {
            Ok(0) => {
                reader.finish()?;
                return Ok(document);
            }
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                bail!("the server does not answer")
            }
            Err(error) => return Err(error.into()),
        };
        let mut rest = &buffer[..received];
        loop {
            let output = reader.read(rest)?;
            rest = &rest[output.consumed..];
            match output.event {
                Event::NeedMore => break,
                Event::Interim(_) => {}
                Event::Head(head) => {
                    ensure!(head.status == 200, "the server answers {}", head.status);
                }
                Event::Content(bytes) => {
                    let is_short = document.len() + bytes.len() <= MOST_BYTES;
                    ensure!(is_short, "the document is longer than {MOST_BYTES} bytes");
                    document.extend_from_slice(bytes);
                }
                Event::End { .. } => return Ok(document),
            }
        }
    }
}
