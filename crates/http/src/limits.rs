//! Named limits of everything that a peer can make long.

/// The maximum number of fields in one header or trailer section, regardless of [`Limits::fields`]: the
/// length of the fixed array on the stack that receives them.
pub const MAX_FIELDS: usize = 100;

/// The maximum size of each part of a message, and the schemes that it may name.
///
/// Lengths are in bytes. A value at the limit is accepted; a value above it is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The start line without its CRLF. Exceeding it: 414. RFC 9112 §3 recommends at least 8000.
    pub request_line: usize,
    /// The header section, from after the start line to its empty line. Exceeding it: 431.
    pub header_section: usize,
    /// The number of fields in the header section, at most [`MAX_FIELDS`]. Exceeding it: 431.
    pub fields: usize,
    /// The decoded body. Exceeding it: 413.
    pub body: u64,
    /// The size line of a chunk without its CRLF: the digits, and the extensions, which are
    /// ignored. Exceeding it: 400. The extensions of all chunks together may be as long as 64 such
    /// lines and the content.
    pub chunk_line: usize,
    /// The trailer section of a chunked body, which is validated and then ignored. Exceeding it:
    /// 431.
    pub trailer_section: usize,
    /// Whether a target in absolute-form may have the scheme `https`, which is so only on a
    /// connection with TLS. Otherwise: 421 (RFC 9110 §7.4).
    pub https: bool,
}

impl Limits {
    /// The limits of a static server: 8 KiB, 16 KiB, [`MAX_FIELDS`], 1 MiB, 256 bytes and 4 KiB.
    pub const DEFAULT: Self = Self {
        request_line: 8 << 10,
        header_section: 16 << 10,
        fields: MAX_FIELDS,
        body: 1 << 20,
        chunk_line: 256,
        trailer_section: 4 << 10,
        https: false,
    };

    /// The length of the longest head within these limits, with the CRLF before it: a receive
    /// buffer of this size never has to grow for a head.
    pub const fn head(&self) -> usize {
        2 + self.request_line + 2 + self.header_section
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
