//! A connection over TLS, made with rustls alone: it shares no code with the record layer under test.

use crate::http;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme,
    SupportedProtocolVersion,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{
        CryptoProvider, ring::default_provider, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    version::{TLS12, TLS13},
};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
};

/// The version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// A connection over TLS. An end of the stream without close_notify is an error when it is read.
#[derive(Debug)]
pub struct TlsStream {
    socket: TcpStream,
    connection: ClientConnection,
}

impl TlsStream {
    /// Performs a handshake on a connection, with any certificate of the server.
    pub fn new(mut socket: TcpStream, version: Version) -> Self {
        http::set_options(&socket).expect("the options of a socket");
        let name = ServerName::try_from("localhost").unwrap();
        let mut connection = ClientConnection::new(config(version), name).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).expect("a handshake");
        }
        Self { socket, connection }
    }

    /// Returns the socket.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Ends the sending direction with close_notify.
    pub fn finish(&mut self) {
        self.connection.send_close_notify();
        // The server may have closed the connection already.
        let _ = self.push();
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    fn push(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
            self.connection.read_tls(&mut self.socket)?;
            let outcome = self.connection.process_new_packets();
            outcome.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.connection.writer().write(bytes)?;
        self.push()?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push()
    }
}

fn config(version: Version) -> Arc<ClientConfig> {
    let provider = Arc::new(default_provider());
    let version: &SupportedProtocolVersion = match version {
        Version::Tls12 => &TLS12,
        Version::Tls13 => &TLS13,
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous();
    let verifier = Arc::new(AnyCertificate(provider));
    Arc::new(builder.with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Accepts each certificate; the signatures of the handshake must be valid.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
