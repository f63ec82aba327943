//! An answer from the store: which status, which fields, which octets.

use crate::{
    cache_status::CacheStatus,
    part::{PARTIAL, Part},
    record::{ContentPieces, Object},
};
use pollux_http::{
    Status,
    conditional::{Precondition, Validators, evaluate, range_applies},
    fields::Fields,
    output::{Output, put_decimal},
    range::{ByteRange, Selection, select},
    request::{KnownField, Method, Request},
};

/// A stored response that may be sent.
#[derive(Clone, Debug)]
pub struct Hit {
    pub(crate) object: Object,
    pub(crate) cache_status: CacheStatus,
    /// Octets of the whole, where more is to come than what is stored.
    pub(crate) total_len: Option<u64>,
}

/// What of a stored response is sent to one client.
#[derive(Clone, Debug)]
pub struct HitResponse {
    object: Object,
    cache_status: CacheStatus,
    shape: HitShape,
    is_head: bool,
    age: u64,
    /// Octets of the whole representation, and where what is stored of it begins.
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

/// The fields that describe content: not in a 304, whose client has them (RFC 9110 §15.4.5).
pub(crate) fn describes_content(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 6] = [
        b"content-type",
        b"content-encoding",
        b"content-language",
        b"content-length",
        b"content-range",
        b"content-md5",
    ];
    NAMES.iter().any(|other| name.eq_ignore_ascii_case(other))
}

impl Hit {
    /// The status that is stored.
    pub fn stored_status(&self) -> u16 {
        self.object.header().status
    }

    /// What becomes of the request.
    pub fn cache_status(&self) -> &CacheStatus {
        &self.cache_status
    }

    /// What `request`, to GET or HEAD, is answered at `now`: its conditions and its range are
    /// evaluated here (RFC 9111 §4.3.2), those that are a cache's affair. Several ranges at once are
    /// answered with the whole.
    pub fn response(&self, request: &Request<'_>, now: u64) -> HitResponse {
        let header = self.object.header();
        let is_head = request.method == Method::Head;
        let (start, size) = match self.object.part() {
            Some(Part { range, size }) => (range.first, size),
            None => (0, self.total_len.unwrap_or(header.content_len)),
        };
        // Conditions are about representations, which other statuses do not send.
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

/// Which of the `size` octets that the representation in `object` has are asked for.
pub(crate) fn selected(object: &Object, request: &Request<'_>, size: u64) -> Selection {
    let Some(range) = request.single(KnownField::Range) else { return Selection::Whole };
    let header = object.header();
    // A date says which octets these are only where the origin said so, and only a while later than
    // the change (RFC 9110 §13.1.5, §8.8.2.2).
    let (etag, last_modified) = (object.etag(), header.last_modified());
    let current = Validators { etag, last_modified, now: header.received_at };
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

    /// How many octets of content follow the head, as far as they are stored.
    pub fn content_length(&self) -> u64 {
        let range = self.range();
        range.end - range.start
    }

    /// The content, in pieces that share the store's memory; none for HEAD and for 304.
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

    /// Appends status line and fields: the stored ones, `Age` (RFC 9111 §4), `Cache-Status`, and what
    /// frames the content. Not `Connection` and not the empty line, which are the caller's.
    pub fn put_head(&self, out: &mut impl Output) {
        let header = self.object.header();
        put_status_line(self.status(), out);
        match self.shape {
            HitShape::Whole => out.put(self.object.fields()),
            // Which part this is is said below, and once.
            HitShape::Part(_) => {
                let fields = Fields::new(self.object.fields());
                for field in fields.filter(|field| !field.is(b"content-range")) {
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
        let length = match self.shape {
            HitShape::NotModified => None,
            HitShape::Whole if header.status == PARTIAL => Some(header.content_len),
            HitShape::Whole => (header.status != 204).then_some(self.size),
            HitShape::Part(part) => Some(part.len()),
            HitShape::Unsatisfiable => Some(0),
        };
        if let Some(length) = length {
            put_number(b"Content-Length: ", length, out);
        }
        self.cache_status.put(out);
    }
}

fn put_number(name: &[u8], number: u64, out: &mut impl Output) {
    out.put(name);
    put_decimal(out, number);
    out.put(b"\r\n");
}

/// `HTTP/1.1 STATUS REASON CRLF`; the reason is that of RFC 9110 §15, or none.
pub fn put_status_line(status: u16, out: &mut impl Output) {
    if let Some(known) = Status::ALL.iter().find(|known| known.code() == status) {
        return out.put(known.line());
    }
    out.put(b"HTTP/1.1 ");
    put_decimal(out, status.into());
    out.put(b" \r\n");
}

/// Appends the lines of `fields` that belong into a 304 (RFC 9110 §15.4.5).
pub(crate) fn put_not_modified_fields(fields: &[u8], out: &mut impl Output) {
    for field in Fields::new(fields).filter(|field| !describes_content(field.name)) {
        put_field(field.name, field.value, out);
    }
}

/// Appends the lines of `fields` that belong into a 416: when it was made (RFC 9110 §6.6.1), which
/// representation it speaks of, and what that was chosen by. Not `Cache-Control`, and nothing else that would
/// let another cache keep it: under its URL it would be the answer to requests without that range.
fn put_unsatisfiable_fields(fields: &[u8], out: &mut impl Output) {
    const NAMES: [&[u8]; 3] = [b"date", b"etag", b"vary"];
    for field in Fields::new(fields).filter(|field| NAMES.iter().any(|name| field.is(name))) {
        put_field(field.name, field.value, out);
    }
}

pub(crate) fn put_field(name: &[u8], value: &[u8], out: &mut impl Output) {
    out.put(name);
    out.put(b": ");
    out.put(value);
    out.put(b"\r\n");
}
