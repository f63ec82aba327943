//! `Range` of octets (RFC 9110 §14).

use crate::syntax::{decimal, trim};

/// The most ranges of one request that are served; with more, the whole is sent (§14.2, §17.15).
pub const MAX_RANGES: usize = 32;

/// A run of octets, both ends included; never empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRange {
    /// The first octet's offset.
    pub first: u64,
    /// The last octet's offset.
    pub last: u64,
}

impl ByteRange {
    /// How many octets there are.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.last - self.first + 1
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// What to send.
#[derive(Clone, Debug, PartialEq, Eq)]
// A request has one; boxing it would be an allocation a request.
#[allow(clippy::large_enum_variant)]
pub enum Selection {
    /// 200 with everything: the field is malformed, of another unit, or asks for too much.
    Whole,
    /// 206 with these parts of the representation.
    Parts(Parts),
    /// 416: no range begins within the representation.
    Unsatisfiable,
}

/// 1 to [`MAX_RANGES`] ranges in the order asked for.
#[derive(Clone, PartialEq, Eq)]
pub struct Parts {
    ranges: [ByteRange; MAX_RANGES],
    len: usize,
}

impl Parts {
    /// The ranges; one is sent as it is, several as
    /// [`multipart/byteranges`](crate::multipart::Multipart).
    pub fn as_slice(&self) -> &[ByteRange] {
        &self.ranges[..self.len]
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_slice().fmt(f)
    }
}

/// Reads the value of `Range` for a representation of `size` octets.
///
/// Only GET has ranges (§14.2), and `If-Range` is to be asked first
/// ([`range_applies`](crate::conditional::range_applies)). The whole is also chosen when there are
/// more than [`MAX_RANGES`], when more than two overlap, or when together they are longer than
/// the representation: a few octets of request must not make a far longer answer (§17.15). And
/// it is chosen for an empty representation and a suffix of it, which no `Content-Range` can
/// describe.
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

/// Reads the value of a `Content-Range` that says which octets of how many there are (§14.4), such as
/// `bytes 0-4/10`. Nothing where the size is not told, for another unit, and for what makes no sense.
pub fn content_range(value: &[u8]) -> Option<(ByteRange, u64)> {
    let (unit, rest) = value.split_at_checked(b"bytes ".len())?;
    if !unit.eq_ignore_ascii_case(b"bytes ") {
        return None;
    }
    let (range, size) = rest.split_at(rest.iter().position(|&b| b == b'/')?);
    let (first, last) = range.split_at(range.iter().position(|&b| b == b'-')?);
    let (first, last, size) = (decimal(first)?, decimal(&last[1..])?, decimal(&size[1..])?);
    // What does not fit into 64 bits was made smaller.
    let is_sound = first <= last && last < size && size < u64::MAX;
    is_sound.then_some((ByteRange { first, last }, size))
}

/// `range-unit "="`; units are case-insensitive (§14.1).
fn strip_unit(value: &[u8]) -> Option<&[u8]> {
    let (unit, set) = value.split_at_checked(b"bytes=".len())?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

enum Spec {
    Malformed,
    Unsatisfiable,
    /// Ends within the representation unless that is empty.
    Range(ByteRange),
}

/// `first "-" [ last ]` or `"-" length` (§14.1.2).
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
        // Each overlaps itself.
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
    fn the_unsatisfiable_rfc_9110_15_5_17() {
        for value in ["bytes=10000-", "bytes=10000-10001", "bytes=-0", "bytes=99999-,-0"] {
            assert_eq!(ranges(value, 10_000), Some(vec![]), "{value}");
        }
        assert_eq!(ranges("bytes=0-", 0), Some(vec![]));
    }

    #[test]
    fn the_malformed_are_ignored_rfc_9110_14_2() {
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
    fn what_a_part_says_of_itself_rfc_9110_14_4() {
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
    fn too_much_is_ignored_rfc_9110_17_15() {
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
