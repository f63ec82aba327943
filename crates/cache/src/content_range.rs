//! The range of a partial response (206): its position and the length of the complete representation
//! (RFC 9110 §14.4).

use pollux_http::{
    fields::Fields,
    output::Output,
    range::{ByteRange, content_range},
    response::put_content_range,
};

/// The status of a partial response.
pub(crate) const PARTIAL: u16 = 206;

/// A range of bytes and the length of the complete representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) range: ByteRange,
    /// The length of the complete representation in bytes.
    pub(crate) size: u64,
}

impl Part {
    /// Reads `Content-Range`; `None` unless there is exactly one and it is valid.
    pub(crate) fn of_fields(fields: Fields<'_>) -> Option<Self> {
        let mut lines = fields.filter(|field| field.is(b"content-range"));
        let (range, size) = content_range(lines.next()?.value)?;
        lines.next().is_none().then_some(Self { range, size })
    }

    /// Whether the part is the complete representation.
    pub(crate) fn is_complete(&self) -> bool {
        self.range.len() == self.size
    }

    /// Whether the part contains `range`.
    pub(crate) fn has(&self, range: &ByteRange) -> bool {
        self.range.first <= range.first && range.last <= self.range.last
    }

    /// Returns the union of two parts, if it has no gap.
    pub(crate) fn with(&self, other: &Self) -> Option<Self> {
        let (one, two) = (self.range, other.range);
        let touch = two.first <= one.last + 1 && one.first <= two.last + 1;
        let range = ByteRange { first: one.first.min(two.first), last: one.last.max(two.last) };
        (touch && self.size == other.size).then_some(Self { range, size: self.size })
    }

    /// Appends the `Content-Range` line.
    pub(crate) fn put(&self, out: &mut impl Output) {
        put_content_range(out, self.range, self.size);
    }
}
