//! Redirects and rewrites, which are applied before any service handles a request.

use super::{Exchange, Routes};
use crate::{
    policy::{Decision, is_preflight},
    service::{Flow, Page, RequestContext, ResponseWriter},
};
use pollux_http::{
    Status,
    request::{Framing, ParseStatus, Request, Version, parse},
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
        context.log(request.line, answer);
        Flow::Done
    }
}

/// Returns the head of a request with another target.
fn with_target(request: &Request<'_>, target: &[u8]) -> Vec<u8> {
    let head = request.to_head();
    let fields = &head[request.line.len()..];
    let version: &[u8] = match request.version {
        Version::Http10 => b" HTTP/1.0",
        Version::Http11 => b" HTTP/1.1",
    };
    [request.method.as_bytes(), b" ", target, version, fields].concat()
}
