//! Publishing: checks the permission, and handles the form.

use super::{Hub, answer::Responder, content::UPDATE, count_refusal, shared::Ticket};
use crate::service::{RequestContext, ResponseWriter};
use pollux_http::request::{Framing, KnownField, Method, Request, Target};
use pollux_hub::{
    form,
    limits::Limits,
    query,
    reject::Reject,
    token::{Access, Source},
};
use std::sync::Arc;

/// A form that is being received, and the permissions of its sender.
#[derive(Debug)]
pub(super) struct Form {
    bytes: Vec<u8>,
    /// `None` if publishers need no token.
    access: Option<Access>,
}

impl Form {
    /// Takes a part of the form.
    pub(super) fn receive(&mut self, bytes: &[u8], limits: &Limits) -> Result<(), Reject> {
        UPDATE.append(&mut self.bytes, bytes, limits)
    }
}

impl Hub {
    /// Answers a request whose content is longer than the server takes (`--max-body`).
    pub(crate) fn answer_large(
        &self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) {
        let (cors, has_log) = (&self.shared.config.cors, context.worker.log.is_some());
        let responder = Responder::of(request, cors, has_log, self.is_hub_itself(&request.target));
        let reject = Reject::too_large("the content is longer than this server takes: send less");
        if request.method == Method::Post {
            count_refusal(context, &reject);
        }
        responder.reject(context, response, &reject, &self.shared.url);
    }

    /// Decides from the request's head whether the form is accepted, before its content is received.
    pub(super) fn admit(
        &self,
        request: &Request<'_>,
        hides_authorization: bool,
    ) -> Result<Form, Reject> {
        let shared = &self.shared;
        let Target::Path { path, query } = request.target else {
            return Err(Reject::invalid("the target of a publish request is a path"));
        };
        if path != shared.config.path.as_bytes() {
            return Err(Reject {
                status: 405,
                code: None,
                message: "updates are posted to the path of the hub itself".into(),
            });
        }
        let token = query::token(query.unwrap_or_default(), shared.config.dialect)?;
        let publishers = shared.publishers.as_ref();
        let token = token.as_deref();
        let access = match self.access(request, hides_authorization, token, publishers)? {
            Some((access, source)) => {
                if source == Source::Cookie {
                    self.check_origin(request)?;
                }
                Some(access)
            }
            None if shared.config.publish_anonymous => None,
            None => {
                return Err(Reject::token_missing(
                    "publishing needs an access token: present one that permits the topic",
                ));
            }
        };
        let is_empty = matches!(request.framing, Framing::None | Framing::Length(0));
        // If a request has neither content nor a content type, the error is that the topic is missing.
        if !is_empty || request.single(KnownField::ContentType).is_some() {
            UPDATE.check_head(request, &shared.config.limits)?;
        }
        Ok(Form { bytes: Vec::new(), access })
    }

    /// Prevents cross-site request forgery. A browser adds the cookie to a request from any page, so the
    /// page must have the origin of the hub, or one that `cors` allows.
    fn check_origin(&self, request: &Request<'_>) -> Result<(), Reject> {
        let text = |value| std::str::from_utf8(value).ok();
        let source = match request.field(b"origin") {
            Some(origin) => text(origin),
            None => request.single(KnownField::Referer).and_then(text),
        };
        let origin = source.and_then(|source| url::Url::parse(source).ok()).map(|url| url.origin());
        let is_own = |origin: &url::Origin| {
            let own = url::Url::parse(self.shared.url.as_str()).map(|url| url.origin());
            let host = request.host.and_then(text).and_then(|host| {
                let scheme = self.shared.url.as_str().split(':').next().unwrap_or("http");
                url::Url::parse(&format!("{scheme}://{host}")).ok()
            });
            own.is_ok_and(|own| own == *origin)
                || host.is_some_and(|host| host.origin() == *origin)
                || self.shared.config.cors.iter().any(|allowed| {
                    url::Url::parse(allowed).is_ok_and(|allowed| allowed.origin() == *origin)
                })
        };
        match origin {
            Some(origin) if is_own(&origin) => Ok(()),
            _ => Err(Reject::forbidden(
                "a token in a cookie is accepted only from pages of the hub's own origin: send the \
                 token in the field Authorization",
            )),
        }
    }

    /// Publishes a complete form. Returns the update's identifier, or `None` if `ticket` receives the result
    /// later.
    pub(super) fn publish(
        &mut self,
        context: &mut RequestContext<'_>,
        form: &Form,
        ticket: Ticket,
    ) -> Result<Option<Arc<str>>, Reject> {
        let shared = &self.shared;
        let dialect = form.access.as_ref().map_or(shared.config.dialect, |access| access.dialect);
        let (served, limits) = (shared.config.dialect, &shared.config.limits);
        let publication = form::parse(&form.bytes, dialect, served, &shared.url, limits)?;
        if let Some(access) = &form.access
            && !access.may_publish(&publication.topics, &shared.url)
        {
            return Err(Reject::forbidden(
                "the access token does not permit publishing updates of this topic",
            ));
        }
        if !shared.allows_update() {
            return Err(Reject::too_many("the hub gets too many updates: try again in a second"));
        }
        let outcome = shared.publish(publication, Some(ticket))?;
        context.worker.has_burst |= self.read_burst();
        Ok(outcome)
    }
}
