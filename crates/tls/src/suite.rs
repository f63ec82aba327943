//! The cipher suites that the record layer supports, and the differences between them.

use ring::{aead, hkdf};
use rustls::{CipherSuite, ConnectionTrafficSecrets, ProtocolVersion};

/// A protocol version with one of its AEAD suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Suite {
    /// TLS_AES_128_GCM_SHA256. Zero, so that zeros are a valid session: see `sys`.
    Tls13Aes128Gcm = 0,
    /// TLS_AES_256_GCM_SHA384.
    Tls13Aes256Gcm,
    /// TLS_CHACHA20_POLY1305_SHA256.
    Tls13ChaCha20,
    /// TLS 1.2, any key exchange with AES_128_GCM (RFC 5288).
    Tls12Aes128Gcm,
    /// TLS 1.2, any key exchange with AES_256_GCM (RFC 5288).
    Tls12Aes256Gcm,
    /// TLS 1.2, any key exchange with CHACHA20_POLY1305 (RFC 7905).
    Tls12ChaCha20,
}

/// A cipher, in the suites of any version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-GCM with keys of 128 bits.
    Aes128Gcm,
    /// AES-GCM with keys of 256 bits; its hash is SHA-384, whose secrets take longer to derive.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Cipher {
    /// Whether a suite uses this cipher.
    pub(crate) fn is_of(self, suite: CipherSuite) -> bool {
        let part = match self {
            Self::Aes128Gcm => "AES_128_GCM",
            Self::Aes256Gcm => "AES_256_GCM",
            Self::ChaCha20Poly1305 => "CHACHA20_POLY1305",
        };
        suite.as_str().is_some_and(|name| name.contains(part))
    }
}

/// The maximum number of records that one key may seal before it is replaced. AES-GCM's bound is 2^24.5
/// full records (RFC 8446 §5.5); half of rustls' 2^24 leaves time for a peer that reads slowly.
const AES_GCM_RECORDS_MAX: u32 = 1 << 23;

impl Suite {
    /// All suites, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Tls13Aes128Gcm,
        Self::Tls13Aes256Gcm,
        Self::Tls13ChaCha20,
        Self::Tls12Aes128Gcm,
        Self::Tls12Aes256Gcm,
        Self::Tls12ChaCha20,
    ];

    /// The suite of a TLS 1.3 connection; `None` if the record layer does not support it.
    pub fn tls13(suite: CipherSuite) -> Option<Self> {
        Some(match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Self::Tls13Aes128Gcm,
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Self::Tls13Aes256Gcm,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Self::Tls13ChaCha20,
            _ => return None,
        })
    }

    /// The suite of a connection of this version with these keys.
    pub(crate) fn of(
        version: ProtocolVersion,
        suite: CipherSuite,
        secrets: &ConnectionTrafficSecrets,
    ) -> Option<Self> {
        if version == ProtocolVersion::TLSv1_3 {
            return Self::tls13(suite);
        }
        Some(match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { .. } => Self::Tls12Aes128Gcm,
            ConnectionTrafficSecrets::Aes256Gcm { .. } => Self::Tls12Aes256Gcm,
            ConnectionTrafficSecrets::Chacha20Poly1305 { .. } => Self::Tls12ChaCha20,
            _ => return None,
        })
    }

    /// Whether this is a suite of TLS 1.3.
    pub const fn is_tls13(self) -> bool {
        matches!(self, Self::Tls13Aes128Gcm | Self::Tls13Aes256Gcm | Self::Tls13ChaCha20)
    }

    pub(crate) fn aead(self) -> &'static aead::Algorithm {
        match self {
            Self::Tls13Aes128Gcm | Self::Tls12Aes128Gcm => &aead::AES_128_GCM,
            Self::Tls13Aes256Gcm | Self::Tls12Aes256Gcm => &aead::AES_256_GCM,
            Self::Tls13ChaCha20 | Self::Tls12ChaCha20 => &aead::CHACHA20_POLY1305,
        }
    }

    /// The hash of a TLS 1.3 suite; TLS 1.2 derives nothing after its handshake.
    pub(crate) fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Self::Tls13Aes256Gcm => hkdf::HKDF_SHA384,
            _ => hkdf::HKDF_SHA256,
        }
    }

    /// Length in bytes of a traffic secret (TLS 1.3), or of a key with its IV (TLS 1.2).
    pub fn secret_len(self) -> usize {
        match self {
            Self::Tls13Aes128Gcm | Self::Tls13ChaCha20 => 32,
            Self::Tls13Aes256Gcm => 48,
            Self::Tls12Aes128Gcm => 16 + 12,
            Self::Tls12Aes256Gcm | Self::Tls12ChaCha20 => 32 + 12,
        }
    }

    /// Bytes between a record's header and its ciphertext: TLS 1.2's AES-GCM sends half of the nonce.
    pub(crate) const fn explicit_nonce_len(self) -> usize {
        match self {
            Self::Tls12Aes128Gcm | Self::Tls12Aes256Gcm => 8,
            _ => 0,
        }
    }

    /// The maximum number of records that one key seals. ChaCha20-Poly1305 has no such bound below the
    /// largest sequence number (RFC 8446 §5.5), which has 32 bits in this crate: 32 TiB of full
    /// records.
    pub(crate) const fn records_max(self) -> u32 {
        match self {
            Self::Tls13ChaCha20 | Self::Tls12ChaCha20 => 1 << 31,
            _ => AES_GCM_RECORDS_MAX,
        }
    }
}
