//! The settings of TLS.

use pollux_tls::{CertificateFiles, MinVersion};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, sync::Arc};

/// TLS on all listeners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificates and keys. A client gets the certificate with the requested name, otherwise the first
    /// one. If there are none at all, a self-signed certificate is created at the start, for trials.
    pub certificates: Vec<CertificateFiles>,
    /// The names whose certificates are ordered by ACME, in addition to those of `certificates`.
    pub acme: Option<Arc<pollux_acme::Settings>>,
    /// The oldest version that is accepted.
    pub min_version: MinVersion,
    /// Whether the server requests certificates from clients.
    pub client_certificates: ClientCertificates,
    /// The names of the self-signed certificate.
    pub self_signed_names: Vec<String>,
    /// Whether to write the secrets of each connection to the file that SSLKEYLOGFILE names.
    pub logs_secrets: bool,
    /// Whether this process or the kernel encrypts the output.
    pub kernel: KernelTlsMode,
}

/// Whether the kernel encrypts what is sent (kernel TLS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KernelTlsMode {
    /// This process encrypts everything.
    #[default]
    Off,
    /// The kernel encrypts what a connection sends, from its first long file on.
    Send,
}

/// Whether the server requests certificates from clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// No client certificate is requested.
    #[default]
    None,
    /// A client certificate is requested, and the client may decline; the authorities are in this
    /// PEM file.
    Optional(PathBuf),
    /// Clients without a certificate are refused.
    Required(PathBuf),
}
