//! The bytes of a connection, plain or over TLS.

use anyhow::{Context, anyhow};
use pollux_tls::{ClientSettings, ClientTrust, HandshakeError, MinVersion, ServerName};
use rustls::{ClientConnection, StreamOwned};
use std::{
    io::{self, Read, Write},
    net::TcpStream,
};
use url::Url;

/// A connection.
#[derive(Debug)]
pub(super) enum Stream {
    /// The bytes as they are.
    Plain(TcpStream),
    /// The bytes in TLS records.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Makes the TLS handshake.
    ///
    /// # Errors
    /// The connection fails, or the certificate is not trusted; the message then names the flag
    /// that helps.
    pub(super) fn secure(
        mut socket: TcpStream,
        url: &Url,
        trust: &ClientTrust,
    ) -> anyhow::Result<Self> {
        let settings = ClientSettings {
            trust: trust.read()?,
            min_version: MinVersion::Tls12,
            alpn: vec![b"http/1.1".to_vec()],
            tickets_max: 0,
            cipher: None,
            logs_secrets: false,
        };
        // Only the URL has brackets around an IPv6 address.
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned())
            .with_context(|| format!("{url}: the host is no name that a certificate can have"))?;
        let mut connection = ClientConnection::new(settings.build()?, name)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).map_err(|error| explain(error, host, trust))?;
        }
        Ok(Self::Tls(Box::new(StreamOwned::new(connection, socket))))
    }

    /// Returns the TCP socket.
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        }
    }
}

/// The error of a server certificate that is not trusted, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UntrustedError(String);

fn explain(error: io::Error, host: &str, trust: &ClientTrust) -> anyhow::Error {
    match error.downcast::<rustls::Error>() {
        Ok(reason) => {
            let reason = HandshakeError::Tls(reason);
            let text = trust.explain(&reason, host, "--cacert", Some("--insecure"));
            if reason.is_certificate() { UntrustedError(text).into() } else { anyhow!(text) }
        }
        Err(error) => {
            anyhow::Error::new(error).context(format!("the TLS handshake with {host} failed"))
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
