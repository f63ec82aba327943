//! Parts (206): which octets a stored one has, whom it answers, and what two of them make together
//! (RFC 9111 §3.3, §3.4; RFC 9110 §14, §15.3.7).
//!
//! A part is stored as any response is, with the status 206 and one `Content-Range` among its fields.
//! Each variant of a URL has one, which grows when the next one touches it, as those of players and
//! downloaders do; of two that do not touch the new one stays. When it has all octets it is a whole.
//! Until then it is in memory alone: it would be written anew each time it grows.

use crate::{
    Config,
    config::FIELDS_MAX,
    hit::{put_field, selected},
    object_builder::ObjectBuilder,
    receive::without,
    record::{FreshnessTimes, Object, PIECE, RecordTexts},
    response_metadata::ResponseMetadata,
};
use pollux_http::{
    fields::{Field, Fields},
    output::{Output, put_decimal},
    range::{ByteRange, Selection, content_range},
    request::{KnownField, KnownFieldSet, Method, Request},
    response::put_content_range,
};

/// Partial Content.
pub(crate) const PARTIAL: u16 = 206;
/// So many octets are copied to join two parts, at most: a lock is held meanwhile. What lies in whole
/// pieces at the right place is shared, not copied.
const COPY_MAX: u64 = 1 << 20;
/// A date is a strong validator when the response came so many seconds after the change (RFC 9110
/// §8.8.2.2): whatever the clocks.
const STRONG_DATE: u64 = 60;

/// Which octets of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) range: ByteRange,
    /// Octets of the whole.
    pub(crate) size: u64,
}

impl Part {
    /// What the lines say, if one `Content-Range` says it, and only one.
    pub(crate) fn of_fields(fields: Fields<'_>) -> Option<Self> {
        let mut lines = fields.filter(|field| field.is(b"content-range"));
        let (range, size) = content_range(lines.next()?.value)?;
        lines.next().is_none().then_some(Self { range, size })
    }

    fn is_complete(&self) -> bool {
        self.range.len() == self.size
    }

    fn has(&self, range: &ByteRange) -> bool {
        self.range.first <= range.first && range.last <= self.range.last
    }

    /// Both together, if nothing is missing in between.
    fn with(&self, other: &Self) -> Option<Self> {
        let (one, two) = (self.range, other.range);
        let touch = two.first <= one.last + 1 && one.first <= two.last + 1;
        let range = ByteRange { first: one.first.min(two.first), last: one.last.max(two.last) };
        (touch && self.size == other.size).then_some(Self { range, size: self.size })
    }

    /// Appends the line that says so.
    pub(crate) fn put(&self, out: &mut impl Output) {
        put_content_range(out, self.range, self.size);
    }

    /// Whether this beginning and its rest are joined when that comes: so little has to be copied.
    fn can_join_remainder(&self) -> bool {
        let (len, piece) = (self.range.len(), PIECE as u64);
        len.is_multiple_of(piece) || len % piece + (self.size - len) <= COPY_MAX
    }
}

/// Whether `object`, if it is a part, has what `request` asks for.
pub(crate) fn answers(object: &Object, request: &Request<'_>) -> bool {
    let Some(part) = object.part() else { return object.header().status != PARTIAL };
    match selected(object, request, part.size) {
        Selection::Parts(parts) => matches!(parts.as_slice(), [range] if part.has(range)),
        Selection::Whole | Selection::Unsatisfiable => false,
    }
}

/// Whether `object` is the beginning of the whole that `request` asks for, and the rest can be asked for
/// safely: by its strong tag. Not if the two would not be joined: whoever waits for them would find but a
/// part, and all would ask at once.
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
            part.range.first == 0 && part.size <= max && part.can_join_remainder()
        })
        && object.etag().is_some_and(|etag| !etag.weak)
}

/// The lines that ask for the rest of `object`, or for all where that is another representation now
/// (RFC 9110 §13.1.5).
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

/// The whole as far as it is there, when the rest comes: the octets of `prefix` with the fields of
/// both, if a response with `metadata` and the lines `fields` is the rest. Its length must be known, since
/// the client is told that of the whole.
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

/// What is to be stored where `old`, a part, was, now that `new` has come: both together, if they are of
/// one representation and nothing is missing in between. A whole, if that is all of it.
pub(crate) fn joined(old: Option<&Object>, new: Object, max: u64, config: &Config) -> Object {
    let both = old.and_then(|old| combine(old, &new, max, config));
    both.or_else(|| complete(&new, config)).unwrap_or(new)
}

/// A part that has all octets is the whole (RFC 9110 §15.3.7.3).
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
    // Where both have the same octets, the new one's count.
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

/// The fields of the old part with those of the new one in their place (RFC 9111 §3.2, §3.4); nothing if
/// they are longer than what is kept. Else they could grow with each part that has others.
fn combined_fields(old: &[u8], new: &[u8], config: &Config) -> Option<Vec<u8>> {
    let mut fields = Vec::new();
    let is_replaced = |field: &Field<'_>| Fields::new(new).any(|other| other.is(field.name));
    let retained = Fields::new(old).filter(|field| !is_replaced(field));
    for field in retained.chain(Fields::new(new)) {
        put_field(field.name, field.value, &mut fields);
    }
    let metadata = ResponseMetadata::read(PARTIAL, Fields::new(&fields), config);
    let mut gone = metadata.directives.withheld.clone();
    gone.push(b"content-range".to_vec());
    let fields = without(&fields, &gone);
    (fields.len() <= FIELDS_MAX).then_some(fields)
}

/// RFC 9110 §15.3.7.3: they have the same strong validator.
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
        // One that cannot be read says nothing.
        None if value(old, b"etag").is_some() => false,
        None => {
            let (old, new) = (old.header(), new.header());
            old.last_modified().is_some()
                && old.last_modified() == new.last_modified()
                && [old, new].iter().all(|header| header.changed_long_before(STRONG_DATE))
        }
    }
}

/// Whether a part shows that what is stored as a whole is another representation than the origin has
/// now.
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

    const SIZE: u64 = 3_000_000;

    fn byte_at(at: u64) -> u8 {
        (at % 251) as u8
    }

    /// The octets `first..=last` of the one representation.
    fn part(first: u64, last: u64, fields: &str) -> Object {
        let part = Part { range: ByteRange { first, last }, size: SIZE };
        let times = FreshnessTimes {
            received_at: 1000,
            initial_age: 0,
            lifetime: 60,
            stale_while_revalidate: 0,
            stale_if_error: 0,
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
    fn two_that_touch_are_one() {
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
            // Longer than a piece of memory, and where the pieces do not lie alike.
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
    fn what_lies_right_is_shared_and_not_copied() {
        let old = part(0, 2 * (64 << 10) - 1, TAG);
        let new = part(2 * (64 << 10), SIZE - 1, TAG);
        let whole = joined(Some(&old), new.clone(), u64::MAX, &Config::default());
        assert_eq!((whole.header().status, whole.part()), (200, None));
        assert!(bytes(&whole) == (0..SIZE).map(byte_at).collect::<Vec<_>>());
        assert_eq!(whole.fields(), TAG.as_bytes());
        // Here all of the new one would have to be copied.
        let old = part(0, 99_999, TAG);
        let alone = joined(Some(&old), part(100_000, SIZE - 1, TAG), u64::MAX, &Config::default());
        assert_eq!(alone.part().unwrap().range.first, 100_000);
    }

    #[test]
    fn only_a_strong_validator_joins() {
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
