//! The flags of commands that connect to `https` URLs.

use pollux_tls::ClientTrust;
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
