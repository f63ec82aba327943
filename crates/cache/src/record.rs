//! A stored response as one block of bytes: header, key, `Vary` lines, field lines and, if it is
//! short, the content. A small object needs only one allocation. Sections without another source are those
//! of RFC 9111.
//!
//! ```text
//! HEADER_LEN (64) | key | lines of Vary | field lines | content, if it is short
//! ```

use crate::{
    config::Config,
    content_range::{PARTIAL, Part},
    directives::Seconds,
    response_metadata::ResponseMetadata,
};
use pollux_http::{etag::ETag, fields::Fields};
use std::{ops::Range, sync::Arc};

/// Content up to this length is stored in the block.
pub(crate) const INLINE_MAX: usize = 16 << 10;
/// Longer content is stored in pieces of this length; the last one may be shorter.
pub(crate) const PIECE: usize = 64 << 10;

const HEADER_LEN: usize = 64;

/// The overhead of an allocation with `Arc`: two counters, the allocator's header, and the
/// average rounding loss.
const BLOCK_COST: usize = 16 + 8 + 8;

const NO_CACHE: u16 = 1;
const MUST_REVALIDATE: u16 = 2;
const SHARED_REVALIDATE: u16 = 4;
const IMMUTABLE: u16 = 8;
/// See [`RecordHeader::is_unstated`].
const UNSTATED: u16 = 16;

/// The fixed-size header of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) status: u16,
    flags: u16,
    key_len: u16,
    vary_len: u16,
    etag_len: u16,
    fields_len: u32,
    /// The offset of the entity tag in the field lines. Its length is 0 if there is none.
    etag_at: u32,
    pub(crate) content_len: u64,
    /// The Unix second at which the response was received or last validated.
    pub(crate) received_at: u64,
    /// `Last-Modified` in Unix seconds; 0 if it is absent.
    last_modified: u64,
    /// `Date` in Unix seconds.
    date: u32,
    pub(crate) initial_age: Seconds,
    pub(crate) lifetime: Seconds,
    pub(crate) stale_while_revalidate: Seconds,
    pub(crate) stale_if_error: Seconds,
    /// The seconds from the request to the arrival of the response, which are a part of the age.
    pub(crate) arrival_delay: u16,
}

/// The values that determine the age and the freshness lifetime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freshness {
    pub(crate) status: u16,
    received_at: u64,
    initial_age: Seconds,
    lifetime: Seconds,
}

impl Freshness {
    /// The current age in seconds (§4.2.3).
    pub(crate) fn age(&self, now: u64) -> u64 {
        u64::from(self.initial_age) + now.saturating_sub(self.received_at)
    }

    /// The remaining freshness lifetime in seconds; negative when the response is stale.
    pub(crate) fn time_left(&self, now: u64) -> i64 {
        i64::from(self.lifetime) - self.age(now).min(1 << 40) as i64
    }
}

macro_rules! header {
    ($($field:ident : $type:ty),*) => {
        fn put(&self, block: &mut Vec<u8>) {
            let start = block.len();
            $(block.extend_from_slice(&self.$field.to_le_bytes());)*
            debug_assert!(block.len() <= start + HEADER_LEN);
            block.resize(start + HEADER_LEN, 0);
        }

        /// Decodes the header of a block; `None` if it is too short.
        pub(crate) fn read(block: &[u8]) -> Option<Self> {
            let mut rest = block.get(..HEADER_LEN)?;
            $(
                let (number, later) = rest.split_first_chunk()?;
                let $field = <$type>::from_le_bytes(*number);
                rest = later;
            )*
            debug_assert!(rest.iter().all(|&unused| unused == 0));
            Some(Self { $($field),* })
        }
    };
}

impl RecordHeader {
    header! {
        status: u16, flags: u16, key_len: u16, vary_len: u16, etag_len: u16, fields_len: u32,
        etag_at: u32, content_len: u64, received_at: u64, last_modified: u64, date: u32,
        initial_age: u32, lifetime: u32, stale_while_revalidate: u32, stale_if_error: u32,
        arrival_delay: u16
    }

    pub(crate) fn freshness(&self) -> Freshness {
        let Self { status, received_at, initial_age, lifetime, .. } = *self;
        Freshness { status, received_at, initial_age, lifetime }
    }

    /// As [`Freshness::age`].
    pub(crate) fn age(&self, now: u64) -> u64 {
        self.freshness().age(now)
    }

    /// As [`Freshness::time_left`].
    pub(crate) fn time_left(&self, now: u64) -> i64 {
        self.freshness().time_left(now)
    }

    /// Whether the response must be validated before each use (`no-cache`).
    pub(crate) fn is_no_cache(&self) -> bool {
        self.flags & NO_CACHE != 0
    }

    /// Whether the response does not change while it is fresh (RFC 8246 §2).
    pub(crate) fn is_immutable(&self) -> bool {
        self.flags & IMMUTABLE != 0
    }

    /// Whether a client's `max-stale` must be ignored (§4.2.4): for `no-cache`, `must-revalidate`,
    /// `proxy-revalidate`, and `s-maxage`, which implies `proxy-revalidate` (§5.2.2.10). This cache
    /// also ignores it, as the RFC permits, for a response that says nothing about caching: such a page may
    /// be for one user, and another user must not get it unconfirmed.
    pub(crate) fn forbids_stale(&self) -> bool {
        self.flags & (NO_CACHE | MUST_REVALIDATE | SHARED_REVALIDATE | UNSTATED) != 0
    }

    /// For how long after its expiry the response is used if the origin fails: as long as the response states,
    /// or as long as the request accepts, unless the response forbids stale use (RFC 5861 §4).
    pub(crate) fn stale_if_error_for(&self, accepted: Option<Seconds>) -> Seconds {
        let accepted = accepted.filter(|_| !self.forbids_stale());
        self.stale_if_error.max(accepted.unwrap_or(0))
    }

    /// Whether the response says nothing about caching: it states no lifetime, is not `public`, and has no
    /// lifetime by heuristics.
    pub(crate) fn is_unstated(&self) -> bool {
        self.flags & UNSTATED != 0
    }

    pub(crate) fn last_modified(&self) -> Option<u64> {
        (self.last_modified > 0).then_some(self.last_modified)
    }

    /// The date at which the origin sent the response: its `Date`, or its arrival if it has none.
    pub(crate) fn sent_at(&self) -> u64 {
        u64::from(self.date)
    }

    /// The date that `If-Modified-Since` is compared with (§4.3.2).
    pub(crate) fn modified_for_conditions(&self) -> u64 {
        self.last_modified().unwrap_or(u64::from(self.date))
    }

    /// Whether the response is at least `seconds` younger than its last change.
    pub(crate) fn changed_long_before(&self, seconds: u64) -> bool {
        self.last_modified + seconds <= u64::from(self.date)
    }

    pub(crate) fn times(&self) -> FreshnessTimes {
        FreshnessTimes {
            received_at: self.received_at,
            initial_age: self.initial_age,
            lifetime: self.lifetime,
            stale_while_revalidate: self.stale_while_revalidate,
            stale_if_error: self.stale_if_error,
            arrival_delay: self.arrival_delay,
        }
    }

    fn key(&self) -> Range<usize> {
        HEADER_LEN..HEADER_LEN + usize::from(self.key_len)
    }

    fn vary(&self) -> Range<usize> {
        let start = self.key().end;
        start..start + usize::from(self.vary_len)
    }

    fn fields(&self) -> Range<usize> {
        let start = self.vary().end;
        start..start + self.fields_len as usize
    }
}

/// The variable-length parts of a record, without content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordTexts<'t> {
    pub(crate) key: &'t [u8],
    /// In the format of [`crate::vary::put_lines`].
    pub(crate) vary: &'t [u8],
    pub(crate) fields: &'t [u8],
}

/// A stored response. Clones share its memory.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    block: Arc<[u8]>,
    /// Content that is not in the block. One pointer, since most objects have none.
    pieces: Option<Arc<Pieces>>,
}

/// Content in pieces of [`PIECE`] bytes.
#[derive(Debug)]
pub(crate) struct Pieces(pub(crate) Box<[Arc<[u8]>]>);

/// The time at which a response was received, and the times for which it may be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreshnessTimes {
    pub(crate) received_at: u64,
    pub(crate) initial_age: Seconds,
    pub(crate) lifetime: Seconds,
    pub(crate) stale_while_revalidate: Seconds,
    pub(crate) stale_if_error: Seconds,
    pub(crate) arrival_delay: u16,
}

impl FreshnessTimes {
    /// Computes the times of a response that was requested at `requested_at` and received at `now`.
    ///
    /// The stale periods of RFC 5861 are 0 where RFC 9111 §4.2.4 forbids stale responses.
    /// `s-maxage` implies `proxy-revalidate`, but an explicit period takes precedence:
    /// `s-maxage=60, stale-while-revalidate=30` means both.
    pub(crate) fn of(
        metadata: &ResponseMetadata<'_>,
        requested_at: u64,
        now: u64,
        config: &Config,
    ) -> Self {
        let directives = &metadata.directives;
        let must_not =
            directives.no_cache || directives.must_revalidate || directives.proxy_revalidate;
        let unless = |is_not: bool, seconds: Seconds| if is_not { 0 } else { seconds };
        Self {
            received_at: now,
            initial_age: metadata.initial_age(requested_at, now),
            lifetime: metadata.lifetime(now, config),
            stale_while_revalidate: unless(
                must_not,
                directives.stale_while_revalidate.unwrap_or(0),
            ),
            stale_if_error: unless(must_not, metadata.stale_if_error(config)),
            arrival_delay: now.saturating_sub(requested_at).min(u64::from(u16::MAX)) as u16,
        }
    }
}

impl Object {
    /// Builds a record. Either `content`, which is stored in the block, or `pieces` is empty.
    pub(crate) fn new(
        metadata: &ResponseMetadata<'_>,
        times: FreshnessTimes,
        texts: RecordTexts<'_>,
        content: &[u8],
        pieces: Option<Arc<Pieces>>,
    ) -> Self {
        let directives = &metadata.directives;
        let mut flags = 0;
        for (is_set, flag) in [
            (directives.no_cache, NO_CACHE),
            (directives.must_revalidate || directives.proxy_revalidate, MUST_REVALIDATE),
            (directives.s_maxage.is_some(), SHARED_REVALIDATE),
            (directives.immutable, IMMUTABLE),
            (times.lifetime == 0 && !metadata.is_explicit(), UNSTATED),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let etag = etag_line(texts.fields);
        let pieces_len = pieces.iter().flat_map(|pieces| pieces.0.iter());
        let header = RecordHeader {
            status: metadata.status,
            flags,
            key_len: texts.key.len() as u16,
            vary_len: texts.vary.len() as u16,
            etag_len: etag.len() as u16,
            etag_at: etag.start as u32,
            fields_len: texts.fields.len() as u32,
            content_len: (content.len() + pieces_len.map(|p| p.len()).sum::<usize>()) as u64,
            received_at: times.received_at,
            last_modified: metadata.last_modified.unwrap_or(0),
            date: metadata.date.unwrap_or(times.received_at).min(u64::from(u32::MAX)) as u32,
            initial_age: times.initial_age,
            lifetime: times.lifetime,
            stale_while_revalidate: times.stale_while_revalidate,
            stale_if_error: times.stale_if_error,
            arrival_delay: times.arrival_delay,
        };
        let texts_len = texts.key.len() + texts.vary.len() + texts.fields.len();
        let mut block = Vec::with_capacity(HEADER_LEN + texts_len + content.len());
        header.put(&mut block);
        for text in [texts.key, texts.vary, texts.fields, content] {
            block.extend_from_slice(text);
        }
        Self { block: block.into(), pieces }
    }

    pub(crate) fn header(&self) -> RecordHeader {
        RecordHeader::read(&self.block).unwrap_or_default()
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.block[self.header().key()]
    }

    pub(crate) fn vary(&self) -> &[u8] {
        &self.block[self.header().vary()]
    }

    /// Whether `other` is the same response, and not one that was received or validated later.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.block == other.block
    }

    pub(crate) fn fields(&self) -> &[u8] {
        &self.block[self.header().fields()]
    }

    pub(crate) fn etag(&self) -> Option<ETag<'_>> {
        let header = self.header();
        let start = header.etag_at as usize;
        ETag::parse(&self.fields()[start..start + usize::from(header.etag_len)])
    }

    /// The range, if the object is a part.
    pub(crate) fn part(&self) -> Option<Part> {
        if self.header().status != PARTIAL {
            return None;
        }
        Part::of_fields(Fields::new(self.fields()))
    }

    pub(crate) fn pieces(&self) -> Option<&Arc<Pieces>> {
        self.pieces.as_ref()
    }

    /// The record without content.
    pub(crate) fn record(&self) -> &[u8] {
        &self.block[..self.header().fields().end]
    }

    /// The content, in the slices in which it is stored.
    pub(crate) fn content_parts(&self) -> impl Iterator<Item = &[u8]> {
        let pieces = self.pieces.iter().flat_map(|pieces| pieces.0.iter());
        std::iter::once(self.inline_content()).chain(pieces.map(|piece| &piece[..]))
    }

    /// Rebuilds an object from the output of [`Object::record`] and [`Object::content_parts`].
    /// `None` if the header does not match the record's length.
    pub(crate) fn from_record(record: &[u8], content: &[u8]) -> Option<Self> {
        let header = RecordHeader::read(record)?;
        let etag_end = header.etag_at as usize + usize::from(header.etag_len);
        if header.fields().end != record.len() || etag_end > header.fields_len as usize {
            return None;
        }
        if content.len() <= INLINE_MAX {
            return Some(Self { block: [record, content].concat().into(), pieces: None });
        }
        let pieces = content.chunks(PIECE).map(Arc::from).collect();
        Some(Self { block: record.into(), pieces: Some(Arc::new(Pieces(pieces))) })
    }

    /// The content that is stored in the block.
    pub(crate) fn inline_content(&self) -> &[u8] {
        &self.block[self.header().fields().end..]
    }

    /// The bytes `range` of the content, without copying them.
    pub(crate) fn content(&self, range: Range<u64>) -> ContentPieces {
        let offset = if self.pieces.is_some() { 0 } else { self.header().fields().end };
        ContentPieces { object: self.clone(), offset, rest: range }
    }

    /// Estimated memory of the object in bytes.
    pub(crate) fn weight(&self) -> u64 {
        let cost = |block: &[u8]| block.len() + BLOCK_COST;
        let pieces = self.pieces.iter().map(|pieces| {
            let list = pieces.0.iter().map(|piece| cost(piece) + size_of::<Arc<[u8]>>());
            list.sum::<usize>() + 2 * BLOCK_COST
        });
        (cost(&self.block) + pieces.sum::<usize>()) as u64
    }
}

/// The position of the first valid `ETag` value in the lines; empty if there is none.
fn etag_line(fields: &[u8]) -> Range<usize> {
    let mut values = Fields::new(fields).filter(|field| field.is(b"etag")).map(|field| field.value);
    let is_valid =
        |value: &&[u8]| value.len() <= usize::from(u16::MAX) && ETag::parse(value).is_some();
    let Some(value) = values.find(is_valid) else { return 0..0 };
    let start = value.as_ptr() as usize - fields.as_ptr() as usize;
    start..start + value.len()
}

/// An iterator over content. Each piece shares the store's memory and keeps it alive.
#[derive(Clone, Debug)]
pub struct ContentPieces {
    object: Object,
    /// The offset of the content in the block.
    offset: usize,
    rest: Range<u64>,
}

impl ContentPieces {
    /// The number of remaining bytes.
    pub fn remaining_bytes(&self) -> u64 {
        self.rest.end.saturating_sub(self.rest.start)
    }
}

impl Iterator for ContentPieces {
    type Item = (Arc<[u8]>, Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.start >= self.rest.end {
            return None;
        }
        let (first, end) = (self.rest.start as usize, self.rest.end as usize);
        let Some(pieces) = &self.object.pieces else {
            self.rest.start = self.rest.end;
            return Some((self.object.block.clone(), self.offset + first..self.offset + end));
        };
        let piece = pieces.0.get(first / PIECE)?.clone();
        let start = first % PIECE;
        let len = (piece.len() - start).min(end - first);
        self.rest.start += len as u64;
        Some((piece, start..start + len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &[u8] = b"Cache-Control: no-cache\r\nETag: \"abc\"\r\n\
        Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";

    fn object(content: &[u8], pieces: Option<Arc<Pieces>>) -> Object {
        let metadata = ResponseMetadata::read(200, Fields::new(FIELDS), &Config::default());
        let times = FreshnessTimes {
            received_at: 1000,
            initial_age: 7,
            lifetime: 60,
            stale_while_revalidate: 0,
            stale_if_error: 3,
            arrival_delay: 5,
        };
        let texts = RecordTexts { key: b"http://a/", vary: b"x:1\n", fields: FIELDS };
        Object::new(&metadata, times, texts, content, pieces)
    }

    #[test]
    fn the_first_valid_etag_is_the_object_s() {
        let fields = b"ETag: abc\r\nETag: \"\r\nETag: W/\"x\"\r\nETag: \"y\"\r\n";
        let value = etag_line(fields);
        assert_eq!(&fields[value], b"W/\"x\"");
        assert!(etag_line(b"ETag: abc\r\n").is_empty());
    }

    #[test]
    fn a_record_is_decoded_as_it_was_encoded() {
        let object = object(b"content", None);
        let header = object.header();
        assert_eq!((header.status, header.content_len), (200, 7));
        assert_eq!((object.key(), object.vary()), (&b"http://a/"[..], &b"x:1\n"[..]));
        assert_eq!(object.fields(), FIELDS);
        assert_eq!(object.etag().map(|etag| etag.opaque), Some(&b"abc"[..]));
        assert_eq!(header.last_modified(), Some(784_111_777));
        assert!(header.is_no_cache() && header.forbids_stale());
        assert_eq!((header.stale_if_error, header.arrival_delay), (3, 5));
        assert_eq!(
            (header.age(1010), header.time_left(1010), header.time_left(1060)),
            (17, 43, -7)
        );
    }

    #[test]
    fn content_is_returned_in_its_stored_pieces() {
        let whole: Vec<u8> = (0..2 * PIECE + 100).map(|at| (at % 251) as u8).collect();
        let pieces = whole.chunks(PIECE).map(Arc::from).collect();
        let long = object(b"", Some(Arc::new(Pieces(pieces))));
        let short = object(&whole[..INLINE_MAX], None);
        assert_eq!(long.header().content_len, whole.len() as u64);
        let piece = PIECE as u64;
        for range in [0..0, 0..1, 5..5000, 0..long.header().content_len, piece - 1..2 * piece + 1] {
            let bytes = long.content(range.clone()).flat_map(|(p, r)| p[r].to_vec());
            let expected = &whole[range.start as usize..range.end as usize];
            assert_eq!(bytes.collect::<Vec<_>>(), expected, "{range:?}");
            let end = range.end.min(INLINE_MAX as u64);
            let range = range.start.min(end)..end;
            let bytes = short.content(range.clone()).flat_map(|(p, r)| p[r].to_vec());
            let expected = &whole[range.start as usize..range.end as usize];
            assert_eq!(bytes.collect::<Vec<_>>(), expected, "{range:?}");
        }
    }
}
