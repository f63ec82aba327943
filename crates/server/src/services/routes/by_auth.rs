//! The check of passwords, before redirects, rewrites and services handle a request.

use super::{Exchange, Routes};
use crate::{
    auth::{Judgment, Outcome, Realm, Verification, Verifier},
    config::Architecture,
    policy::is_preflight,
    reactor::{ConnectedSocket, Endpoint, EventTarget, UpstreamId},
    service::{Event, Flow, Page, Part, RequestContext, ResponseWriter, Service as _},
    services::{hub::without_token, site::Site},
    settings::Settings,
};
use pollux_http::{
    Status,
    request::{Framing, ParseStatus, Request, parse},
};
use std::sync::Arc;

/// The timeout for dialling a notifier. The worker's end is connected already, so any value works.
const NOTIFIER_TICKS: u32 = 50;

/// The data that a worker needs to check passwords.
#[derive(Debug)]
pub(super) struct Auth {
    realm: Arc<Realm>,
    /// The verifier outside the event loop; `None` in architectures without an event loop, whose workers
    /// verify in line.
    verifier: Option<Verifier>,
    /// Whether scripts of other origins may read the site. Browsers send the preflight request for that
    /// without credentials.
    has_cors: bool,
}

/// A request whose password is being verified.
pub(crate) struct UnverifiedRequest {
    head: Vec<u8>,
    is_rewritten: bool,
    notifier: UpstreamId,
    verification: Verification,
}

impl UnverifiedRequest {
    /// Cancels the verification after the client has disconnected.
    pub(super) fn cancel(&self, context: &mut RequestContext<'_>) {
        self.verification.cancel();
        context.reactor.close(self.notifier);
    }
}

impl Auth {
    /// Creates the check for the default site of `config`. If every request is redirected to HTTPS, no
    /// password is requested: it would be sent over plain HTTP.
    pub(super) fn of(config: &Settings) -> Option<Box<Self>> {
        if config.https_redirect.is_some() {
            return None;
        }
        let realm = config.auth.clone()?;
        let verifier = (config.architecture == Architecture::Event).then(Verifier::default);
        let has_cors = config.site.rules.cors.is_some();
        Some(Box::new(Self { realm, verifier, has_cors }))
    }
}

impl Routes {
    /// Begins a request to a site that has passwords.
    #[cold]
    pub(super) fn begin_by_auth(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
        is_rewritten: bool,
    ) -> Flow<Exchange> {
        let Some(auth) = &self.auth else {
            return self.begin_admitted(context, request, response, is_rewritten);
        };
        // Redirects and rewrites are skipped, because their results may be confidential. An origin gets no
        // request without a password.
        let is_for_hub =
            || self.hub.as_ref().is_some_and(|hub| hub.has_cors() && hub.has(&request.target));
        let is_for_origin =
            || self.proxy.as_ref().is_some_and(|proxy| proxy.route(&request.target).is_some());
        if is_preflight(request) && (is_for_hub() || auth.has_cors && !is_for_origin()) {
            return self.begin_elsewhere(context, request, response);
        }
        let name = match auth.realm.judge(request) {
            Judgment::Open => {
                return self.begin_admitted(context, request, response, is_rewritten);
            }
            Judgment::Refused => return self.challenge(context, request, response),
            Judgment::Ambiguous => {
                let reason = "This path has several meanings, of which some need a password.";
                let page = Page { status: Status::BadRequest, reason, fields: b"" };
                return refuse(context, request, response, self.site.as_mut(), page);
            }
            Judgment::Granted(name) => name,
            Judgment::Unverified(attempt) => match &auth.verifier {
                Some(verifier) => {
                    let started = verifier.start(&auth.realm, attempt);
                    let Ok((near, verification)) = started else {
                        return busy(context, request, response, self.site.as_mut());
                    };
                    let notifier = context.reactor.dial(
                        Endpoint::Connected(ConnectedSocket::new(near)),
                        NOTIFIER_TICKS,
                        EventTarget::Exchange(context.id()),
                    );
                    let head = request.to_head();
                    let waiting = UnverifiedRequest { head, is_rewritten, notifier, verification };
                    return Flow::Waiting(Exchange::Auth(Box::new(waiting)));
                }
                None if attempt.verify(&auth.realm) => attempt.into_name(),
                None => return self.challenge(context, request, response),
            },
        };
        if !auth.realm.forwards() {
            context.hide_authorization();
        }
        context.set_user(&name);
        self.begin_admitted(context, request, response, is_rewritten)
    }

    /// Begins a request that is permitted.
    fn begin_admitted(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
        is_rewritten: bool,
    ) -> Flow<Exchange> {
        if self.policy.is_some() && !is_rewritten {
            return self.begin_by_policy(context, request, response);
        }
        self.begin_elsewhere(context, request, response)
    }

    /// Continues a request when its verification is over.
    pub(super) fn resume_auth(
        &mut self,
        context: &mut RequestContext<'_>,
        waiting: Box<UnverifiedRequest>,
        event: &Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        match event {
            Event::Ended(_) => context.reactor.close(waiting.notifier),
            Event::Failed(..) => {}
            _ => return Flow::Waiting(Exchange::Auth(waiting)),
        }
        let UnverifiedRequest { head, is_rewritten, verification, .. } = *waiting;
        let Ok(ParseStatus::Complete { request, .. }) = parse(&head, &context.rules.limits) else {
            // The head was parsed before, so this does not happen.
            return Flow::Cut;
        };
        match verification.outcome() {
            // The credentials are remembered now, so that they are accepted.
            Outcome::Right => {
                let flow = self.begin_by_auth(context, &request, response, is_rewritten);
                match flow {
                    // The protocol has already handled the end of a request without a body, so the end is
                    // delivered here.
                    Flow::NeedBody(exchange) if request.framing == Framing::None => {
                        self.body(context, exchange, Part::End { trailers: b"" }, response)
                    }
                    flow => flow,
                }
            }
            Outcome::Wrong => self.challenge(context, &request, response),
            Outcome::Failed => busy(context, &request, response, self.site.as_mut()),
        }
    }

    /// Answers a request without the right password.
    fn challenge(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let fields = self.auth.as_ref().map_or(&b""[..], |auth| auth.realm.challenge());
        let reason = "This page needs a name and a password.";
        let page = Page { status: Status::Unauthorized, reason, fields };
        refuse(context, request, response, self.site.as_mut(), page)
    }
}

/// Answers that too many passwords wait to be verified.
fn busy(
    context: &mut RequestContext<'_>,
    request: &Request<'_>,
    response: &mut ResponseWriter<'_>,
    site: Option<&mut Site>,
) -> Flow<Exchange> {
    let reason = "Too many passwords are being verified.";
    let fields = b"Retry-After: 1\r\n";
    let page = Page { status: Status::ServiceUnavailable, reason, fields };
    refuse(context, request, response, site, page)
}

/// Answers with the page of `site` for this error, wherever its file is, or with `page`.
fn refuse(
    context: &mut RequestContext<'_>,
    request: &Request<'_>,
    response: &mut ResponseWriter<'_>,
    site: Option<&mut Site>,
    page: Page<'_>,
) -> Flow<Exchange> {
    if request.framing != Framing::None {
        context.close_after();
    }
    let answer = match site {
        Some(site) => site.put_page(context, response, page),
        None => page.put(context, response),
    };
    // A request for the hub may have its token in the query.
    context.log(&without_token(request), answer);
    Flow::Done
}
