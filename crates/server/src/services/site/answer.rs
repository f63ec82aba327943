//! The response to a request for a path of the site.

use super::{
    files::{Files, Representation},
    missing::{MissingFile, answer_missing, put_page},
};
use crate::{
    service::{Page, RequestContext, ResponseWriter, worker_state::Answer},
    transport::outbox::{COPY_MAX, Content},
};
use pollux_http::{
    Status,
    conditional::{self, Precondition},
    multipart::Multipart,
    path::SafePath,
    range::{self, ByteRange, Parts, Selection},
    request::{KnownField, KnownFieldSet, Method, Request, Target},
    response::put_content_range,
};

/// The methods that resources support (RFC 9110 §10.2.1).
const ALLOW: &[u8] = b"Allow: GET, HEAD, OPTIONS\r\n";

/// Answers `request`.
#[inline]
pub(super) fn answer(
    files: &mut Files,
    context: &mut RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    request: &Request<'_>,
) {
    let answer = match (request.method, request.target) {
        (Method::Get | Method::Head, Target::Path { path, query }) => {
            match files.find(path, context.worker.clock.tick()) {
                Ok(resource) => match files.variant(&resource, request) {
                    None => {
                        answer_file(files, context, response, request, resource.select(request))
                    }
                    Some(variant) => answer_file(files, context, response, request, &variant),
                },
                Err(miss) => {
                    let missing = MissingFile { request, path, query };
                    answer_missing(files, context, response, &missing, miss)
                }
            }
        }
        _ => answer_method(files, context, response, request),
    };
    context.log(request.line, answer);
}

#[inline]
pub(super) fn answer_file(
    files: &mut Files,
    context: &RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
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
        return answer_conditionally(files, context, response, request, file);
    }
    put_whole(context, response, file)
}

#[inline]
fn put_whole(
    context: &RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    file: &Representation,
) -> Answer {
    if file.len() <= COPY_MAX && file.is_in_memory() {
        return response.prepared_whole(context, file.head());
    }
    let len = response.prepared(context, file.head()).piece(file.content(0..file.len()));
    Answer { status: Status::Ok.code(), len }
}

#[cold]
#[inline(never)]
fn answer_conditionally(
    files: &mut Files,
    context: &RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    request: &Request<'_>,
    file: &Representation,
) -> Answer {
    let validators = file.validators(context.unix_second());
    match conditional::evaluate(request, Some(&validators)) {
        Precondition::Proceed => {}
        Precondition::NotModified => {
            let common = file.common_fields();
            let head = response.head_with(context, common, Status::NotModified);
            return head.lines(file.validator_fields()).content(b"");
        }
        Precondition::Failed => {
            let page = Page { status: Status::PreconditionFailed, reason: "", fields: b"" };
            return put_page(files, context, response, page);
        }
    }
    let range = request.single(KnownField::Range).filter(|_| {
        request.method == Method::Get && conditional::range_applies(request, &validators)
    });
    match range.map_or(Selection::Whole, |range| range::select(range, file.len())) {
        Selection::Whole => put_whole(context, response, file),
        Selection::Parts(parts) => match parts.as_slice() {
            &[part] => put_part(context, response, file, part),
            _ => put_parts(context, response, file, &parts),
        },
        Selection::Unsatisfiable => {
            let mut fields = Vec::new();
            fields
                .extend_from_slice(format!("Content-Range: bytes */{}\r\n", file.len()).as_bytes());
            let page = Page { status: Status::RangeNotSatisfiable, reason: "", fields: &fields };
            put_page(files, context, response, page)
        }
    }
}

fn content(file: &Representation, range: ByteRange) -> Content {
    file.content(range.first..range.last + 1)
}

fn put_part(
    context: &RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    file: &Representation,
    part: ByteRange,
) -> Answer {
    let status = Status::PartialContent;
    let mut body = response
        .head_with(context, file.common_fields(), status)
        .lines(file.metadata_fields())
        .field("Content-Type", file.content_type())
        .lines_by(|out| put_content_range(out, part, file.len()))
        .length(part.len());
    Answer { status: status.code(), len: body.piece(content(file, part)) }
}

fn put_parts(
    context: &RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    file: &Representation,
    parts: &Parts,
) -> Answer {
    let multipart = Multipart::new(rand::random(), file.content_type(), file.len());
    let len = multipart.content_length(parts);
    let status = Status::PartialContent;
    let mut body = response
        .head_with(context, file.common_fields(), status)
        .lines(file.metadata_fields())
        .lines_by(|out| multipart.put_content_type(out))
        .length(len);
    let mut between = Vec::new();
    for (index, &part) in parts.as_slice().iter().enumerate() {
        between.clear();
        multipart.put_part_head(&mut between, part, index == 0);
        body.data(&between);
        body.piece(content(file, part));
    }
    between.clear();
    multipart.put_end(&mut between);
    body.data(&between);
    Answer { status: status.code(), len }
}

#[cold]
fn answer_method(
    files: &mut Files,
    context: &RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    request: &Request<'_>,
) -> Answer {
    if request.method == Method::Options {
        let preflight = context.rules.preflight(request, ALLOW);
        let head = response.head(context, Status::NoContent);
        return head.lines(ALLOW).lines(&preflight).content(b"");
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
    put_page(files, context, response, page)
}

/// Redirects a request for a directory to its path with a slash: without the slash, relative links in its
/// index would be wrong.
#[cold]
pub(super) fn answer_with_slash(
    context: &RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
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
    Page { status: Status::MovedPermanently, reason: "", fields: &location }.put(context, response)
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
