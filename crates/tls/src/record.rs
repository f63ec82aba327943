//! The parts of a record that both directions share.

/// The length of a record's header in bytes: type (1), version (2), length (2).
pub const HEADER_LEN: usize = 5;
/// The most plaintext that one record carries (RFC 8446 §5.1).
pub const PLAINTEXT_MAX: usize = 1 << 14;
/// The most bytes that TLS 1.3 may add to a plaintext: inner type, padding and tag (RFC 8446 §5.2).
pub(crate) const EXPANSION_MAX_TLS13: usize = 256;
/// The most bytes that TLS 1.2 may add to a plaintext (RFC 5246 §6.2.3).
pub(crate) const EXPANSION_MAX_TLS12: usize = 2048;
/// The longest record that is received after a handshake, with its header. The longest record of TLS
/// 1.2 is shorter, see [`OVERHEAD_MAX`].
pub const RECORD_MAX: usize = HEADER_LEN + PLAINTEXT_MAX + EXPANSION_MAX_TLS13;
/// The most bytes that this crate adds when it seals a plaintext: header, explicit nonce or inner type,
/// and tag.
pub const OVERHEAD_MAX: usize = HEADER_LEN + 8 + TAG_LEN;
/// The length of the tag of every supported AEAD in bytes.
pub(crate) const TAG_LEN: usize = 16;

/// The type of a record (RFC 8446 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentType {
    Alert,
    Handshake,
    ApplicationData,
}

impl ContentType {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            21 => Self::Alert,
            22 => Self::Handshake,
            23 => Self::ApplicationData,
            _ => return None,
        })
    }

    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Self::Alert => 21,
            Self::Handshake => 22,
            Self::ApplicationData => 23,
        }
    }
}

/// Encodes the header of a record whose body has `len` bytes.
pub(crate) fn header(kind: ContentType, len: usize) -> [u8; HEADER_LEN] {
    let [high, low] = (len as u16).to_be_bytes();
    [kind.to_byte(), 3, 3, high, low]
}

/// Encodes the additional data that TLS 1.2 authenticates (RFC 5246 §6.2.3.3).
pub(crate) fn additional_data_tls12(
    sequence: u64,
    kind: u8,
    version: [u8; 2],
    len: usize,
) -> [u8; 13] {
    let mut data = [0; 13];
    data[..8].copy_from_slice(&sequence.to_be_bytes());
    data[8] = kind;
    data[9..11].copy_from_slice(&version);
    data[11..].copy_from_slice(&(len as u16).to_be_bytes());
    data
}
