//! TLS without I/O, for connections that are mostly idle: handshakes by rustls, then a record layer whose
//! idle connections own neither a buffer nor an expanded key.
//!
//! # Guide
//!
//! 1. [`prepare_server`] adapts a rustls configuration, [`provider`] is the cryptography.
//! 2. A [`Handshake`] takes received bytes and returns the bytes to send, until it is
//!    [complete](Progress::Complete). [`Handshake::finish`] drops rustls' connection and leaves a [`Session`].
//! 3. [`Session::open`] decrypts received records in place, [`Session::seal`] encrypts data to send.
//!    Both need the session's [`Keys`], which a [`KeyCache`] derives or has stored.
//! 4. An idle connection consists of its `Session`, 96 bytes, and needs no further call. A [`SessionTable`]
//!    holds the sessions of a worker, in pages that neither a core dump nor a forked child contains.
//!
//! Linux can seal the bytes that a socket sends (kernel TLS): [`Session::sending_keys`] returns the
//! keys for it, and after [`Session::give_sending_to_kernel`] this crate seals no more records on the
//! connection.
//!
//! [`ServerSettings`] and [`ClientSettings`] make whole configurations, with [`Certificates`] that are chosen
//! by name and read again when their files change, and [`TicketKeys`] that rotate.
//!
//! ```
//! use pollux_tls::{Content, Direction, Role, Session, Suite};
//!
//! // Two ends of one connection; a handshake would have left them.
//! let (a, b) = (Direction { secret: &[1; 32], sequence: 0 }, Direction { secret: &[2; 32], sequence: 0 });
//! let mut client = Session::new(Suite::Tls13Aes128Gcm, Role::Client, &a, &b);
//! let mut server = Session::new(Suite::Tls13Aes128Gcm, Role::Server, &b, &a);
//!
//! let mut keys = client.derive_keys();
//! let mut records = [0; 256];
//! let sealing = client.seal(&mut keys, b"GET / HTTP/1.1\r\n\r\n", &mut records)?;
//!
//! let mut keys = server.derive_keys();
//! let received = &mut records[..sealing.written];
//! let opening = server.open(&mut keys, received)?;
//! let Content::Data(range) = opening.content else { panic!() };
//! assert_eq!(&received[range], b"GET / HTTP/1.1\r\n\r\n");
//! # Ok::<(), pollux_tls::Error>(())
//! ```
//!
//! # The end of a stream
//!
//! [`Content::Closed`] is the peer's close_notify: the peer sends no more. An end of the stream without
//! it is a truncation, which an attacker can cause; a caller that depends on the end of the stream must
//! distinguish the two ([`Session::has_received_close`]). This end announces its own end with
//! [`Session::seal_close`]. After an error, [`Session::seal_alert`] tells the peer the reason.
//!
//! # Secrets
//!
//! - A nonce is the IV with the sequence number added in. Numbers only grow, a [`Session`] cannot be copied,
//!   and [`Session::seal`] panics rather than use one twice, in release builds too.
//! - Secrets are zeroed when dropped. ring cannot zero a key; the cache overwrites the keys of a closed
//!   connection with other keys.
//! - No branch of this crate depends on a secret: it branches on lengths, types and sequence numbers,
//!   all of which an observer sees. The exception is the padding of a record: the search for its end
//!   runs after the record was authenticated, as in every implementation (RFC 8446 §5.4). A peer that
//!   pads can thus measure the time of that search for its own records only.
//! - Only a [`SessionTable`] is excluded from core dumps. Expanded keys, handshakes, certificates and ticket
//!   keys are on the heap: a program that may dump core excludes all of its memory (core(5),
//!   `coredump_filter`).
//! - After a fork, both processes would have the same sessions, and would use nonces twice: a
//!   [`SessionTable`] is wiped in the child. A [`Session`] that is stored elsewhere is not.

mod capture;
mod certificates;
mod client;
mod config;
mod error;
mod handshake;
mod kernel;
mod key_cache;
mod keys;
mod open;
mod operator_file;
mod parked;
mod pem_file;
mod post_handshake;
mod record;
mod roots;
mod seal;
mod secret_log;
mod server;
mod session;
mod stored_secrets;
mod suite;
mod sys;
mod table;
mod ticket_store;
mod tickets;
mod validity;

pub use certificates::{
    CERTIFICATES_MAX, CertificateFiles, CertificateSource, Certificates, RELOAD_INTERVAL, Reload,
};
pub use client::{ClientSettings, Trust};
pub use config::{prepare_client, prepare_server, provider};
pub use error::{ConfigError, Error};
pub use handshake::{
    HANDSHAKE_BYTES_MAX, HANDSHAKE_TOTAL_MAX, Handshake, HandshakeError, HandshakeResult, Progress,
    TicketReceiver,
};
pub use kernel::{ControlMessage, KERNEL_RECORD_MIN, SendingKeys};
pub use key_cache::KeyCache;
pub use keys::Keys;
pub use open::{Content, OpenedRecord};
pub use operator_file::read_operator_file;
pub use parked::PARKED_MAX;
pub use record::{HEADER_LEN, OVERHEAD_MAX, PLAINTEXT_MAX, RECORD_MAX};
pub use roots::{ClientTrust, system_roots};
pub use rustls::{ClientConfig, pki_types::ServerName};
pub use seal::{ALERT_MAX, CONTROL_RECORD_MAX, SMALL_RECORD_BYTES, SMALL_RECORDS, SealProgress};
pub use secret_log::check_secret_log;
pub use server::{
    ACME_TLS_ALPN, ClientAuth, MinVersion, ServerSettings, fingerprint, read_roots, self_signed,
    self_signed_pem,
};
pub use session::{
    DATA_PER_KEY_UPDATE, Direction, EMPTY_RECORDS_MAX, KEY_UPDATES_WITHOUT_DATA_MAX, Role, Session,
};
pub use suite::{Cipher, Suite};
pub use table::SessionTable;
pub use tickets::{TICKET_PERIOD_S, TicketKeys};
pub use validity::{OutsideValidity, ValidityFault};
