//! Requests that a front end answers itself, independent of its origins.
//!
//! These responses have no `Cache-Status`. RFC 9211 §2 says that a response that a proxy generates itself,
//! and not from a stored response, SHOULD NOT have it; an example is a 400 to a malformed request
//! (`Adapter::refused`). One kind of pages has it nevertheless: those about an origin that is not available.
//! The cache was consulted before, and the cause of a 502 is easier to find if the response says why the
//! request was forwarded. These responses have no `Via` either, because that is for forwarded messages (RFC
//! 9110 §7.6.3).

use super::request::forwards_left;
use crate::service::{ALL_METHODS, Page, RequestContext, ResponseWriter};
use pollux_http::{
    Status,
    request::{Method, Request, Target},
};

/// Fields that a trace does not show: they may be secrets (RFC 9110 §9.3.8).
const SECRETS: [&[u8]; 3] = [b"authorization", b"cookie", b"proxy-authorization"];

/// Answers a request that must not be forwarded: CONNECT, because this server connects to no other server for
/// clients, and a request that has reached its limit of forwards (RFC 9110 §7.6.2). Returns whether the
/// request was answered.
#[inline]
pub(super) fn answer(
    context: &mut RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    request: &Request<'_>,
) -> bool {
    match request.method {
        Method::Connect => put_page(context, response, request, Page::NO_TUNNEL),
        Method::Trace | Method::Options if forwards_left(request) == Some(0) => {
            answer_last(context, response, request);
        }
        _ => return false,
    }
    true
}

/// Answers a request for which there are neither files nor a route.
pub(super) fn answer_not_found(
    context: &mut RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    request: &Request<'_>,
) {
    // This request concerns the server itself, and no path (RFC 9110 §9.3.7). The methods differ from path to path.
    if request.method == Method::Options && request.target == Target::Asterisk {
        let answer = response.head(context, Status::NoContent).content(b"");
        return context.log(request.line, answer);
    }
    let page = Page { status: Status::NotFound, reason: "", fields: b"" };
    put_page(context, response, request, page);
}

fn put_page(
    context: &mut RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    request: &Request<'_>,
    page: Page<'_>,
) {
    let answer = page.put(context, response);
    context.log(request.line, answer);
}

#[cold]
fn answer_last(
    context: &mut RequestContext<'_>,
    response: &mut ResponseWriter<'_>,
    request: &Request<'_>,
) {
    let answer = if request.method == Method::Trace {
        let mut content = [request.line, b"\r\n"].concat();
        for field in request.fields() {
            if !SECRETS.iter().any(|secret| field.is(secret)) {
                super::hop::put_line(&mut content, field.name, field.value);
            }
        }
        content.extend_from_slice(b"\r\n");
        response.head(context, Status::Ok).field("Content-Type", b"message/http").content(&content)
    } else {
        response.head(context, Status::NoContent).lines(ALL_METHODS).content(b"")
    };
    context.log(request.line, answer);
}
