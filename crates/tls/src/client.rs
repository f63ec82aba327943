//! The settings of a client, and the rustls configuration made from them.

use crate::{
    Cipher, ConfigError, MinVersion, config::prepare_client, config::provider,
    config::versions_from, ticket_store::TicketStore,
};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use std::sync::Arc;

/// The authorities that a client trusts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// These authorities.
    Roots(Arc<RootCertStore>),
    /// Every certificate is accepted without a check. For measurements, and for self-signed
    /// certificates.
    Anybody,
}

/// The settings of a TLS client.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// The authorities that it trusts.
    pub trust: Trust,
    /// The oldest version that is accepted.
    pub min_version: MinVersion,
    /// Protocols in the order preferred (ALPN).
    pub alpn: Vec<Vec<u8>>,
    /// The only cipher that is offered; `None` offers all.
    pub cipher: Option<Cipher>,
    /// The most tickets that are stored for a server, to resume its sessions; 0 if none is resumed.
    pub tickets_max: usize,
    /// Secrets are written to the file that SSLKEYLOGFILE names.
    pub logs_secrets: bool,
}

impl ClientSettings {
    /// Settings of a client that accepts every certificate and TLS 1.2, and does not resume: for
    /// servers on this machine.
    pub fn trusting_anybody(alpn: &[&[u8]]) -> Self {
        Self {
            trust: Trust::Anybody,
            min_version: MinVersion::Tls12,
            alpn: alpn.iter().map(|protocol| protocol.to_vec()).collect(),
            cipher: None,
            tickets_max: 0,
            logs_secrets: false,
        }
    }

    /// The configuration for [`crate::Handshake::client`].
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub fn build(&self) -> Result<Arc<ClientConfig>, ConfigError> {
        let mut provider = provider();
        if let Some(cipher) = self.cipher {
            provider.cipher_suites.retain(|offered| cipher.is_of(offered.suite()));
        }
        let provider = Arc::new(provider);
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions_from(self.min_version))
            .map_err(|error| ConfigError::new(error.to_string()))?;
        let builder = match &self.trust {
            Trust::Roots(roots) => builder.with_root_certificates(Arc::clone(roots)),
            Trust::Anybody => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate { provider })),
        };
        let mut config = builder.with_no_client_auth();
        prepare_client(&mut config, self.logs_secrets);
        config.alpn_protocols.clone_from(&self.alpn);
        config.resumption = match self.tickets_max {
            0 => Resumption::disabled(),
            most => Resumption::store(Arc::new(TicketStore::new(most))),
        };
        Ok(Arc::new(config))
    }
}

/// Accepts each certificate. The handshake's signature is still verified, because every client pays for
/// that and a measurement must include it.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
