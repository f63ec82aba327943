//! Facts of a ClientHello that decide which alert a client gets, and that rustls does not show.

use super::alerts::{Fault, HANDSHAKE_FAILURE, INAPPROPRIATE_FALLBACK, PROTOCOL_VERSION};
use rustls::PeerIncompatible;

const CLIENT_HELLO: u8 = 1;
/// TLS_FALLBACK_SCSV (RFC 7507): the client has tried a newer version before, and failed.
const FALLBACK_SUITE: [u8; 2] = [0x56, 0x00];
const SSL3: [u8; 2] = [3, 0];
const TLS13: [u8; 2] = [3, 4];

const SUPPORTED_GROUPS: u16 = 10;
const PRE_SHARED_KEY: u16 = 41;
const EARLY_DATA: u16 = 42;
const SUPPORTED_VERSIONS: u16 = 43;
const KEY_SHARE: u16 = 51;
const RENEGOTIATION_INFO: u16 = 0xff01;

/// See the module.
#[derive(Clone, Copy, Default)]
pub(super) struct ClientHello {
    /// Whether legacy_version is SSL 3.0 or older.
    is_ssl: bool,
    offers_tls13: bool,
    has_groups: bool,
    has_shares: bool,
    has_psk: bool,
    is_fallback: bool,
    renegotiates: bool,
    /// Whether early data may follow: until a message with the key of the handshake arrives.
    pub(super) may_send_early_data: bool,
}

impl ClientHello {
    /// Reads the content of a record. `None` if it is not one whole hello: rustls then decides alone, and reports what
    /// is malformed.
    pub(super) fn read(content: &[u8]) -> Option<Self> {
        let (&[kind, high, middle, low], body) = content.split_first_chunk()?;
        let len = u32::from_be_bytes([0, high, middle, low]) as usize;
        if kind != CLIENT_HELLO || len != body.len() {
            return None;
        }
        let mut hello = Self::default();
        let mut body = Reader(body);
        hello.is_ssl = body.take(2)? <= &SSL3[..];
        // The random, then the session.
        body.take(32)?;
        body.vector8()?;
        hello.is_fallback = body.vector16()?.chunks_exact(2).any(|suite| suite == FALLBACK_SUITE);
        // Compression.
        body.vector8()?;
        if body.0.is_empty() {
            return Some(hello);
        }
        let mut extensions = Reader(body.vector16()?);
        while !extensions.0.is_empty() {
            let kind = extensions.number16()?;
            let content = extensions.vector16()?;
            match kind {
                SUPPORTED_GROUPS => hello.has_groups = true,
                PRE_SHARED_KEY => hello.has_psk = true,
                EARLY_DATA => hello.may_send_early_data = true,
                SUPPORTED_VERSIONS => {
                    let mut versions = Reader(content).vector8()?.chunks_exact(2);
                    hello.offers_tls13 = versions.any(|version| version == TLS13);
                }
                KEY_SHARE => hello.has_shares = true,
                RENEGOTIATION_INFO => hello.renegotiates = content.len() > 1,
                _ => {}
            }
        }
        Some(hello)
    }

    /// A fault that rustls ignores, because it knows neither renegotiation nor a version before TLS 1.2.
    pub(super) fn fault(self) -> Option<Fault> {
        if self.is_ssl {
            // RFC 8446 appendix D.5, also if supported_versions has TLS 1.3.
            return Some(Fault::Refused(PROTOCOL_VERSION, "a hello of SSL 3.0 or older"));
        }
        if self.offers_tls13 {
            return None;
        }
        if self.is_fallback {
            return Some(Fault::Refused(
                INAPPROPRIATE_FALLBACK,
                "the client has fallen back to TLS 1.2 (RFC 7507), and this server knows TLS 1.3",
            ));
        }
        if self.renegotiates {
            return Some(Fault::Refused(
                HANDSHAKE_FAILURE,
                "the first hello of a connection renegotiates (RFC 5746)",
            ));
        }
        None
    }

    /// Whether the reason for which rustls refuses the hello is that it lacks an extension that TLS 1.3 requires (RFC
    /// 8446 §9.2).
    pub(super) fn lacks_extension(self, reason: &PeerIncompatible) -> bool {
        let lacks = match reason {
            PeerIncompatible::SignatureAlgorithmsExtensionRequired => !self.has_psk,
            PeerIncompatible::NoKxGroupsInCommon => {
                !self.has_groups && (self.has_shares || !self.has_psk)
            }
            _ => false,
        };
        self.offers_tls13 && lacks
    }
}

/// The rest of some bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number16(&mut self) -> Option<u16> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*number))
    }

    /// Bytes behind a length of one byte.
    fn vector8(&mut self) -> Option<&'a [u8]> {
        let len = *self.take(1)?.first()?;
        self.take(len.into())
    }

    /// Bytes behind a length of two bytes.
    fn vector16(&mut self) -> Option<&'a [u8]> {
        let len = self.number16()?;
        self.take(len.into())
    }
}
