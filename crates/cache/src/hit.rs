//! A response from the store: its status, its fields, and the bytes of its content.

use crate::{
    cache_status::CacheStatus,
    content_range::{PARTIAL, Part},
    field_lines::{is_content_digest, put_field, put_not_modified_fields},
    record::{ContentPieces, Object},
};
use pollux_http::{
    conditional::{Precondition, Validators, evaluate, range_applies},
    fields::{Field, Fields},
    output::{Output, put_decimal},
    range::{ByteRange, Selection, select},
    request::{KnownField, Method, Request},
};

/// A stored response that may be sent to clients.
#[derive(Clone, Debug)]
pub struct Hit {
    pub(crate) object: Object,
    pub(crate) cache_status: CacheStatus,
    /// The length of the complete content in bytes, if the origin is still sending the rest of it.
    pub(crate) total_len: Option<u64>,
}

/// A stored response as it is sent to one client, after conditions and range were evaluated.
#[derive(Clone, Debug)]
pub struct HitResponse {
    object: Object,
    cache_status: CacheStatus,
    shape: HitShape,
    is_head: bool,
    age: u64,
    /// The length of the complete representation in bytes, and the offset of the stored content in
    /// it.
    size: u64,
    start: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HitShape {
    Whole,
    Part(ByteRange),
    NotModified,
    Unsatisfiable,
}

impl Hit {
    /// The status code of the stored response.
    pub fn stored_status(&self) -> u16 {
        self.object.header().status
    }

    /// The `Cache-Status` of the response.
    pub fn cache_status(&self) -> &CacheStatus {
        &self.cache_status
    }

    /// Builds the response to a GET or HEAD `request` at the time `now`. Evaluates the conditions
    /// that a cache evaluates (RFC 9111 §4.3.2) and the range. A request for several ranges
    /// receives the complete representation.
    pub fn response(&self, request: &Request<'_>, now: u64) -> HitResponse {
        let header = self.object.header();
        let is_head = request.method == Method::Head;
        let (start, size) = match self.object.part() {
            Some(Part { range, size }) => (range.first, size),
            None => (0, self.total_len.unwrap_or(header.content_len)),
        };
        // Conditions apply to representations only, which responses with other statuses do not
        // contain.
        let is_representation = matches!(header.status, 200 | PARTIAL);
        let shape =
            if is_representation { self.shape(request, size, now) } else { HitShape::Whole };
        HitResponse {
            object: self.object.clone(),
            cache_status: self.cache_status.clone(),
            shape,
            is_head,
            age: header.age(now),
            size,
            start,
        }
    }

    fn shape(&self, request: &Request<'_>, size: u64, now: u64) -> HitShape {
        let etag = self.object.etag();
        let modified = Some(self.object.header().modified_for_conditions());
        let current = Validators { etag, last_modified: modified, now };
        if evaluate(request, Some(&current)) == Precondition::NotModified {
            return HitShape::NotModified;
        }
        match selected(&self.object, request, size) {
            Selection::Unsatisfiable => HitShape::Unsatisfiable,
            Selection::Parts(parts) => match parts.as_slice() {
                [part] => HitShape::Part(*part),
                _ => HitShape::Whole,
            },
            Selection::Whole => HitShape::Whole,
        }
    }
}

/// Evaluates the request's range for the representation in `object`, which has `size` bytes.
pub(crate) fn selected(object: &Object, request: &Request<'_>, size: u64) -> Selection {
    let Some(range) = request.single(KnownField::Range) else { return Selection::Whole };
    let header = object.header();
    // A date identifies these bytes only if it is a strong validator: if the origin sent the response
    // later than the change. The arrival here may be later still (RFC 9110 §13.1.5, §8.8.2.2).
    let (etag, last_modified) = (object.etag(), header.last_modified());
    let current = Validators { etag, last_modified, now: header.sent_at() };
    if request.method != Method::Get || !range_applies(request, &current) {
        return Selection::Whole;
    }
    select(range, size)
}

impl HitResponse {
    /// The status code.
    pub fn status(&self) -> u16 {
        match self.shape {
            HitShape::Whole => self.object.header().status,
            HitShape::Part(_) => 206,
            HitShape::NotModified => 304,
            HitShape::Unsatisfiable => 416,
        }
    }

    /// The number of content bytes that follow the head and are stored.
    pub fn content_length(&self) -> u64 {
        let range = self.range();
        range.end - range.start
    }

    /// The content in pieces that share the store's memory; empty for HEAD and for 304.
    pub fn content(&self) -> ContentPieces {
        self.object.content(self.range())
    }

    fn range(&self) -> std::ops::Range<u64> {
        match self.shape {
            _ if self.is_head => 0..0,
            HitShape::Whole => 0..self.object.header().content_len,
            HitShape::Part(part) => part.first - self.start..part.last + 1 - self.start,
            HitShape::NotModified | HitShape::Unsatisfiable => 0..0,
        }
    }

    /// Appends the fields: the stored ones, `Age` (RFC 9111 §4) and `Cache-Status`. The caller adds the status
    /// line and the fields that frame the content or concern the connection.
    pub fn put_fields(&self, out: &mut impl Output) {
        match self.shape {
            HitShape::Whole => out.put(self.object.fields()),
            // `Content-Range` is written once, below.
            HitShape::Part(part) => {
                let is_same_content = part.len() == self.object.header().content_len;
                let stays = |field: &Field<'_>| {
                    !field.is(b"content-range") && (is_same_content || !is_content_digest(field))
                };
                for field in Fields::new(self.object.fields()).filter(stays) {
                    put_field(field.name, field.value, out);
                }
            }
            HitShape::NotModified => put_not_modified_fields(self.object.fields(), out),
            HitShape::Unsatisfiable => put_unsatisfiable_fields(self.object.fields(), out),
        }
        if let HitShape::Part(range) = self.shape {
            Part { range, size: self.size }.put(out);
        }
        if self.shape == HitShape::Unsatisfiable {
            put_number(b"Content-Range: bytes */", self.size, out);
        }
        put_number(b"Age: ", self.age, out);
        self.cache_status.put(out);
    }

    /// Returns the length that the head announces, if it announces one: that of the content, or of the
    /// content that a GET would get.
    pub fn announced_length(&self) -> Option<u64> {
        let header = self.object.header();
        match self.shape {
            HitShape::NotModified => None,
            HitShape::Whole if header.status == PARTIAL => Some(header.content_len),
            HitShape::Whole => (header.status != 204).then_some(self.size),
            HitShape::Part(part) => Some(part.len()),
            HitShape::Unsatisfiable => Some(0),
        }
    }
}

fn put_number(name: &[u8], number: u64, out: &mut impl Output) {
    out.put(name);
    put_decimal(out, number);
    out.put(b"\r\n");
}

/// Appends those lines of `fields` that a 416 contains: its date (RFC 9110 §6.6.1), the validator
/// of the representation, and `Vary`. `Cache-Control` and other fields that would let another cache
/// store the 416 are omitted: stored under this URL it would answer requests for other ranges.
fn put_unsatisfiable_fields(fields: &[u8], out: &mut impl Output) {
    const NAMES: [&[u8]; 3] = [b"date", b"etag", b"vary"];
    for field in Fields::new(fields).filter(|field| NAMES.iter().any(|name| field.is(name))) {
        put_field(field.name, field.value, out);
    }
}
