//! Partial responses (206): which bytes a stored part has, which requests it answers, and how two
//! parts are joined (RFC 9111 §3.3, §3.4; RFC 9110 §14, §15.3.7).
//!
//! A part is stored like any other response, with the status 206 and one `Content-Range`. Each
//! variant of a URL has at most one. It grows when an adjacent or overlapping part arrives, as
//! media players and downloaders request them; a part that is neither replaces it. With all bytes
//! it becomes a complete response. Until then it is stored in memory only, because its file would
//! have to be rewritten each time it grows.

use crate::{
    config::{Config, FIELDS_MAX},
    content_range::{PARTIAL, Part},
    field_lines::{is_content_digest, put_field, without},
    hit::selected,
    object_builder::ObjectBuilder,
    record::{FreshnessTimes, Object, PIECE, RecordTexts},
    response_metadata::ResponseMetadata,
};
use pollux_http::{
    fields::{Field, Fields},
    output::put_decimal,
    range::Selection,
    request::{KnownField, KnownFieldSet, Method, Request},
};

/// The maximum number of bytes that are copied to join two parts, because a lock is held meanwhile.
/// Whole pieces at piece boundaries are shared instead of copied.
const COPY_MAX: u64 = 1 << 20;
/// `Last-Modified` is a strong validator if the response is this many seconds younger (RFC 9110
/// §8.8.2.2), which allows for inaccurate clocks.
const STRONG_DATE: u64 = 60;

/// Whether `object` contains the bytes that `request` asks for. Always true if it is not a part.
pub(crate) fn answers(object: &Object, request: &Request<'_>) -> bool {
    let Some(part) = object.part() else { return object.header().status != PARTIAL };
    match selected(object, request, part.size) {
        Selection::Parts(parts) => matches!(parts.as_slice(), [range] if part.has(range)),
        Selection::Whole | Selection::Unsatisfiable => false,
    }
}

/// Whether `object` is the beginning of the representation that `request` asks for, and its remainder
/// can be requested safely, that is, with a strong entity tag. False if the two could not be joined:
/// the requests waiting for the complete response would find only a part and would all be forwarded.
pub(crate) fn is_prefix_for(object: &Object, request: &Request<'_>, max: u64) -> bool {
    const SELECTING: KnownFieldSet = KnownFieldSet::new(&[
        KnownField::Range,
        KnownField::IfRange,
        KnownField::IfNoneMatch,
        KnownField::IfModifiedSince,
    ]);
    request.method == Method::Get
        && !request.has_any(SELECTING)
        && object.part().is_some_and(|part| {
            part.range.first == 0 && part.size <= max && can_join_remainder(part)
        })
        && object.etag().is_some_and(|etag| !etag.weak)
}

/// Whether this prefix can be joined with its remainder within the copy limit.
fn can_join_remainder(prefix: Part) -> bool {
    let (len, piece) = (prefix.range.len(), PIECE as u64);
    len.is_multiple_of(piece) || len % piece + (prefix.size - len) <= COPY_MAX
}

/// Returns the field lines that request the remainder of `object`, or the complete representation
/// if it has changed (RFC 9110 §13.1.5).
pub(crate) fn remainder_request_fields(object: &Object) -> Vec<u8> {
    let mut lines = Vec::new();
    if let (Some(part), Some(etag)) = (object.part(), object.etag()) {
        lines.extend_from_slice(b"Range: bytes=");
        put_decimal(&mut lines, part.range.last + 1);
        lines.extend_from_slice(b"-\r\nIf-Range: ");
        etag.write(&mut lines);
        lines.extend_from_slice(b"\r\n");
    }
    lines
}

/// Returns the complete response whose remainder is still arriving: the bytes of `prefix` with the
/// fields of both responses, and its total length. `None` if the response with `metadata` and the
/// lines `fields` is not the remainder, or has no known length, since the client is sent a
/// `Content-Length`.
pub(crate) fn join_prefix_head(
    prefix: &Object,
    metadata: &ResponseMetadata<'_>,
    fields: &[u8],
    times: FreshnessTimes,
    config: &Config,
) -> Option<(Object, u64)> {
    let (one, two) = (prefix.part()?, metadata.part?);
    let both = one.with(&two).filter(Part::is_complete)?;
    let is_same = prefix.etag().zip(metadata.etag).is_some_and(|(a, b)| a.strongly_equals(&b));
    if two.range.first != one.range.last + 1 || !is_same || metadata.content_length.is_none() {
        return None;
    }
    let fields = combined_fields(prefix.fields(), fields, config)?;
    let metadata = ResponseMetadata::read(200, Fields::new(&fields), config);
    let texts = RecordTexts { key: prefix.key(), vary: prefix.vary(), fields: &fields };
    let (inline, pieces) = (prefix.inline_content(), prefix.pieces().cloned());
    Some((Object::new(&metadata, times, texts, inline, pieces), both.size))
}

/// Returns the object to store when `new` arrives and the part `old` is stored: both joined, if
/// they belong to one representation and have no gap between them; otherwise `new`.
pub(crate) fn joined(old: Option<&Object>, new: Object, max: u64, config: &Config) -> Object {
    let both = old.and_then(|old| combine(old, &new, max, config));
    both.or_else(|| complete(&new, config)).unwrap_or(new)
}

/// Turns a part that has all bytes into a complete response (RFC 9110 §15.3.7.3).
fn complete(object: &Object, config: &Config) -> Option<Object> {
    object.part().filter(Part::is_complete)?;
    let fields = without(object.fields(), &[b"content-range".to_vec()]);
    let metadata = ResponseMetadata::read(200, Fields::new(&fields), config);
    let texts = RecordTexts { key: object.key(), vary: object.vary(), fields: &fields };
    let (inline, pieces) = (object.inline_content(), object.pieces().cloned());
    Some(Object::new(&metadata, object.header().times(), texts, inline, pieces))
}

fn combine(old: &Object, new: &Object, max: u64, config: &Config) -> Option<Object> {
    let (one, two) = (old.part()?, new.part()?);
    let both = one.with(&two)?;
    if both.range.len() > max || !are_of_one_representation(old, new) {
        return None;
    }
    let status = if both.is_complete() { 200 } else { PARTIAL };
    let mut builder = ObjectBuilder::new(status, new.header().times());
    builder.vary = old.vary().to_vec();
    builder.fields = combined_fields(old.fields(), new.fields(), config)?;
    if status == PARTIAL {
        both.put(&mut builder.fields);
    }
    // Where the parts overlap, the bytes of the new one are used.
    let before = 0..two.range.first.saturating_sub(one.range.first).min(one.range.len());
    let after = (two.range.last + 1).clamp(one.range.first, one.range.last + 1) - one.range.first
        ..one.range.len();
    let mut copies = COPY_MAX;
    for (object, range) in [(old, before), (new, 0..two.range.len()), (old, after)] {
        builder.append_content(object.content(range), &mut copies)?;
    }
    builder.expected = Some(both.range.len());
    builder.finish(new.key(), config)
}

/// Returns the fields of the old part, replaced and extended by those of the new one (RFC 9111
/// §3.2, §3.4). `None` if they exceed the limit; otherwise each part with further fields would let
/// them grow.
fn combined_fields(old: &[u8], new: &[u8], config: &Config) -> Option<Vec<u8>> {
    let mut fields = Vec::new();
    let is_replaced = |field: &Field<'_>| Fields::new(new).any(|other| other.is(field.name));
    let retained = Fields::new(old).filter(|field| !is_replaced(field));
    for field in retained.chain(Fields::new(new)).filter(|field| !is_content_digest(field)) {
        put_field(field.name, field.value, &mut fields);
    }
    let metadata = ResponseMetadata::read(PARTIAL, Fields::new(&fields), config);
    let mut gone = metadata.directives.withheld.clone();
    gone.push(b"content-range".to_vec());
    let fields = without(&fields, &gone);
    (fields.len() <= FIELDS_MAX).then_some(fields)
}

/// Whether both parts have the same strong validator (RFC 9110 §15.3.7.3).
fn are_of_one_representation(old: &Object, new: &Object) -> bool {
    let value = |object: &Object, name: &[u8]| {
        Fields::new(object.fields()).find(|field| field.is(name)).map(|field| field.value.to_vec())
    };
    let are_equal = |name: &[u8]| value(old, name) == value(new, name);
    if !are_equal(b"etag") || !are_equal(b"content-encoding") {
        return false;
    }
    match old.etag() {
        Some(etag) => !etag.weak,
        // An invalid entity tag proves nothing.
        None if value(old, b"etag").is_some() => false,
        None => {
            let (old, new) = (old.header(), new.header());
            old.last_modified().is_some()
                && old.last_modified() == new.last_modified()
                && [old, new].iter().all(|header| header.changed_long_before(STRONG_DATE))
        }
    }
}

/// Whether the part `new` shows that the stored complete response `old` is outdated.
pub(crate) fn supersedes(new: &Object, old: &Object) -> bool {
    match (new.etag(), old.etag()) {
        (Some(new), Some(old)) => !new.weakly_equals(&old),
        _ => match (new.header().last_modified(), old.header().last_modified()) {
            (Some(new), Some(old)) => new > old,
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::range::ByteRange;

    const SIZE: u64 = 3_000_000;

    fn byte_at(at: u64) -> u8 {
        (at % 251) as u8
    }

    /// The bytes `first..=last` of the test representation.
    fn part(first: u64, last: u64, fields: &str) -> Object {
        let part = Part { range: ByteRange { first, last }, size: SIZE };
        let times = FreshnessTimes {
            received_at: 1000,
            initial_age: 0,
            lifetime: 60,
            stale_while_revalidate: 0,
            stale_if_error: 0,
            arrival_delay: 0,
        };
        let mut builder = ObjectBuilder::new(PARTIAL, times);
        builder.fields = fields.as_bytes().to_vec();
        part.put(&mut builder.fields);
        let bytes: Vec<u8> = (first..=last).map(byte_at).collect();
        assert!(builder.append(&bytes, u64::MAX));
        builder.finish(b"http://a/", &Config::default()).unwrap()
    }

    fn bytes(object: &Object) -> Vec<u8> {
        let content = object.content(0..object.header().content_len);
        content.flat_map(|(piece, range)| piece[range].to_vec()).collect()
    }

    const TAG: &str = "ETag: \"a\"\r\n";

    #[test]
    fn adjacent_and_overlapping_parts_are_joined() {
        for (old, new, expected) in [
            ((0, 4), (5, 9), Some((0, 9))),
            ((5, 9), (0, 4), Some((0, 9))),
            ((0, 6), (3, 9), Some((0, 9))),
            ((3, 9), (0, 6), Some((0, 9))),
            ((0, 9), (3, 4), Some((0, 9))),
            ((3, 4), (0, 9), Some((0, 9))),
            ((0, 4), (0, 4), Some((0, 4))),
            ((0, 4), (6, 9), None),
            ((6, 9), (0, 4), None),
            // Longer than one piece of memory, and with unaligned pieces.
            ((0, 99_999), (100_000, 199_999), Some((0, 199_999))),
            ((100_000, 199_999), (0, 99_999), Some((0, 199_999))),
            ((0, 131_071), (131_072, 300_000), Some((0, 300_000))),
            ((1000, 900_000), (70_000, 80_000), Some((1000, 900_000))),
        ] {
            let both = joined(
                Some(&part(old.0, old.1, TAG)),
                part(new.0, new.1, TAG),
                u64::MAX,
                &Config::default(),
            );
            let (first, last) = expected.unwrap_or(new);
            let range = ByteRange { first, last };
            assert_eq!(both.part(), Some(Part { range, size: SIZE }), "{old:?} {new:?}");
            assert!(
                bytes(&both) == (first..=last).map(byte_at).collect::<Vec<_>>(),
                "{old:?} {new:?}"
            );
            assert_eq!(both.header().content_len, range.len());
        }
        let long = joined(Some(&part(0, 9, TAG)), part(10, 99, TAG), 99, &Config::default());
        assert_eq!(
            long.part().unwrap().range,
            ByteRange { first: 10, last: 99 },
            "too long together"
        );
    }

    #[test]
    fn aligned_pieces_are_shared_and_not_copied() {
        let old = part(0, 2 * (64 << 10) - 1, TAG);
        let new = part(2 * (64 << 10), SIZE - 1, TAG);
        let whole = joined(Some(&old), new.clone(), u64::MAX, &Config::default());
        assert_eq!((whole.header().status, whole.part()), (200, None));
        assert!(bytes(&whole) == (0..SIZE).map(byte_at).collect::<Vec<_>>());
        assert_eq!(whole.fields(), TAG.as_bytes());
        // In this case all bytes of the new part would have to be copied.
        let old = part(0, 99_999, TAG);
        let alone = joined(Some(&old), part(100_000, SIZE - 1, TAG), u64::MAX, &Config::default());
        assert_eq!(alone.part().unwrap().range.first, 100_000);
    }

    #[test]
    fn parts_are_joined_only_by_a_strong_validator() {
        let date = |changed: &str| {
            format!("Last-Modified: {changed}\r\nDate: Sun, 06 Nov 1994 09:49:37 GMT\r\n")
        };
        let early = date("Sun, 06 Nov 1994 08:49:37 GMT");
        let late = date("Sun, 06 Nov 1994 09:49:07 GMT");
        let gzip = format!("{TAG}Content-Encoding: gzip\r\n");
        for (old, new, expected) in [
            (TAG, TAG, true),
            (TAG, "ETag: \"b\"\r\n", false),
            ("ETag: W/\"a\"\r\n", "ETag: W/\"a\"\r\n", false),
            (TAG, "ETag: W/\"a\"\r\n", false),
            (TAG, "", false),
            ("", "", false),
            ("ETag: a\r\n", "ETag: a\r\n", false),
            (&gzip, TAG, false),
            (&early, &early, true),
            (&late, &late, false),
            (&early, "", false),
            (&early, &format!("{TAG}{early}"), false),
        ] {
            let both = joined(Some(&part(0, 4, old)), part(5, 9, new), 99, &Config::default());
            assert_eq!(both.part().unwrap().range.first == 0, expected, "{old:?} {new:?}");
        }
        let old = part(0, 4, &format!("{TAG}X-A: 1\r\nX-B: 1\r\n"));
        let new = part(5, 9, &format!("{TAG}X-A: 2\r\n"));
        let both = joined(Some(&old), new, 99, &Config::default());
        let expected = format!("X-B: 1\r\n{TAG}X-A: 2\r\nContent-Range: bytes 0-9/{SIZE}\r\n");
        assert_eq!(both.fields(), expected.as_bytes());
    }

    #[test]
    fn fields_do_not_grow_beyond_their_limit() {
        let with = |name: &str| format!("{TAG}{name}: {}\r\n", "x".repeat(FIELDS_MAX * 2 / 3));
        for (name, expected) in [("X-A", 0), ("X-B", 5)] {
            let (old, new) = (part(0, 4, &with("X-A")), part(5, 9, &with(name)));
            let both = joined(Some(&old), new, 99, &Config::default());
            assert_eq!(both.part().unwrap().range.first, expected, "{name}");
        }
    }
}
