//! The named maxima of everything that a peer can make longer.

/// The most fields that one header or trailer section may have, whatever [`Limits::fields`] says:
/// the length of the fixed array on the stack that they are parsed into.
pub const MAX_FIELDS: usize = 100;

/// How much of each part of a message is taken before it is refused.
///
/// Lengths are in octets. A value above the limit is refused, a value at the limit is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The start line without its CRLF. Longer: 414. RFC 9112 §3 asks for at least 8000.
    pub request_line: usize,
    /// The header section, from after the start line to its empty line. Longer: 431.
    pub header_section: usize,
    /// Fields in the header section, at most [`MAX_FIELDS`]. More: 431.
    pub fields: usize,
    /// The body after decoding. Longer: 413.
    pub body: u64,
    /// A chunk's size line without its CRLF: digits and the extensions, which are ignored.
    /// Longer: 400.
    pub chunk_line: usize,
    /// The trailer section of a chunked body, which is checked and ignored. Longer: 431.
    pub trailer_section: usize,
}

impl Limits {
    /// The limits of a static server: 8 KiB, 16 KiB, [`MAX_FIELDS`], 1 MiB, 256 and 4 KiB.
    pub const DEFAULT: Self = Self {
        request_line: 8 << 10,
        header_section: 16 << 10,
        fields: MAX_FIELDS,
        body: 1 << 20,
        chunk_line: 256,
        trailer_section: 4 << 10,
    };

    /// The longest head that these limits let through, with the CRLF before it and its own: the
    /// size of a receive buffer that never needs to grow for a head.
    pub const fn head(&self) -> usize {
        2 + self.request_line + 2 + self.header_section
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
