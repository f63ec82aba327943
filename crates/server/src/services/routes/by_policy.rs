//! Redirects and rewrites, which are applied before any service handles a request.

use super::{Exchange, Routes};
use crate::{
    policy::{Decision, is_preflight},
    service::{Flow, Page, RequestContext, ResponseWriter},
    services::hub::without_token,
};
use pollux_http::{
    Status,
    request::{Framing, KnownField, ParseStatus, Request, Version, parse},
};

impl Routes {
    /// Begins a request to a site that has redirects or rewrites.
    #[cold]
    pub(super) fn begin_by_policy(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let decision =
            self.policy.as_ref().map_or(Decision::Serve, |policy| policy.decide(request));
        let page = match decision {
            Decision::Serve => return self.begin_elsewhere(context, request, response),
            Decision::Rewrite(target) => {
                let head = with_target(request, &target);
                // The log shows what the client requested, and not the result of the rewrite. That may be the path
                // of the hub, so the query may have a token.
                if let Some(records) = &mut context.worker.records {
                    records.set_line(&without_token(request));
                }
                match parse(&head, &context.rules.limits) {
                    Ok(ParseStatus::Complete { request, .. }) => {
                        // The path of the result may need a password.
                        return self.begin_by_auth(context, &request, response, true);
                    }
                    // The captures may have made the head too long.
                    _ => Page { status: Status::BadRequest, reason: "", fields: b"" },
                }
            }
            // A browser does not follow a redirection of a preflight request, but follows one of the request
            // after it.
            Decision::Redirect(..) if context.rules.cors.is_some() && is_preflight(request) => {
                return self.begin_elsewhere(context, request, response);
            }
            Decision::Redirect(status, ref location) => {
                Page { status, reason: "", fields: location }
            }
        };
        if request.framing != Framing::None {
            context.close_after();
        }
        let answer = page.put(context, response);
        context.log(&without_token(request), answer);
        Flow::Done
    }
}

/// Returns the head of a request with another target.
fn with_target(request: &Request<'_>, target: &[u8]) -> Vec<u8> {
    let head = request.to_head();
    let fields = &head[request.line.len()..];
    // The host of an absolute-form target counts, and not Host (RFC 9112 §3.2.2): the new target repeats it.
    let host = request.host.filter(|host| request.single(KnownField::Host) != Some(*host));
    let scheme: &[u8] = if host.is_some() { b"http://" } else { b"" };
    let version: &[u8] = match request.version {
        Version::Http10 => b" HTTP/1.0",
        Version::Http11 => b" HTTP/1.1",
    };
    let method = request.method.as_bytes();
    [method, b" ", scheme, host.unwrap_or_default(), target, version, fields].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::Limits;

    /// Regression: the host of an absolute-form target was lost, and Host counted.
    #[test]
    fn a_rewritten_request_is_for_the_host_of_the_original() {
        for (head, expected) in [
            ("GET /a HTTP/1.1\r\nHost: x\r\n\r\n", "GET /b HTTP/1.1\r\nHost: x\r\n\r\n"),
            (
                "GET http://y:1/a HTTP/1.1\r\nHost: x\r\n\r\n",
                "GET http://y:1/b HTTP/1.1\r\nHost: x\r\n\r\n",
            ),
            ("GET http://y/a HTTP/1.0\r\n\r\n", "GET http://y/b HTTP/1.0\r\n\r\n"),
            ("GET /a HTTP/1.0\r\n\r\n", "GET /b HTTP/1.0\r\n\r\n"),
        ] {
            let Ok(ParseStatus::Complete { request, .. }) =
                parse(head.as_bytes(), &Limits::DEFAULT)
            else {
                panic!("it is complete: {head}");
            };
            let rewritten = String::from_utf8(with_target(&request, b"/b")).unwrap();
            assert_eq!(rewritten, expected);
        }
    }
}
