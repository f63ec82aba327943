//! Flags about TLS.

use super::value;
use clap::{ArgAction, ValueEnum};
use pollux_server::config::{
    Config, HSTS_ALONE, KernelTlsMode, Listen, Text, Time, TlsVersion, TrialCertificate,
};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(next_help_heading = "TLS")]
pub(super) struct TlsArgs {
    /// Serve HTTPS with the certificate chain in FILE (PEM); may be repeated, each with its --tls-key.
    /// A client gets the certificate that has the name it requests (wildcards count), else the first.
    /// Files that change are read again
    #[arg(long, value_name = "FILE", action = ArgAction::Append)]
    tls_cert: Vec<PathBuf>,

    /// The private key of the --tls-cert at the same place (PEM) [default: in the file of the
    /// certificate]
    #[arg(long, value_name = "FILE", action = ArgAction::Append, requires = "tls_cert")]
    tls_key: Vec<PathBuf>,

    /// Serve HTTPS with a certificate made for this run (self-signed), for trials; its fingerprint is
    /// logged
    #[arg(long, value_name = "KIND", conflicts_with = "tls_cert")]
    tls: Option<KindArg>,

    /// The oldest version of TLS that is accepted: 1.2 or 1.3 [default: 1.2]
    #[arg(long, value_name = "VERSION")]
    tls_min: Option<TlsVersion>,

    /// Request from clients a certificate of an authority in FILE (PEM)
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,

    /// With --tls-client-ca: serve clients without a certificate as well
    #[arg(long)]
    tls_client_optional: Option<bool>,

    /// Tell browsers to use HTTPS alone for this time (Strict-Transport-Security) [default: off; without
    /// a value: 1 year]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true,
          default_missing_value = HSTS_ALONE)]
    hsts: Option<Time>,

    /// Listen for plain HTTP on ADDRESS as well, and send each client to the same URL over HTTPS (308)
    #[arg(long, value_name = "ADDRESS")]
    redirect_http: Option<Text<Listen>>,

    /// Write the secrets of all connections to the file that the environment variable SSLKEYLOGFILE
    /// names, for Wireshark. A reader of that file can decrypt the connections
    #[arg(long)]
    tls_key_log: Option<bool>,

    /// Let the kernel encrypt what a connection sends, from its first file of more than 256 KiB on, so that files
    /// need not be copied (send); off: this process encrypts everything [default: off]
    #[arg(long, value_name = "MODE")]
    kernel_tls: Option<KernelTlsArg>,
}

#[derive(Clone, Copy, ValueEnum)]
enum KernelTlsArg {
    Off,
    Send,
}

impl From<KernelTlsArg> for KernelTlsMode {
    fn from(arg: KernelTlsArg) -> Self {
        match arg {
            KernelTlsArg::Off => Self::Off,
            KernelTlsArg::Send => Self::Send,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum KindArg {
    SelfSigned,
}

impl TlsArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        if !self.tls_cert.is_empty() {
            // The keys in the file belong to the certificates in the file, so they are replaced,
            // too.
            config.tls_key = self.tls_key;
            config.tls_cert = self.tls_cert;
            config.tls = None;
        }
        if let Some(KindArg::SelfSigned) = self.tls {
            config.tls_cert.clear();
            config.tls_key.clear();
            config.tls = Some(TrialCertificate::SelfSigned);
        }
        value::set_some(&mut config.tls_min, self.tls_min);
        value::set_some(&mut config.tls_client_ca, self.tls_client_ca);
        value::set(&mut config.tls_client_optional, self.tls_client_optional);
        value::set_some(&mut config.hsts, self.hsts);
        value::set_some(&mut config.redirect_http, self.redirect_http);
        value::set(&mut config.tls_key_log, self.tls_key_log);
        value::set(&mut config.kernel_tls, self.kernel_tls.map(Into::into));
    }
}
