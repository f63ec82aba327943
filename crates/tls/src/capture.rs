//! The traffic secrets of a handshake, from rustls' key log.
//!
//! A [`rustls::KeyLog`] belongs to a configuration, which all threads share, but it is called inside
//! `process_tls_records`, on the thread that drives the handshake. So the secrets of the current
//! handshake are passed through a thread-local variable.

use crate::{keys::Secret, secret_log::SecretLog};
use rustls::KeyLog;
use std::cell::RefCell;

const CLIENT_HANDSHAKE: &str = "CLIENT_HANDSHAKE_TRAFFIC_SECRET";

/// The traffic secrets of a TLS 1.3 connection.
#[derive(Default)]
pub(crate) struct TrafficSecrets {
    /// For the client's messages of the handshake.
    pub(crate) client_handshake: Option<Secret>,
    /// For data from the client.
    pub(crate) client: Option<Secret>,
    /// For data from the server.
    pub(crate) server: Option<Secret>,
}

impl TrafficSecrets {
    const NONE: Self = Self { client_handshake: None, client: None, server: None };

    /// Adds the secrets that were reported later.
    pub(crate) fn add(&mut self, later: Self) {
        let Self { client_handshake, client, server } = later;
        self.client_handshake = client_handshake.or(self.client_handshake.take());
        self.client = client.or(self.client.take());
        self.server = server.or(self.server.take());
    }
}

thread_local! {
    static CAPTURED: RefCell<TrafficSecrets> = const { RefCell::new(TrafficSecrets::NONE) };
}

/// Takes the secrets that the last call of `process_tls_records` on this thread reported.
pub(crate) fn take() -> TrafficSecrets {
    CAPTURED.with_borrow_mut(std::mem::take)
}

/// The key log of each configuration of this crate.
#[derive(Debug)]
pub(crate) struct Capture {
    /// Also writes to the file that SSLKEYLOGFILE names.
    pub(crate) file: Option<SecretLog>,
}

impl KeyLog for Capture {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        CAPTURED.with_borrow_mut(|captured| match label {
            CLIENT_HANDSHAKE => captured.client_handshake = Some(Secret::new(secret)),
            "CLIENT_TRAFFIC_SECRET_0" => captured.client = Some(Secret::new(secret)),
            "SERVER_TRAFFIC_SECRET_0" => captured.server = Some(Secret::new(secret)),
            _ => {}
        });
        if let Some(file) = &self.file {
            file.log(label, client_random, secret);
        }
    }

    fn will_log(&self, label: &str) -> bool {
        let is_traffic = matches!(
            label,
            CLIENT_HANDSHAKE | "CLIENT_TRAFFIC_SECRET_0" | "SERVER_TRAFFIC_SECRET_0"
        );
        is_traffic || self.file.is_some()
    }
}
