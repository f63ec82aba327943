//! The parts of a record that both directions share.

/// Type, version, length.
pub const HEADER_LEN: usize = 5;
/// The most plaintext that one record carries (RFC 8446 §5.1).
pub const PLAINTEXT_MAX: usize = 1 << 14;
/// What TLS 1.3 may add to a plaintext: its inner type, padding, the tag (RFC 8446 §5.2).
pub(crate) const EXPANSION_MAX_TLS13: usize = 256;
/// What TLS 1.2 may add (RFC 5246 §6.2.3).
pub(crate) const EXPANSION_MAX_TLS12: usize = 2048;
/// The longest record of TLS 1.3, with its header.
pub const RECORD_MAX: usize = HEADER_LEN + PLAINTEXT_MAX + EXPANSION_MAX_TLS13;
/// What is added to a plaintext when it is sealed, at most: header, explicit nonce or inner type, tag.
pub const OVERHEAD_MAX: usize = HEADER_LEN + 8 + TAG_LEN;
/// Every AEAD here has a tag of 16 bytes.
pub(crate) const TAG_LEN: usize = 16;

/// What a record carries (RFC 8446 §5.1).
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

/// A record's header.
pub(crate) fn header(kind: ContentType, len: usize) -> [u8; HEADER_LEN] {
    let [high, low] = (len as u16).to_be_bytes();
    [kind.to_byte(), 3, 3, high, low]
}

/// What TLS 1.2 authenticates beside the content (RFC 5246 §6.2.3.3).
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
