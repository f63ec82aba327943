//! Byte ranges: `Range` and `Content-Range` (RFC 9110 §14).

use crate::syntax::{decimal, trim};

/// The maximum number of ranges that are served per request. A request for more receives the
/// complete representation (§14.2, §17.15).
pub const MAX_RANGES: usize = 32;

/// A range of bytes, both ends inclusive; never empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRange {
    /// The offset of the first byte.
    pub first: u64,
    /// The offset of the last byte.
    pub last: u64,
}

impl ByteRange {
    /// The number of bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.last - self.first + 1
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The response to a range request.
#[derive(Clone, Debug, PartialEq, Eq)]
// One per request; a box would cost an allocation.
#[allow(clippy::large_enum_variant)]
pub enum Selection {
    /// 200 with the complete representation: the field is malformed, has another unit, or requests
    /// too much.
    Whole,
    /// 206 with these parts of the representation.
    Parts(Parts),
    /// 416: no range begins within the representation.
    Unsatisfiable,
}

/// 1 to [`MAX_RANGES`] ranges in the requested order.
#[derive(Clone, PartialEq, Eq)]
pub struct Parts {
    ranges: [ByteRange; MAX_RANGES],
    len: usize,
}

impl Parts {
    /// The ranges. Send several of them as [`multipart/byteranges`](crate::multipart::Multipart).
    pub fn as_slice(&self) -> &[ByteRange] {
        &self.ranges[..self.len]
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// Parses the value of `Range` for a representation of `size` bytes.
///
/// Use it for GET only (§14.2), and check `If-Range` first
/// ([`range_applies`](crate::conditional::range_applies)). The complete representation is also
/// selected for more than [`MAX_RANGES`] ranges, for more than two that overlap, and for ranges
/// that are together longer than the representation, so that a short request cannot cause a far
/// longer response (§17.15). It is also selected for a suffix of an empty representation, which no
/// `Content-Range` can describe.
///
/// ```
/// use pollux_http::range::{ByteRange, Selection, select};
///
/// let Selection::Parts(parts) = select(b"bytes=-500", 10_000) else { panic!("a valid range") };
/// assert_eq!(parts.as_slice(), [ByteRange { first: 9500, last: 9999 }]);
/// assert_eq!(select(b"bytes=10000-", 10_000), Selection::Unsatisfiable);
/// ```
pub fn select(value: &[u8], size: u64) -> Selection {
    let Some(set) = strip_unit(value) else { return Selection::Whole };
    let mut parts = Parts { ranges: [ByteRange::default(); MAX_RANGES], len: 0 };
    let mut specs = 0;
    for spec in set.split(|&b| b == b',').map(trim).filter(|spec| !spec.is_empty()) {
        specs += 1;
        if specs > MAX_RANGES {
            return Selection::Whole;
        }
        match parse_spec(spec, size) {
            Spec::Malformed => return Selection::Whole,
            Spec::Unsatisfiable => {}
            Spec::Range(_) if size == 0 => return Selection::Whole,
            Spec::Range(range) => {
                parts.ranges[parts.len] = range;
                parts.len += 1;
            }
        }
    }
    match parts.as_slice() {
        [] if specs == 0 => Selection::Whole,
        [] => Selection::Unsatisfiable,
        ranges if is_excessive(ranges, size) => Selection::Whole,
        _ => Selection::Parts(parts),
    }
}

/// Parses a `Content-Range` with a range and a total length (§14.4), such as `bytes 0-4/10`.
/// Returns `None` if the length is unknown, for another unit, and for inconsistent values.
pub fn content_range(value: &[u8]) -> Option<(ByteRange, u64)> {
    let (unit, rest) = value.split_at_checked(b"bytes ".len())?;
    if !unit.eq_ignore_ascii_case(b"bytes ") {
        return None;
    }
    let (range, size) = rest.split_at(rest.iter().position(|&b| b == b'/')?);
    let (first, last) = range.split_at(range.iter().position(|&b| b == b'-')?);
    let (first, last, size) = (decimal(first)?, decimal(&last[1..])?, decimal(&size[1..])?);
    // A number beyond 64 bits was saturated.
    let is_sound = first <= last && last < size && size < u64::MAX;
    is_sound.then_some((ByteRange { first, last }, size))
}

/// Removes `range-unit "="`; units are case-insensitive (§14.1).
fn strip_unit(value: &[u8]) -> Option<&[u8]> {
    let (unit, set) = value.split_at_checked(b"bytes=".len())?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

enum Spec {
    Malformed,
    Unsatisfiable,
    /// Ends within the representation, unless that is empty.
    Range(ByteRange),
}

/// Parses `first "-" [ last ]` or `"-" length` (§14.1.2).
fn parse_spec(spec: &[u8], size: u64) -> Spec {
    let Some(dash) = spec.iter().position(|&b| b == b'-') else { return Spec::Malformed };
    let (first, last) = (&spec[..dash], &spec[dash + 1..]);
    let end = size.saturating_sub(1);
    if first.is_empty() {
        return match decimal(last) {
            None => Spec::Malformed,
            Some(0) => Spec::Unsatisfiable,
            Some(length) => {
                Spec::Range(ByteRange { first: size.saturating_sub(length), last: end })
            }
        };
    }
    let Some(first) = decimal(first) else { return Spec::Malformed };
    let last = match last {
        b"" => u64::MAX,
        digits => match decimal(digits) {
            Some(last) if last >= first => last,
            _ => return Spec::Malformed,
        },
    };
    if first >= size {
        return Spec::Unsatisfiable;
    }
    Spec::Range(ByteRange { first, last: last.min(end) })
}

fn is_excessive(ranges: &[ByteRange], size: u64) -> bool {
    let total = ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.len()));
    let overlapping = |range: &ByteRange| {
        // Each range overlaps itself.
        ranges.iter().filter(|other| range.overlaps(other)).count() > 1
    };
    ranges.len() > 1 && (total > size || ranges.iter().filter(|r| overlapping(r)).count() > 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(value: &str, size: u64) -> Option<Vec<(u64, u64)>> {
        match select(value.as_bytes(), size) {
            Selection::Whole => None,
            Selection::Unsatisfiable => Some(vec![]),
            Selection::Parts(parts) => {
                Some(parts.as_slice().iter().map(|r| (r.first, r.last)).collect())
            }
        }
    }

    #[test]
    fn ranges_of_rfc_9110_14_1_2() {
        for (value, expected) in [
            ("bytes=0-499", vec![(0, 499)]),
            ("bytes=500-999", vec![(500, 999)]),
            ("bytes=-500", vec![(9500, 9999)]),
            ("bytes=9500-", vec![(9500, 9999)]),
            ("bytes=0-0,-1", vec![(0, 0), (9999, 9999)]),
            ("bytes= 0-0 , ,\t5-6 ", vec![(0, 0), (5, 6)]),
            ("BYTES=7-7", vec![(7, 7)]),
            ("bytes=9999-99999999999999999999999", vec![(9999, 9999)]),
            ("bytes=-99999999999999999999999", vec![(0, 9999)]),
            ("bytes=0-1,20000-30000", vec![(0, 1)]),
            ("bytes=5-6,0-1", vec![(5, 6), (0, 1)]),
            ("bytes=0-5,3-9", vec![(0, 5), (3, 9)]),
        ] {
            assert_eq!(ranges(value, 10_000), Some(expected), "{value}");
        }
    }

    #[test]
    fn unsatisfiable_ranges_rfc_9110_15_5_17() {
        for value in ["bytes=10000-", "bytes=10000-10001", "bytes=-0", "bytes=99999-,-0"] {
            assert_eq!(ranges(value, 10_000), Some(vec![]), "{value}");
        }
        assert_eq!(ranges("bytes=0-", 0), Some(vec![]));
    }

    #[test]
    fn malformed_ranges_are_ignored_rfc_9110_14_2() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes=-",
            "bytes=a-b",
            "bytes=5-4",
            "bytes=0-1,5-4",
            "bytes=0-1,x",
            "bytes =0-1",
            "bytes=0 -1",
            "bytes=0- 1",
            "bytes=+1-2",
            "bytes=1--2",
            "bytes:0-1",
            "lines=0-1",
            "bytes=0-1;",
            "bytes=0x0-1",
            "0-1",
            "bytes=--1",
        ] {
            assert_eq!(ranges(value, 10_000), None, "{value}");
        }
        assert_eq!(ranges("bytes=-5", 0), None);
    }

    #[test]
    fn content_ranges_of_rfc_9110_14_4() {
        for (value, expected) in [
            ("bytes 0-4/10", Some((0, 4, 10))),
            ("BYTES 9-9/10", Some((9, 9, 10))),
            ("bytes 0-4/*", None),
            ("bytes */10", None),
            ("bytes 4-3/10", None),
            ("bytes 0-10/10", None),
            ("bytes 0-4/99999999999999999999999", None),
            ("bytes 0-4", None),
            ("bytes=0-4/10", None),
            ("bytes 0 - 4/10", None),
            ("bytes  0-4/10", None),
            ("bytes 0-4/10,", None),
            ("bytes -4/10", None),
            ("bytes 0-/10", None),
            ("bytes +0-4/10", None),
            ("lines 0-4/10", None),
            ("", None),
        ] {
            let found = content_range(value.as_bytes());
            assert_eq!(
                found.map(|(range, size)| (range.first, range.last, size)),
                expected,
                "{value}"
            );
        }
    }

    #[test]
    fn excessive_ranges_are_ignored_rfc_9110_17_15() {
        let many = |n: u64| {
            let specs: Vec<_> = (0..n).map(|i| format!("{}-{}", i * 2, i * 2)).collect();
            format!("bytes={}", specs.join(","))
        };
        assert_eq!(ranges(&many(MAX_RANGES as u64), 10_000).unwrap().len(), MAX_RANGES);
        assert_eq!(ranges(&many(MAX_RANGES as u64 + 1), 10_000), None);
        assert_eq!(ranges("bytes=0-,0-", 10_000), None);
        assert_eq!(ranges("bytes=0-2,1-3,2-4", 10_000), None);
    }
}
