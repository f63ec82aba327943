//! The flags of commands that connect to `https` URLs.

use clap::ValueEnum;
use pollux_load::tls::TlsOptions;
use pollux_tls::{Cipher, ClientTrust};
use std::path::PathBuf;

/// Which certificates are accepted.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct TrustArgs {
    /// Trust the authorities in this PEM file instead of the system's (https URLs)
    #[arg(long, value_name = "FILE", conflicts_with = "insecure", help_heading = "TLS")]
    cacert: Option<PathBuf>,
    /// Accept every certificate: for trials, since anybody can pretend to be the server
    #[arg(long, short = 'k', help_heading = "TLS")]
    insecure: bool,
}

impl TrustArgs {
    /// Returns the certificates to trust.
    pub(crate) fn trust(&self) -> ClientTrust {
        match &self.cacert {
            _ if self.insecure => ClientTrust::Anybody,
            Some(path) => ClientTrust::File(path.clone()),
            None => ClientTrust::System,
        }
    }
}

/// How `pollux load` makes TLS connections.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct TlsLoadArgs {
    #[command(flatten)]
    trust: TrustArgs,
    /// New connections resume earlier TLS sessions with the server's tickets [default: each makes a
    /// full handshake]
    #[arg(long, help_heading = "TLS")]
    tls_resume: bool,
    /// Offer only this cipher, in TLS 1.3 and 1.2 [default: all three; the server chooses]
    #[arg(long, value_enum, value_name = "NAME", help_heading = "TLS")]
    tls_cipher: Option<CipherName>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CipherName {
    #[value(name = "aes-128-gcm")]
    Aes128Gcm,
    #[value(name = "aes-256-gcm")]
    Aes256Gcm,
    #[value(name = "chacha20-poly1305")]
    ChaCha20Poly1305,
}

impl TlsLoadArgs {
    /// Returns the options of the generator.
    pub(crate) fn options(&self) -> TlsOptions {
        let cipher = self.tls_cipher.map(|name| match name {
            CipherName::Aes128Gcm => Cipher::Aes128Gcm,
            CipherName::Aes256Gcm => Cipher::Aes256Gcm,
            CipherName::ChaCha20Poly1305 => Cipher::ChaCha20Poly1305,
        });
        TlsOptions { trust: self.trust.trust(), resumes: self.tls_resume, cipher }
    }
}
