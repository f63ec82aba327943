//! The properties that this crate needs in a rustls configuration, and its recommendations.

use crate::{MinVersion, capture::Capture, secret_log::SecretLog};
use rustls::{
    CipherSuite, ClientConfig, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
    crypto::{CryptoProvider, ring},
    version::{TLS12, TLS13},
};
use std::sync::Arc;

/// ring's algorithms, with the suites in our order: AES-128-GCM first, whose keys are derived in less
/// than half of the time of AES-256-GCM with SHA-384.
pub fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite: &SupportedCipherSuite| match suite.suite() {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => 0,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => 1,
        CipherSuite::TLS13_AES_256_GCM_SHA384 => 2,
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => 3,
        _ => 4,
    });
    provider
}

/// Prepares a server's configuration for [`crate::Handshake::server`].
///
/// Secrets can be extracted, tickets are the only way to resume (nothing is stored for a session), and
/// early data is refused. `logs_secrets` writes the secrets to the file that the environment variable
/// SSLKEYLOGFILE names, for Wireshark.
pub fn prepare_server(config: &mut ServerConfig, logs_secrets: bool) {
    config.enable_secret_extraction = true;
    config.key_log = key_log(logs_secrets);
    config.max_early_data_size = 0;
    config.ignore_client_order = true;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    // One ticket is enough for a client that keeps its connection; each costs a record and its
    // encryption.
    config.send_tls13_tickets = 1;
}

/// Prepares a client's configuration for [`crate::Handshake::client`]. See [`prepare_server`].
pub fn prepare_client(config: &mut ClientConfig, logs_secrets: bool) {
    config.enable_secret_extraction = true;
    config.key_log = key_log(logs_secrets);
    config.enable_early_data = false;
}

fn key_log(logs_secrets: bool) -> Arc<Capture> {
    Arc::new(Capture { file: logs_secrets.then(SecretLog::from_environment).flatten() })
}

/// The versions from this one on.
pub(crate) fn versions_from(min: MinVersion) -> &'static [&'static SupportedProtocolVersion] {
    static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
    match min {
        MinVersion::Tls12 => &BOTH,
        MinVersion::Tls13 => &BOTH[..1],
    }
}
