//! Writes the response to a request to the outbox.

use super::{
    files::{Files, Representation},
    missing::{MissingFile, answer_missing},
};
use crate::{
    service::{Page, RequestContext, worker_state::Answer},
    transport::outbox::{COPY_MAX, Content, Outbox},
};
use pollux_http::{
    Status,
    conditional::{self, Precondition},
    multipart::Multipart,
    path::SafePath,
    range::{self, ByteRange, Parts, Selection},
    request::{KnownField, KnownFieldSet, Method, Request, Target},
    response::Head,
};

/// The methods that resources support (RFC 9110 §10.2.1).
const ALLOW: &[u8] = b"Allow: GET, HEAD, OPTIONS\r\n";

/// Answers `request`.
#[inline]
pub(super) fn answer(
    files: &mut Files,
    context: &mut RequestContext<'_>,
    outbox: &mut Outbox,
    request: &Request<'_>,
) {
    let answer = match (request.method, request.target) {
        (Method::Get | Method::Head, Target::Path { path, query }) => {
            match files.find(path, context.worker.clock.tick()) {
                Ok(resource) => match files.variant(&resource, request) {
                    None => answer_file(context, outbox, request, resource.select(request)),
                    Some(variant) => answer_file(context, outbox, request, &variant),
                },
                Err(miss) => {
                    let missing = MissingFile { request, path, query };
                    answer_missing(files, context, outbox, &missing, miss)
                }
            }
        }
        _ => {
            // It is unknown whether an announced body follows (RFC 9110 §10.1.1), and whether the bytes after
            // CONNECT were meant for a tunnel (RFC 9931).
            if request.expect_continue || request.method == Method::Connect {
                context.close_after();
            }
            answer_method(context, outbox, request)
        }
    };
    context.log(request.line, answer);
}

#[inline]
pub(super) fn answer_file(
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    request: &Request<'_>,
    file: &Representation,
) -> Answer {
    const PRECONDITIONS: KnownFieldSet = KnownFieldSet::new(&[
        KnownField::IfNoneMatch,
        KnownField::IfModifiedSince,
        KnownField::Range,
        KnownField::IfMatch,
        KnownField::IfUnmodifiedSince,
    ]);
    if request.has_any(PRECONDITIONS) {
        return answer_conditionally(context, outbox, request, file);
    }
    put_whole(context, outbox, request.method, file)
}

#[inline]
fn put_whole(
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    method: Method<'_>,
    file: &Representation,
) -> Answer {
    let date = context.worker.clock.date();
    if method == Method::Head {
        file.put_ok(outbox.bytes(), date, context.keep_alive(), false);
        return Answer { status: Status::Ok, len: 0 };
    }
    let is_copied = file.len() <= COPY_MAX && file.is_in_memory();
    file.put_ok(outbox.bytes(), date, context.keep_alive(), is_copied);
    if !is_copied {
        outbox.push(file.content(0..file.len()));
    }
    Answer { status: Status::Ok, len: file.len() }
}

#[cold]
#[inline(never)]
fn answer_conditionally(
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    request: &Request<'_>,
    file: &Representation,
) -> Answer {
    let date = context.worker.clock.date();
    let validators = file.validators(date.unix_second());
    match conditional::evaluate(request, Some(&validators)) {
        Precondition::Proceed => {}
        Precondition::NotModified => {
            file.put_not_modified(outbox.bytes(), date, context.keep_alive());
            return Answer { status: Status::NotModified, len: 0 };
        }
        Precondition::Failed => {
            let page = Page { status: Status::PreconditionFailed, reason: "", fields: b"" };
            return put_page(context, outbox, request, page);
        }
    }
    let range = request.single(KnownField::Range).filter(|_| {
        request.method == Method::Get && conditional::range_applies(request, &validators)
    });
    match range.map_or(Selection::Whole, |range| range::select(range, file.len())) {
        Selection::Whole => put_whole(context, outbox, request.method, file),
        Selection::Parts(parts) => match parts.as_slice() {
            &[part] => put_part(context, outbox, file, part),
            _ => put_parts(context, outbox, file, &parts),
        },
        Selection::Unsatisfiable => {
            let mut fields = Vec::new();
            fields
                .extend_from_slice(format!("Content-Range: bytes */{}\r\n", file.len()).as_bytes());
            let page = Page { status: Status::RangeNotSatisfiable, reason: "", fields: &fields };
            put_page(context, outbox, request, page)
        }
    }
}

fn content(file: &Representation, range: ByteRange) -> Content {
    file.content(range.first..range.last + 1)
}

fn put_part(
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    file: &Representation,
    part: ByteRange,
) -> Answer {
    file.begin_partial(outbox.bytes(), context.worker.clock.date(), context.keep_alive())
        .field("Content-Type", file.content_type())
        .content_range(part, file.len())
        .content_length(part.len())
        .end();
    outbox.push(content(file, part));
    Answer { status: Status::PartialContent, len: part.len() }
}

fn put_parts(
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    file: &Representation,
    parts: &Parts,
) -> Answer {
    let multipart = Multipart::new(rand::random(), file.content_type(), file.len());
    let len = multipart.content_length(parts);
    let mut content_type = Vec::new();
    multipart.put_content_type(&mut content_type);
    file.begin_partial(outbox.bytes(), context.worker.clock.date(), context.keep_alive())
        .lines(&content_type)
        .content_length(len)
        .end();
    for (index, &part) in parts.as_slice().iter().enumerate() {
        multipart.put_part_head(outbox.bytes(), part, index == 0);
        outbox.push(content(file, part));
    }
    multipart.put_end(outbox.bytes());
    Answer { status: Status::PartialContent, len }
}

#[cold]
fn answer_method(
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    request: &Request<'_>,
) -> Answer {
    if request.method == Method::Options {
        Head::new(outbox.bytes(), Status::NoContent)
            .date(context.worker.clock.date())
            .lines(&context.rules.common_fields)
            .lines(ALLOW)
            .lines(&context.rules.preflight(request, ALLOW))
            .lines(context.keep_alive().line())
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
    put_page(context, outbox, request, page)
}

/// Redirects a request for a directory to its path with a slash: without the slash, relative links in its
/// index would be wrong.
#[cold]
pub(super) fn answer_with_slash(
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    request: &Request<'_>,
    path: &[u8],
    query: Option<&[u8]>,
) -> Answer {
    let mut scratch = Vec::new();
    let mut location = b"Location: ".to_vec();
    // This is the safe path, not the raw one: `//host` in a Location would lead to another server.
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
    put_page(context, outbox, request, page)
}

/// Appends a path, and percent-encodes the bytes that RFC 3986 does not allow in it.
fn encode_path(path: &[u8], out: &mut Vec<u8>) {
    for &byte in path {
        if byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

#[cold]
pub(super) fn put_page(
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    request: &Request<'_>,
    page: Page<'_>,
) -> Answer {
    page.put(context.rules, context.worker, outbox, request.method, context.keep_alive())
}
