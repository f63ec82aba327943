//! A request's answer, written to the outbox.

use crate::{
    outbox::{Outbox, Part, Tail},
    service::Service,
    site::{Keep, Miss, Representation},
};
use pollux_http::{
    Reject, Status,
    conditional::{self, Verdict},
    multipart::Multipart,
    path::SafePath,
    range::{self, ByteRange, Parts, Selection},
    request::{Known, KnownSet, Method, Request, Target, Version},
    response::Head,
};
use std::{collections::VecDeque, rc::Rc};

/// Cached content up to this length is copied behind its head, so that both leave in one send(2)
/// and several pipelined responses do too; longer content is sent from where it is.
const COPY_MAX: u64 = 16 << 10;

/// The methods that resources have (RFC 9110 §10.2.1).
const ALLOW: &[u8] = b"Allow: GET, HEAD, OPTIONS\r\n";

/// What was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// With which status.
    pub(crate) status: Status,
    /// Octets of content that follow the head.
    pub(crate) len: u64,
}

/// Answers `request` into `outbox`. `alive` says whether the connection may be kept after it;
/// returns whether it is.
#[inline]
pub(crate) fn answer(
    service: &mut Service,
    outbox: &mut Outbox,
    request: &Request<'_>,
    alive: bool,
) -> bool {
    service.requests += 1;
    let mut keep = Keep { alive, version: request.version };
    let answer = match (request.method, request.target) {
        (Method::Get | Method::Head, Target::Path { path, query }) => {
            match service.site.find(path, service.clock.tick()) {
                Ok(resource) => {
                    answer_file(service, outbox, request, resource.select(request), keep)
                }
                Err(Miss::NeedsSlash) => {
                    answer_with_slash(service, outbox, request, path, query, keep)
                }
                Err(Miss::Status(status)) => {
                    let page = Page { status, reason: "", fields: b"" };
                    put_page(service, outbox, request.method, page, keep)
                }
            }
        }
        _ => {
            // Whether a body follows that was only announced nobody can tell (RFC 9110 §10.1.1),
            // nor whether what follows CONNECT was meant for a tunnel (RFC 9931).
            keep.alive &= !request.expect_continue && request.method != Method::Connect;
            answer_method(service, outbox, request, keep)
        }
    };
    if let Some(log) = &mut service.log {
        log.write(service.clock.date(), request.line, answer);
    }
    keep.alive
}

/// Whether the body of `request` is asked for if its sender waits for that (RFC 9110 §10.1.1).
pub(crate) fn wants_body(request: &Request<'_>) -> bool {
    matches!(request.method, Method::Get | Method::Head)
}

/// Answers what is no request, or none that is taken; the connection is closed after it.
pub(crate) fn refuse(
    service: &mut Service,
    outbox: &mut Outbox,
    reject: &Reject,
    method: Method<'_>,
) {
    service.requests += 1;
    let keep = Keep { alive: false, version: Version::Http11 };
    let page = Page { status: reject.status, reason: reject.reason, fields: b"" };
    let answer = put_page(service, outbox, method, page, keep);
    if let Some(log) = &mut service.log {
        log.write(service.clock.date(), b"-", answer);
    }
}

#[inline]
fn answer_file(
    service: &Service,
    outbox: &mut Outbox,
    request: &Request<'_>,
    file: &Rc<Representation>,
    keep: Keep,
) -> Answer {
    const PRECONDITIONS: KnownSet = KnownSet::new(&[
        Known::IfNoneMatch,
        Known::IfModifiedSince,
        Known::Range,
        Known::IfMatch,
        Known::IfUnmodifiedSince,
    ]);
    if request.has_any(PRECONDITIONS) {
        return answer_conditionally(service, outbox, request, file, keep);
    }
    put_whole(service, outbox, request.method, file, keep)
}

#[inline]
fn put_whole(
    service: &Service,
    outbox: &mut Outbox,
    method: Method<'_>,
    file: &Rc<Representation>,
    keep: Keep,
) -> Answer {
    let date = service.clock.date();
    if method == Method::Head {
        file.put_ok(outbox.bytes(), date, keep, false);
        return Answer { status: Status::Ok, len: 0 };
    }
    let is_copied = file.len() <= COPY_MAX && file.memory().is_some();
    file.put_ok(outbox.bytes(), date, keep, is_copied);
    if !is_copied {
        outbox.set_tail(Tail { file: file.clone(), range: 0..file.len() });
    }
    Answer { status: Status::Ok, len: file.len() }
}

#[cold]
#[inline(never)]
fn answer_conditionally(
    service: &Service,
    outbox: &mut Outbox,
    request: &Request<'_>,
    file: &Rc<Representation>,
    keep: Keep,
) -> Answer {
    let date = service.clock.date();
    let validators = file.validators(date.unix_second());
    match conditional::evaluate(request, Some(&validators)) {
        Verdict::Proceed => {}
        Verdict::NotModified => {
            file.put_not_modified(outbox.bytes(), date, keep);
            return Answer { status: Status::NotModified, len: 0 };
        }
        Verdict::Failed => {
            let page = Page { status: Status::PreconditionFailed, reason: "", fields: b"" };
            return put_page(service, outbox, request.method, page, keep);
        }
    }
    let range = request.single(Known::Range).filter(|_| {
        request.method == Method::Get && conditional::range_applies(request, &validators)
    });
    match range.map_or(Selection::Whole, |range| range::select(range, file.len())) {
        Selection::Whole => put_whole(service, outbox, request.method, file, keep),
        Selection::Parts(parts) => match parts.as_slice() {
            &[part] => put_part(service, outbox, file, part, keep),
            _ => put_parts(service, outbox, file, &parts, keep),
        },
        Selection::Unsatisfiable => {
            let mut fields = Vec::new();
            fields
                .extend_from_slice(format!("Content-Range: bytes */{}\r\n", file.len()).as_bytes());
            let page = Page { status: Status::RangeNotSatisfiable, reason: "", fields: &fields };
            put_page(service, outbox, request.method, page, keep)
        }
    }
}

fn tail(file: &Rc<Representation>, range: ByteRange) -> Tail {
    Tail { file: file.clone(), range: range.first..range.last + 1 }
}

fn put_part(
    service: &Service,
    outbox: &mut Outbox,
    file: &Rc<Representation>,
    part: ByteRange,
    keep: Keep,
) -> Answer {
    file.begin_partial(outbox.bytes(), service.clock.date(), keep)
        .field("Content-Type", file.content_type())
        .content_range(part, file.len())
        .content_length(part.len())
        .end();
    outbox.set_tail(tail(file, part));
    Answer { status: Status::PartialContent, len: part.len() }
}

fn put_parts(
    service: &Service,
    outbox: &mut Outbox,
    file: &Rc<Representation>,
    parts: &Parts,
    keep: Keep,
) -> Answer {
    let multipart = Multipart::new(rand::random(), file.content_type(), file.len());
    let len = multipart.content_length(parts);
    let mut content_type = Vec::new();
    multipart.put_content_type(&mut content_type);
    file.begin_partial(outbox.bytes(), service.clock.date(), keep)
        .lines(&content_type)
        .content_length(len)
        .end();
    let mut framed = VecDeque::new();
    for (index, &part) in parts.as_slice().iter().enumerate() {
        let mut head = Vec::new();
        multipart.put_part_head(&mut head, part, index == 0);
        framed.push_back(Part { head, tail: Some(tail(file, part)) });
    }
    let mut end = Vec::new();
    multipart.put_end(&mut end);
    framed.push_back(Part { head: end, tail: None });
    outbox.set_parts(framed);
    Answer { status: Status::PartialContent, len }
}

#[cold]
fn answer_method(
    service: &Service,
    outbox: &mut Outbox,
    request: &Request<'_>,
    keep: Keep,
) -> Answer {
    if request.method == Method::Options {
        Head::new(outbox.bytes(), Status::NoContent)
            .date(service.clock.date())
            .lines(&service.common_fields)
            .lines(ALLOW)
            .lines(keep.line())
            .end();
        return Answer { status: Status::NoContent, len: 0 };
    }
    let page = match request.method {
        Method::Other(_) => {
            let reason = "this server does not know the method";
            Page { status: Status::NotImplemented, reason, fields: ALLOW }
        }
        _ => Page {
            status: Status::MethodNotAllowed,
            reason: "there are GET, HEAD and OPTIONS",
            fields: ALLOW,
        },
    };
    put_page(service, outbox, request.method, page, keep)
}

/// A directory has its slash: relative links in its index would otherwise miss it.
#[cold]
fn answer_with_slash(
    service: &Service,
    outbox: &mut Outbox,
    request: &Request<'_>,
    path: &[u8],
    query: Option<&[u8]>,
    keep: Keep,
) -> Answer {
    let mut scratch = Vec::new();
    let mut location = b"Location: ".to_vec();
    // The path made safe, not the raw one: `//host` in a Location would lead to another server.
    if let Ok(safe) = SafePath::new(path, &mut scratch) {
        encode_path(safe.as_bytes(), &mut location);
    }
    location.push(b'/');
    if let Some(query) = query {
        location.push(b'?');
        location.extend_from_slice(query);
    }
    location.extend_from_slice(b"\r\n");
    let status = Status::MovedPermanently;
    let page = Page { status, reason: "", fields: &location };
    put_page(service, outbox, request.method, page, keep)
}

/// Percent-encodes what RFC 3986 does not allow in a path.
fn encode_path(path: &[u8], out: &mut Vec<u8>) {
    for &byte in path {
        if byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

/// A response that has no file.
#[derive(Clone, Copy)]
struct Page<'a> {
    status: Status,
    /// One sentence more for the reader; of our own words, so nothing in it needs escaping.
    reason: &'a str,
    /// Fields of this response alone: lines with CRLF.
    fields: &'a [u8],
}

#[cold]
fn put_page(
    service: &Service,
    outbox: &mut Outbox,
    method: Method<'_>,
    page: Page<'_>,
    keep: Keep,
) -> Answer {
    let Page { status, reason, fields } = page;
    let title = format!("{} {}", status.code(), status.reason());
    let paragraph = if reason.is_empty() { String::new() } else { format!("<p>{reason}</p>") };
    let body = format!(
        "<!doctype html><html lang=\"en\"><title>{title}</title><h1>{title}</h1>{paragraph}</html>\n"
    );
    let out = outbox.bytes();
    Head::new(out, status)
        .date(service.clock.date())
        .lines(&service.common_fields)
        .lines(fields)
        .field("Content-Type", b"text/html; charset=utf-8")
        .content_length(body.len() as u64)
        .lines(keep.line())
        .end();
    if method == Method::Head {
        return Answer { status, len: 0 };
    }
    out.extend_from_slice(body.as_bytes());
    Answer { status, len: body.len() as u64 }
}
