//! TLS for a thread's connections: seals output and opens input.
//!
//! The record layer is `pollux-tls`: after its handshake an idle connection is one table entry of 104
//! bytes, so that a million can be held.

mod io;
mod report;

pub use report::TlsReport;

use crate::target::Url;
use anyhow::{Context, Result, ensure};
use pollux_tls::{
    Cipher, ClientSettings, ClientTrust, Handshake, HandshakeError, KeyCache, MinVersion,
    ServerName, SessionTable, TicketReceiver, Trust,
};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// The number of connections of each thread whose keys are kept, for those that are busy.
const KEY_SLOTS: usize = 1024;

/// The most session tickets that a thread stores. A ticket is used once (RFC 8446 appendix C.4), so this is
/// the number of connections that may be opened at the same time and still all be resumed.
const TICKETS_MAX: usize = 4096;

/// The most bytes that are sealed for one send(2).
const OUTPUT_BYTES: usize = 64 << 10;

/// The TLS options of `https` URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The certificates that are accepted.
    pub trust: ClientTrust,
    /// Handshakes resume earlier sessions with the server's tickets.
    pub resumes: bool,
    /// The only cipher that is offered; `None` offers all.
    pub cipher: Option<Cipher>,
}

impl TlsOptions {
    /// Refuses options if none of `urls` is `https`, and a file of authorities that cannot be used.
    ///
    /// # Errors
    /// An error that names the flag.
    pub fn check<'a>(&self, mut urls: impl Iterator<Item = &'a Url>) -> Result<()> {
        let trust = match &self.trust {
            ClientTrust::System => None,
            ClientTrust::File(_) => Some("--cacert"),
            ClientTrust::Anybody => Some("--insecure"),
        };
        let resumes = self.resumes.then_some("--tls-resume");
        let cipher = self.cipher.map(|_| "--tls-cipher");
        if let Some(flag) = trust.or(resumes).or(cipher) {
            let is_used = urls.any(|url| url.is_tls);
            ensure!(is_used, "{flag} is about TLS: the URL must begin with https://");
        }
        if let ClientTrust::File(_) = &self.trust {
            self.trust.read().context("--cacert")?;
        }
        Ok(())
    }
}

/// The TLS settings for one server, made before the threads start.
#[derive(Clone, Debug)]
pub(crate) struct TlsPlan {
    settings: ClientSettings,
    options: TlsOptions,
    host: String,
    name: ServerName<'static>,
}

impl TlsPlan {
    /// Returns the settings for `url`; `None` unless it is `https`.
    ///
    /// # Errors
    /// The authorities cannot be read; the host is not a valid name for a certificate.
    pub(crate) fn new(options: &TlsOptions, url: &Url) -> Result<Option<Self>> {
        if !url.is_tls {
            return Ok(None);
        }
        let trust = match &options.trust {
            ClientTrust::File(_) => options.trust.read().context("--cacert")?,
            // rustls' verifier and its roots are shared by all threads.
            ClientTrust::System | ClientTrust::Anybody => options.trust.read()?,
        };
        let name = ServerName::try_from(url.host.clone())
            .with_context(|| format!("{url}: the host is no name that a certificate can have"))?;
        Ok(Some(Self {
            settings: settings(trust, options),
            options: options.clone(),
            host: url.host.clone(),
            name,
        }))
    }

    /// The connections of one thread, which resumes its own sessions.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub(crate) fn connections(&self) -> Result<TlsConnections> {
        Ok(TlsConnections {
            config: self.settings.build()?,
            plan: self.clone(),
            sessions: SessionTable::default(),
            keys: KeyCache::new(KEY_SLOTS),
            output: vec![0; OUTPUT_BYTES].into(),
            may_have_more: false,
        })
    }
}

fn settings(trust: Trust, options: &TlsOptions) -> ClientSettings {
    ClientSettings {
        trust,
        min_version: MinVersion::Tls12,
        alpn: vec![b"http/1.1".to_vec()],
        cipher: options.cipher,
        tickets_max: if options.resumes { TICKETS_MAX } else { 0 },
        logs_secrets: false,
    }
}

/// The TLS connections of one thread, by descriptor.
pub(crate) struct TlsConnections {
    config: Arc<pollux_tls::ClientConfig>,
    plan: TlsPlan,
    sessions: SessionTable<Extra>,
    keys: KeyCache,
    output: Box<[u8]>,
    /// Unread input of the last receive may be left in the socket.
    pub(crate) may_have_more: bool,
}

/// Data that a connection needs besides its session, only as long as it is needed.
#[derive(Default)]
struct Extra {
    handshake: Option<Box<Handshake>>,
    /// Part of a record.
    input: Vec<u8>,
    /// Records that the socket has not accepted yet.
    output: Vec<u8>,
    /// The number of bytes of the next send that are already sealed: they are in `output` or have been
    /// sent.
    sealed_ahead: usize,
    /// The receiver of the server's first tickets.
    tickets: Option<Box<TicketReceiver>>,
}

impl Extra {
    fn is_empty(&self) -> bool {
        self.handshake.is_none()
            && self.input.is_empty()
            && self.output.is_empty()
            && self.sealed_ahead == 0
            && self.tickets.is_none()
    }
}

/// A complete handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandshakeEnd {
    /// An earlier session was resumed.
    pub(crate) is_resumed: bool,
}

/// The reason why TLS ended a connection; inside the [`std::io::Error`] of the call that failed.
#[derive(Debug)]
pub(crate) struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

impl TlsError {
    fn of_handshake(error: &HandshakeError, plan: &TlsPlan) -> std::io::Error {
        let trust = &plan.options.trust;
        Self::into_io(trust.explain(error, &plan.host, "--cacert", Some("--insecure")))
    }

    fn into_io(reason: String) -> std::io::Error {
        std::io::Error::other(Self(reason))
    }
}

/// The number of handshakes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakeCounts {
    /// With certificates and their verification.
    pub full: u64,
    /// Resumed from an earlier session.
    pub resumed: u64,
}

impl HandshakeCounts {
    /// Counts one handshake.
    pub(crate) fn add(&mut self, end: HandshakeEnd) {
        if end.is_resumed {
            self.resumed += 1;
        } else {
            self.full += 1;
        }
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: Self) {
        self.full += other.full;
        self.resumed += other.resumed;
    }
}
