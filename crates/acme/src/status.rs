//! Counts of certificate orders and the expiry of certificates, for metrics.

use crate::Validity;
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::UNIX_EPOCH,
};

/// The outcomes of certificate orders since the start, and the stored certificates.
#[derive(Debug)]
pub struct Status {
    succeeded: AtomicU64,
    failed: AtomicU64,
    certificates: Mutex<Vec<CertificateStatus>>,
}

/// One name's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateStatus {
    /// The host name.
    pub name: String,
    /// The expiry of the stored certificate, as a UNIX time; `None` while none is stored.
    pub expires_unix_s: Option<u64>,
}

impl Status {
    pub(crate) fn new(names: &[String]) -> Self {
        let certificate =
            |name: &String| CertificateStatus { name: name.clone(), expires_unix_s: None };
        Self {
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            certificates: Mutex::new(names.iter().map(certificate).collect()),
        }
    }

    /// Orders that resulted in a certificate.
    pub fn succeeded(&self) -> u64 {
        self.succeeded.load(Relaxed)
    }

    /// Orders that failed.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// The certificates, in the order of the names.
    pub fn certificates(&self) -> Vec<CertificateStatus> {
        self.certificates.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn add_success(&self) {
        self.succeeded.fetch_add(1, Relaxed);
    }

    pub(crate) fn add_failure(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    pub(crate) fn set_validity(&self, index: usize, validity: Option<Validity>) {
        let mut all = self.certificates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(certificate) = all.get_mut(index) {
            certificate.expires_unix_s = validity
                .and_then(|validity| validity.until.duration_since(UNIX_EPOCH).ok())
                .map(|time| time.as_secs());
        }
    }
}
