//! Responses for paths without a file: the fallback, the site's page for an error, the listing of a
//! directory, or a redirect to the path with a slash.

use super::{
    answer::{answer_file, answer_with_slash},
    files::{Files, Miss, Representation},
};
use crate::{
    policy::listing,
    service::{Page, RequestContext, ResponseWriter, worker_state::Answer},
};
use pollux_http::{
    Status,
    accept::Preference,
    conditional::{self, Precondition, Validators},
    path::SafePath,
    request::Request,
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
    response: &mut ResponseWriter<'_>,
    missing: &MissingFile<'_>,
    miss: Miss,
) -> Answer {
    let MissingFile { request, path, query } = *missing;
    let is_page_of_application =
        is_page(path) && is_bare(files, path, context.worker.clock.tick(), miss);
    let miss = if is_page_of_application { Miss::Status(Status::NotFound) } else { miss };
    match miss {
        Miss::NeedsSlash => answer_with_slash(context, response, path, query),
        Miss::NoIndex if files.rules().listing => list(files, context, response, missing),
        Miss::NoIndex => put_error(files, context, response, Status::Forbidden),
        Miss::Status(Status::NotFound) if is_page(path) => {
            let fallback = files.rules().fallback.clone();
            let tick = context.worker.clock.tick();
            match fallback.map(|path| files.find(path.as_bytes(), tick)) {
                Some(Ok(resource)) => match files.variant(&resource, request) {
                    None => {
                        answer_file(files, context, response, request, resource.select(request))
                    }
                    Some(variant) => answer_file(files, context, response, request, &variant),
                },
                _ => put_error(files, context, response, Status::NotFound),
            }
        }
        Miss::Status(status) => put_error(files, context, response, status),
    }
}

/// Returns whether the path leads to a directory that has neither an index nor a listing, on a site with a
/// fallback: it has no page of its own.
fn is_bare(files: &mut Files, path: &[u8], now_tick: u32, miss: Miss) -> bool {
    let rules = files.rules();
    if rules.fallback.is_none() || rules.listing {
        return false;
    }
    match miss {
        Miss::NoIndex => true,
        Miss::NeedsSlash => {
            matches!(files.find(&[path, b"/"].concat(), now_tick), Err(Miss::NoIndex))
        }
        Miss::Status(_) => false,
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
    response: &mut ResponseWriter<'_>,
    status: Status,
) -> Answer {
    put_page(files, context, response, Page { status, reason: "", fields: b"" })
}

/// Answers with the site's page for the status of `page` and the fields of `page`, or with `page` itself.
#[cold]
pub(super) fn put_page(
    files: &mut Files,
    context: &RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    page: Page<'_>,
) -> Answer {
    let path = files.rules().error_page(page.status.code()).map(ToOwned::to_owned);
    let tick = context.worker.clock.tick();
    match path.map(|path| files.find(path.as_bytes(), tick)) {
        Some(Ok(resource)) => put_error_file(context, response, page, &resource.identity),
        _ => page.put(context, response),
    }
}

fn put_error_file(
    context: &RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    page: Page<'_>,
    file: &Representation,
) -> Answer {
    let Page { status, fields, .. } = page;
    let head = response.head(context, status).lines(fields);
    let head = head.field("Content-Type", file.content_type());
    let len = head.length(file.len()).piece(file.content(0..file.len()));
    Answer { status: status.code(), len }
}

/// The fields of a listing that a 304 repeats.
const OF_LISTING: &[u8] = b"Cache-Control: no-cache\r\nVary: Accept\r\n";
/// The field of a listing that has only some of the entries. Programs need it: the array has no place for this.
const IS_CUT: &[u8] = b"X-Listing-Truncated: true\r\n";

fn list(
    files: &mut Files,
    context: &RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    missing: &MissingFile<'_>,
) -> Answer {
    let mut scratch = Vec::new();
    let Ok(path) = SafePath::new(missing.path, &mut scratch) else {
        return put_error(files, context, response, Status::NotFound);
    };
    let (mut entries, is_cut) = match files.list(&path) {
        Ok(listed) => listed,
        Err(status) => return put_error(files, context, response, status),
    };
    // A listing has no validators, but `*` means any representation (RFC 9110 §13.1.1 and §13.1.2).
    let validators = Validators { etag: None, last_modified: None, now: context.unix_second() };
    match conditional::evaluate(missing.request, Some(&validators)) {
        Precondition::Proceed => {}
        Precondition::NotModified => {
            return response.head(context, Status::NotModified).lines(OF_LISTING).content(b"");
        }
        Precondition::Failed => {
            return put_error(files, context, response, Status::PreconditionFailed);
        }
    }
    listing::sort(&mut entries);
    let (kind, content): (&[u8], _) = if wants_json(missing) {
        (b"application/json", listing::json(&entries))
    } else {
        (b"text/html; charset=utf-8", listing::html(path.as_bytes(), &entries, is_cut))
    };
    response
        .head(context, Status::Ok)
        .lines(OF_LISTING)
        .lines(if is_cut { IS_CUT } else { b"" })
        .field("Content-Type", kind)
        .content(content.as_bytes())
}

/// Returns whether the client wants JSON: by `?format=json`, or because it prefers that to HTML. A browser does not.
fn wants_json(missing: &MissingFile<'_>) -> bool {
    if let Some(query) = missing.query
        && query.split(|&byte| byte == b'&').any(|part| part == b"format=json")
    {
        return true;
    }
    let preference = |kind| {
        let lines = missing.request.fields().filter(|field| field.is(b"accept"));
        Preference::of(kind, lines.map(|field| field.value))
    };
    preference("application/json") > preference("text/html")
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
