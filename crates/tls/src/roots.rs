//! The authorities that a client trusts: the system's, those of a file, or none.

use crate::{ConfigError, HandshakeError, Trust, error::webpki_error, read_roots};
use rustls::RootCertStore;
use std::{path::PathBuf, sync::Arc};

/// The choice of trusted authorities on a client's command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientTrust {
    /// The authorities that the system trusts ([`system_roots`]).
    #[default]
    System,
    /// The authorities in this PEM file.
    File(PathBuf),
    /// Every certificate is accepted.
    Anybody,
}

impl ClientTrust {
    /// Reads the authorities.
    ///
    /// # Errors
    /// The file cannot be read or contains no certificate; the system has none.
    pub fn read(&self) -> Result<Trust, ConfigError> {
        Ok(match self {
            Self::System => Trust::Roots(Arc::new(system_roots()?)),
            Self::File(path) => Trust::Roots(Arc::new(read_roots(path)?)),
            Self::Anybody => Trust::Anybody,
        })
    }

    /// Explains why a handshake with `host` failed, in one sentence with the remedy. `ca_flag` and
    /// `insecure_flag` are the command's flags for an authority and for accepting every certificate.
    pub fn explain(
        &self,
        error: &HandshakeError,
        host: &str,
        ca_flag: &str,
        insecure_flag: Option<&str>,
    ) -> String {
        if !error.is_certificate() {
            return format!("{host}: {error}");
        }
        let HandshakeError::Tls(reason) = error else { return error.to_string() };
        let or_insecure = insecure_flag
            .map(|flag| format!(", or accept every certificate with {flag}"))
            .unwrap_or_default();
        // A certificate as `openssl req -x509` makes it; no file of authorities helps.
        if let Some(webpki::Error::CaUsedAsEndEntity) = webpki_error(reason) {
            return format!(
                "the certificate of {host} is that of an authority (CA:TRUE), which is not accepted \
                 as a server's: make one with `-addext basicConstraints=critical,CA:FALSE`\
                 {or_insecure}"
            );
        }
        format!(
            "the certificate of {host} is not trusted ({reason}): give its authority with \
             {ca_flag} FILE{or_insecure}"
        )
    }
}

/// The authorities that the system trusts: those of the files that the environment variables
/// SSL_CERT_FILE and SSL_CERT_DIR name, or otherwise of this system's directories (`/etc/ssl/certs` on
/// many). Certificates that cannot be parsed are ignored, as in other programs.
///
/// # Errors
/// No authority was found.
pub fn system_roots() -> Result<RootCertStore, ConfigError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let reason = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(ConfigError::new(format!(
            "this system has no trusted certificates{reason}: install the package \
             ca-certificates, or name a PEM file in SSL_CERT_FILE"
        )));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{CertificateError, Error, OtherError};

    #[test]
    fn a_certificate_that_is_not_trusted_names_the_flags() {
        let error = HandshakeError::Tls(Error::InvalidCertificate(CertificateError::Expired));
        let explain = |flag| ClientTrust::System.explain(&error, "h", "--cacert", flag);
        assert!(explain(None).ends_with("give its authority with --cacert FILE"));
        assert!(explain(Some("--insecure")).ends_with("accept every certificate with --insecure"));
    }

    #[test]
    fn an_authoritys_own_certificate_is_named_as_the_fault() {
        let reason =
            CertificateError::Other(OtherError(Arc::new(webpki::Error::CaUsedAsEndEntity)));
        let error = HandshakeError::Tls(Error::InvalidCertificate(reason));
        let text = ClientTrust::System.explain(&error, "h", "--cacert", Some("--insecure"));
        assert!(text.contains("CA:FALSE`, or accept every certificate with --insecure"), "{text}");
        assert!(!text.contains("--cacert"), "{text}");
    }
}
