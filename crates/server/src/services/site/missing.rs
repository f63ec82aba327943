//! Responses for paths without a file: the fallback, the site's page for an error, the listing of a
//! directory, or a redirect to the path with a slash.

use super::{
    answer::{answer_file, answer_with_slash, put_page},
    files::{Files, Miss, Representation},
};
use crate::{
    policy::listing,
    service::{Page, RequestContext, worker_state::Answer},
    transport::outbox::Outbox,
};
use pollux_http::{
    Status,
    path::SafePath,
    request::{Method, Request},
    response::Head,
};

/// The request for a missing file.
pub(super) struct MissingFile<'a> {
    pub(super) request: &'a Request<'a>,
    pub(super) path: &'a [u8],
    pub(super) query: Option<&'a [u8]>,
}

/// Answers a request for a path without a file.
#[cold]
#[inline(never)]
pub(super) fn answer_missing(
    files: &mut Files,
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    missing: &MissingFile<'_>,
    miss: Miss,
) -> Answer {
    let MissingFile { request, path, query } = *missing;
    match miss {
        Miss::NeedsSlash => answer_with_slash(context, outbox, request, path, query),
        Miss::NoIndex if files.rules().listing => list(files, context, outbox, missing),
        Miss::NoIndex => put_error(files, context, outbox, request, Status::Forbidden),
        Miss::Status(Status::NotFound) if is_page(path) => {
            let fallback = files.rules().fallback.clone();
            let tick = context.worker.clock.tick();
            match fallback.map(|path| files.find(path.as_bytes(), tick)) {
                Some(Ok(resource)) => match files.variant(&resource, request) {
                    None => answer_file(context, outbox, request, resource.select(request)),
                    Some(variant) => answer_file(context, outbox, request, &variant),
                },
                _ => put_error(files, context, outbox, request, Status::NotFound),
            }
        }
        Miss::Status(status) => put_error(files, context, outbox, request, status),
    }
}

/// Returns whether the path may be a page of a single-page application: `/users/7`, and not `/app.js`, whose
/// absence should be visible.
fn is_page(path: &[u8]) -> bool {
    let last = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    !last.contains(&b'.')
}

/// Answers with the site's page for an error, or with a generated page.
fn put_error(
    files: &mut Files,
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    request: &Request<'_>,
    status: Status,
) -> Answer {
    let path = files.rules().error_page(status.code()).map(ToOwned::to_owned);
    let tick = context.worker.clock.tick();
    match path.map(|path| files.find(path.as_bytes(), tick)) {
        Some(Ok(resource)) => put_error_file(context, outbox, request, status, &resource.identity),
        _ => put_page(context, outbox, request, Page { status, reason: "", fields: b"" }),
    }
}

fn put_error_file(
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    request: &Request<'_>,
    status: Status,
    file: &Representation,
) -> Answer {
    Head::new(outbox.bytes(), status)
        .date(context.worker.clock.date())
        .lines(&context.rules.common_fields)
        .field("Content-Type", file.content_type())
        .content_length(file.len())
        .lines(context.keep_alive().line())
        .end();
    if request.method == Method::Head {
        return Answer { status, len: 0 };
    }
    outbox.push(file.content(0..file.len()));
    Answer { status, len: file.len() }
}

fn list(
    files: &mut Files,
    context: &RequestContext<'_>,
    outbox: &mut Outbox,
    missing: &MissingFile<'_>,
) -> Answer {
    let request = missing.request;
    let mut scratch = Vec::new();
    let Ok(path) = SafePath::new(missing.path, &mut scratch) else {
        return put_error(files, context, outbox, request, Status::NotFound);
    };
    let (mut entries, is_cut) = match files.list(&path) {
        Ok(listed) => listed,
        Err(status) => return put_error(files, context, outbox, request, status),
    };
    listing::sort(&mut entries);
    let (kind, content): (&[u8], _) = if wants_json(missing) {
        (b"application/json", listing::json(&entries))
    } else {
        (b"text/html; charset=utf-8", listing::html(path.as_bytes(), &entries, is_cut))
    };
    let status = Status::Ok;
    let out = outbox.bytes();
    Head::new(out, status)
        .date(context.worker.clock.date())
        .lines(&context.rules.common_fields)
        .lines(b"Cache-Control: no-cache\r\nVary: Accept\r\n")
        .field("Content-Type", kind)
        .content_length(content.len() as u64)
        .lines(context.keep_alive().line())
        .end();
    if request.method == Method::Head {
        return Answer { status, len: 0 };
    }
    out.extend_from_slice(content.as_bytes());
    Answer { status, len: content.len() as u64 }
}

/// Returns whether the client wants JSON, by `?format=json` or by Accept: browsers name text/html there,
/// programs that want JSON do not.
fn wants_json(missing: &MissingFile<'_>) -> bool {
    if let Some(query) = missing.query
        && query.split(|&byte| byte == b'&').any(|part| part == b"format=json")
    {
        return true;
    }
    let accept = missing.request.field(b"accept").unwrap_or_default();
    let names =
        |kind: &[u8]| accept.windows(kind.len()).any(|part| part.eq_ignore_ascii_case(kind));
    names(b"application/json") && !names(b"text/html")
}

#[cfg(test)]
mod tests {
    use super::is_page;

    #[test]
    fn a_dot_in_the_last_segment_is_a_files() {
        assert!(is_page(b"/users/7") && is_page(b"/v1.2/") && is_page(b"/"));
        assert!(!is_page(b"/app.js") && !is_page(b"/a/.b"));
    }
}
