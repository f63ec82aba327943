//! Certificates by ACME (RFC 8555): orders and renews them in one thread beside a server.
//!
//! # Guide
//!
//! 1. [`Settings`] name the host names, the authority's directory and the state directory.
//! 2. [`StateDir::create`] creates the state directory; only its owner can read it.
//! 3. [`Renewer::start`] starts the thread. It orders a certificate for each name that has none, and renews each
//!    certificate in the window that the authority suggests (RFC 9773); if there is none, when two thirds of its
//!    lifetime are over.
//! 4. The server reads the certificates from [`StateDir::certificate`] and the answers to the authority's
//!    challenges from [`StateDir::challenges`], whenever it needs them.
//!
//! # Files are the interface
//!
//! Everything that the thread produces is a file in the state directory: account key, certificates, answers to
//! challenges. So workers that are threads, workers that are processes, and the two processes of a live upgrade
//! find them in the same way, and a restart finds everything again. Each file is written under another name,
//! synced and renamed: a reader sees the old file or the new one.
//!
//! Each directory of an authority has its own folder, so a change from a staging directory to the real one never
//! leaves certificates for trials in use.
//!
//! # Failures
//!
//! No failure touches the certificate in use. The next attempt comes after a delay that doubles up to
//! [`Timing::retry_max`]. Before an order begins, space for the certificate is reserved on the disk: authorities
//! limit how many certificates one name gets per week, so none should be lost because the disk is full.
//!
//! Only the process that holds the lock file of the folder orders.

/// The README's example is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod challenge;
mod order;
mod renewer;
mod schedule;
mod settings;
mod state;
mod status;
mod validity;

pub use challenge::{HTTP_PREFIX, http_answer};
pub use renewer::Renewer;
pub use settings::{
    CONTACT_BYTES_MAX, Challenge, NAMES_MAX, Settings, SettingsError, Timing, check_email,
    check_name, directory_url,
};
pub use state::{Challenges, Lock, StateDir};
pub use status::{CertificateStatus, Status};
pub use validity::Validity;
