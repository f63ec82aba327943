//! What the thread needs to know of a certificate: when it is valid, and its identifier.

use instant_acme::CertificateIdentifier;
use rustls::pki_types::{CertificateDer, Der, pem::PemObject as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer as _, ParsedExtension, X509Certificate};

/// The period in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// notBefore.
    pub from: SystemTime,
    /// notAfter.
    pub until: SystemTime,
}

impl Validity {
    /// The validity of the first certificate in a PEM file's content; `None` if there is none, or if it
    /// cannot be read.
    pub(crate) fn of_pem(pem: &[u8]) -> Option<Self> {
        let certificate = CertificateDer::from_pem_slice(pem).ok()?;
        let (_, parsed) = X509Certificate::from_der(&certificate).ok()?;
        let time =
            |seconds: i64| Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).ok()?));
        let validity = parsed.validity();
        Some(Self {
            from: time(validity.not_before.timestamp())?,
            until: time(validity.not_after.timestamp())?,
        })
    }

    /// The length of the period.
    pub(crate) fn lifetime(&self) -> Duration {
        self.until.duration_since(self.from).unwrap_or_default()
    }
}

/// The identifier of the first certificate in a PEM file's content, by which an authority knows it (RFC 9773
/// §4.1); `None` if it does not name its authority's key.
pub(crate) fn identifier_of_pem(pem: &[u8]) -> Option<CertificateIdentifier<'static>> {
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, parsed) = X509Certificate::from_der(&certificate).ok()?;
    let key =
        parsed.iter_extensions().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(identifier) => {
                identifier.key_identifier.as_ref()
            }
            _ => None,
        })?;
    let serial = parsed.tbs_certificate.raw_serial();
    Some(CertificateIdentifier::new(Der::from_slice(key.0), Der::from_slice(serial)).into_owned())
}
