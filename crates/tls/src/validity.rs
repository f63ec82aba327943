//! The period in which a certificate is valid.

use rustls::pki_types::{CertificateDer, UnixTime};
use std::path::PathBuf;
use webpki::{EndEntityCert, Error, KeyUsage};

/// A certificate that clients refuse at present because of its dates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideValidity {
    /// The file with the certificate.
    pub file: PathBuf,
    /// What is wrong.
    pub reason: ValidityFault,
}

/// Why a certificate is not valid at a time (RFC 5280 §4.1.2.5). The times are seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValidityFault {
    /// notAfter is over.
    ExpiredAt(u64),
    /// notBefore is to come.
    ValidFrom(u64),
}

impl ValidityFault {
    /// The fault of a certificate at `now`; `None` if it is valid then, or cannot be read.
    pub(crate) fn of(certificate: &CertificateDer<'_>, now: UnixTime) -> Option<Self> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        // webpki looks at the dates first. Without authorities it always fails, with another error if they are right.
        let outcome =
            certificate.verify_for_usage(&[], &[], &[], now, KeyUsage::server_auth(), None, None);
        match outcome.err()? {
            Error::CertExpired { not_after, .. } => Some(Self::ExpiredAt(not_after.as_secs())),
            Error::CertNotValidYet { not_before, .. } => {
                Some(Self::ValidFrom(not_before.as_secs()))
            }
            _ => None,
        }
    }
}
