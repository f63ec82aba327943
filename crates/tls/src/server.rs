//! The settings of a server, and the rustls configuration made from them.

use crate::{
    Certificates, ConfigError, TicketKeys, config::prepare_server, config::provider,
    config::versions_from, pem_file,
};
use rcgen::{CertifiedKey, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use std::{path::PathBuf, sync::Arc};

/// The protocol (ALPN) of the handshakes by which an ACME authority validates a name (RFC 8737). Nothing is
/// sent after them.
pub const ACME_TLS_ALPN: &[u8] = b"acme-tls/1";

/// The oldest version of TLS that is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2, with AEAD suites and ephemeral keys only.
    #[default]
    Tls12,
    /// TLS 1.3 alone.
    Tls13,
}

/// The use of client certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate is requested.
    #[default]
    None,
    /// A certificate is requested, and the client may decline. A certificate that it sends must be
    /// valid.
    Optional(PathBuf),
    /// A handshake succeeds only with a valid client certificate.
    Required(PathBuf),
}

/// The settings of a TLS server.
#[derive(Clone, Debug, Default)]
pub struct ServerSettings {
    /// The oldest version that is accepted.
    pub min_version: MinVersion,
    /// The authorities of client certificates: PEM files.
    pub client_auth: ClientAuth,
    /// Protocols in the order of preference (ALPN), such as `http/1.1`.
    pub alpn: Vec<Vec<u8>>,
    /// Secrets are written to the file that SSLKEYLOGFILE names.
    pub logs_secrets: bool,
}

impl ServerSettings {
    /// Makes the configuration for [`crate::Handshake::server`]. Workers that share it, or were forked
    /// with it, share its ticket keys.
    ///
    /// A server that requests client certificates makes no tickets: a resumed session has the
    /// certificate of its first handshake, and rustls puts it into the next ticket without a new check. An
    /// expired certificate could be used without end.
    ///
    /// # Errors
    /// The client authorities cannot be read; the system provides no random numbers.
    pub fn build(&self, certificates: Arc<Certificates>) -> Result<Arc<ServerConfig>, ConfigError> {
        let builder = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(versions_from(self.min_version))
            .map_err(|error| ConfigError::new(error.to_string()))?;
        let builder = match self.client_verifier()? {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier),
        };
        let mut config = builder.with_cert_resolver(certificates);
        prepare_server(&mut config, self.logs_secrets);
        config.alpn_protocols.clone_from(&self.alpn);
        if self.client_auth == ClientAuth::None {
            let tickets = TicketKeys::new();
            let tickets =
                tickets.map_err(|_| ConfigError::new("no random numbers for ticket keys".into()));
            config.ticketer = Arc::new(tickets?);
        } else {
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }

    fn client_verifier(&self) -> Result<Option<Arc<dyn ClientCertVerifier>>, ConfigError> {
        let (path, is_optional) = match &self.client_auth {
            ClientAuth::None => return Ok(None),
            ClientAuth::Optional(path) => (path, true),
            ClientAuth::Required(path) => (path, false),
        };
        let roots = Arc::new(read_roots(path)?);
        let builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::new(provider()));
        let builder = if is_optional { builder.allow_unauthenticated() } else { builder };
        let verifier = builder.build();
        verifier.map(Some).map_err(|error| ConfigError::new(format!("{}: {error}", path.display())))
    }
}

/// Reads the authorities in a PEM file.
///
/// # Errors
/// The file cannot be read, or contains no authority.
pub fn read_roots(path: &std::path::Path) -> Result<RootCertStore, ConfigError> {
    let fail = |reason: String| ConfigError::new(format!("{}: {reason}", path.display()));
    let mut roots = RootCertStore::empty();
    let pem = pem_file::read(path).map_err(|error| fail(error.to_string()))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| fail(pem_file::explain(&error).into()))?;
        roots.add(certificate).map_err(|error| fail(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(fail("no certificate is in it (PEM, BEGIN CERTIFICATE)".into()));
    }
    Ok(roots)
}

/// Makes a certificate for trials, signed by its own key, for these names or addresses. No client
/// trusts it without its fingerprint.
///
/// # Errors
/// A name is not a DNS name or an address.
pub fn self_signed(names: Vec<String>) -> Result<Certificates, ConfigError> {
    let (chain, key) = self_signed_pair(names)?;
    Certificates::from_der(chain, key, Arc::new(provider()))
}

/// As [`self_signed`], as PEM: the certificate, and its key. For servers that read them from files.
///
/// # Errors
/// As [`self_signed`].
pub fn self_signed_pem(names: Vec<String>) -> Result<(String, String), ConfigError> {
    let certified = generate(names)?;
    Ok((certified.cert.pem(), certified.signing_key.serialize_pem()))
}

fn generate(names: Vec<String>) -> Result<CertifiedKey<KeyPair>, ConfigError> {
    rcgen::generate_simple_self_signed(names)
        .map_err(|error| ConfigError::new(format!("no certificate for these names: {error}")))
}

/// A self-signed certificate, and its key.
pub(crate) fn self_signed_pair(
    names: Vec<String>,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ConfigError> {
    let certified = generate(names)?;
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    Ok((vec![certified.cert.der().clone()], PrivateKeyDer::Pkcs8(key)))
}

/// The SHA-256 fingerprint of a certificate, as browsers and `openssl x509 -fingerprint` show it.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    let bytes: Vec<_> = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    bytes.join(":")
}
