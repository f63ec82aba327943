//! Selects the service that answers a request: one type with all services of a site.

mod by_auth;
mod by_origin;
mod by_policy;

use crate::{
    policy::{Cors, Policy},
    service::{
        Event, Flow, Part, RequestContext, ResponseWriter, Service, ServiceContext, StreamSend,
    },
    services::{
        acme::AcmeAnswers,
        guestbook::{self, Guestbook, StoreOpening},
        hub::{self, Hub, HubShared, without_token},
        proxy::{self, Proxy, RouteId},
        redirect::HttpsRedirect,
        site::{Contents, Site, Tree},
    },
};
use crate::{
    protocol::rules::Rules,
    reactor::{ClientId, ExchangeId, Reactor},
    settings::Settings,
};
use by_auth::Auth;
use pollux_http::request::Request;
use pollux_hub::subscribers::Delivery;
use std::sync::Arc;

/// All services of a site. This is a struct without trait objects, so that an engine is monomorphised only
/// for its mechanism, and a request needs no dynamic call.
#[derive(Debug)]
pub(crate) struct Routes {
    /// The origins whose scripts may read responses, if the fields differ from request to request.
    cors: Option<Box<Cors>>,
    /// Passwords, if some paths need one.
    auth: Option<Box<Auth>>,
    /// Redirects and rewrites, if there are any.
    policy: Option<Box<Policy>>,
    /// Files below a directory, for requests that belong to no other service.
    site: Option<Site>,
    /// A guestbook at one path.
    guestbook: Option<Box<Guestbook>>,
    /// A hub at one path.
    hub: Option<Box<Hub>>,
    /// The proxy to origins, for some paths or for requests that match no file.
    proxy: Option<Box<Proxy>>,
    /// Redirects every request to HTTPS, if this is set.
    redirect: Option<HttpsRedirect>,
    /// Answers to challenges of an ACME authority, which have precedence over everything else.
    acme: Option<Box<AcmeAnswers>>,
}

/// An exchange of one of the services.
pub(crate) enum Exchange {
    /// Its password is being verified.
    Auth(Box<by_auth::UnverifiedRequest>),
    /// Of the site.
    Site(<Site as Service>::Exchange),
    /// Of the guestbook.
    Guestbook(guestbook::Exchange),
    /// Of the hub.
    Hub(hub::Exchange),
    /// Of the front end.
    Proxy(proxy::Exchange),
}

impl Routes {
    /// Creates the routes of `config` for one worker. The directory of the site is open already, and
    /// `contents` caches its files. Stores are opened at the time that `opening` says.
    ///
    /// # Errors
    /// The errors of [`Guestbook::open`].
    pub(crate) fn open_in(
        tree: Option<Arc<Tree>>,
        contents: Arc<Contents>,
        config: &Settings,
        rules: &Rules,
        opening: StoreOpening,
    ) -> anyhow::Result<Self> {
        let guestbook = config.guestbook.as_ref();
        let serve = |tree| Site::new(tree, contents, &config.site, rules.common_fields.clone());
        Ok(Self {
            cors: config.site.rules.cors.clone().filter(Cors::differs_by_origin).map(Box::new),
            auth: Auth::of(config),
            policy: Policy::of(&config.site.rules),
            site: tree.map(serve).transpose()?,
            guestbook: guestbook
                .map(|config| Guestbook::open(config, opening))
                .transpose()?
                .map(Box::new),
            hub: None,
            redirect: config.https_redirect.map(HttpsRedirect::new),
            acme: config.acme_answers.clone().map(|folder| Box::new(AcmeAnswers::new(folder))),
            proxy: config
                .frontend
                .as_ref()
                .map(|proxy| Box::new(Proxy::new(proxy, config.own_tables_of_workers().is_some()))),
        })
    }

    /// Adds the part of one worker of a hub that all workers share. `worker` is the number of this one.
    pub(crate) fn add_hub(&mut self, shared: Arc<HubShared>, worker: usize) {
        self.hub = Some(Box::new(Hub::new(shared, worker)));
    }

    /// Returns the route of a request that goes to origins: by the prefix of its path, or because it matches
    /// no file.
    fn route(&mut self, context: &RequestContext<'_>, request: &Request<'_>) -> Option<RouteId> {
        let proxy = self.proxy.as_ref()?;
        let route = proxy.route(&request.target)?;
        let is_file = proxy.is_behind_files(route)
            && self
                .site
                .as_mut()
                .is_some_and(|site| site.has(request, context.worker.clock.tick()));
        (!is_file).then_some(route)
    }

    /// Returns whether a background task belongs to the proxy.
    pub(crate) fn has_background(&self, background: ExchangeId) -> bool {
        self.proxy.as_ref().is_some_and(|proxy| proxy.has_background(background))
    }

    /// Returns whether an event for a service concerns the hub or an origin of this site.
    pub(crate) fn is_meant(&self, event: &Event<'_>) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.is_meant(event)) || self.is_meant_by_origin(event)
    }

    pub(crate) fn has_guestbook(&self) -> bool {
        self.guestbook.is_some()
    }

    /// Returns whether the proxy has any background task.
    pub(crate) fn has_any_background(&self) -> bool {
        self.proxy.as_ref().is_some_and(|proxy| proxy.has_any_background())
    }

    /// Returns whether an event concerns an origin of this site.
    pub(crate) fn is_meant_by_origin(&self, event: &Event<'_>) -> bool {
        self.proxy.as_ref().is_some_and(|proxy| proxy.is_meant(event))
    }

    /// Takes the hub and the guestbook from the routes that these routes replace.
    pub(crate) fn take_over(&mut self, former: &mut Self) {
        self.hub = former.hub.take();
        self.guestbook = former.guestbook.take();
    }

    /// Closes the connections that the proxy keeps open.
    pub(crate) fn retire(&mut self, reactor: &mut Reactor) {
        if let Some(proxy) = &mut self.proxy {
            proxy.retire(reactor);
        }
    }

    /// Begins a request on a site that has more than files: first passwords are checked, then redirects and
    /// rewrites.
    fn begin_checked(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        match self {
            Self { auth: Some(_), .. } => self.begin_by_auth(context, request, response, false),
            Self { policy: Some(_), .. } => self.begin_by_policy(context, request, response),
            _ => self.begin_elsewhere(context, request, response),
        }
    }

    /// Begins a request in the service to which it belongs.
    fn begin_elsewhere(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        if let Some(redirect) = self.redirect {
            let answer = redirect.answer(context, request, response);
            // The HTTPS listener may have a hub, and the query a token for it.
            context.log(&without_token(request), answer);
            return Flow::Done;
        }
        if let Some(guestbook) = &mut self.guestbook
            && guestbook.has(&request.target)
        {
            return guestbook.begin(context, request, response).map(Exchange::Guestbook);
        }
        if let Some(hub) = &mut self.hub
            && hub.has(&request.target)
        {
            if self.cors.is_some() {
                context.allow_origin(None);
            }
            return hub.begin(context, request, response).map(Exchange::Hub);
        }
        let route = self.route(context, request);
        match (&mut self.proxy, route, &mut self.site) {
            (Some(proxy), Some(route), _) => {
                // Origins decide themselves whose scripts may read their responses.
                if self.cors.is_some() {
                    context.allow_origin(None);
                }
                proxy.begin_on(route, context, request, response).map(Exchange::Proxy)
            }
            (_, _, Some(site)) => site.begin(context, request, response).map(Exchange::Site),
            (_, _, None) => {
                Proxy::refuse(context, request, response);
                Flow::Done
            }
        }
    }
}

impl Service for Routes {
    type Exchange = Exchange;

    #[inline]
    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        match self {
            Self {
                cors: None,
                auth: None,
                policy: None,
                site: Some(site),
                guestbook: None,
                proxy: None,
                hub: None,
                redirect: None,
                acme: None,
            } => site.begin(context, request, response).map(Exchange::Site),
            Self { acme: Some(answers), .. } if answers.answer(context, request, response) => {
                Flow::Done
            }
            Self { cors: Some(_), .. } => self.begin_by_origin(context, request, response),
            _ => self.begin_checked(context, request, response),
        }
    }

    /// Only the hub has an answer of its own, which pages of other origins may read.
    fn refuse_large(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> bool {
        match &self.hub {
            Some(hub) if self.redirect.is_none() && hub.has(&request.target) => {
                hub.answer_large(context, request, response);
                true
            }
            _ => false,
        }
    }

    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let before = self.cors.is_some().then(|| response.position());
        let flow = match (exchange, &mut *self) {
            (Exchange::Guestbook(exchange), Self { guestbook: Some(guestbook), .. }) => {
                guestbook.body(context, exchange, part, response).map(Exchange::Guestbook)
            }
            (Exchange::Hub(exchange), Self { hub: Some(hub), .. }) => {
                hub.body(context, exchange, part, response).map(Exchange::Hub)
            }
            (Exchange::Proxy(exchange), Self { proxy: Some(proxy), .. }) => {
                proxy.body(context, exchange, part, response).map(Exchange::Proxy)
            }
            (Exchange::Site(exchange), Self { site: Some(site), .. }) => {
                site.body(context, exchange, part, response).map(Exchange::Site)
            }
            // No body is read before the password is verified.
            (Exchange::Auth(waiting), _) => Flow::Waiting(Exchange::Auth(waiting)),
            // An exchange of a service that does not exist.
            _ => Flow::Cut,
        };
        self.put_origin(context, response, before);
        flow
    }

    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let before = self.cors.is_some().then(|| response.position());
        let flow = match (exchange, &mut *self) {
            (Exchange::Guestbook(exchange), Self { guestbook: Some(guestbook), .. }) => {
                guestbook.resume(context, exchange, event, response).map(Exchange::Guestbook)
            }
            (Exchange::Hub(exchange), Self { hub: Some(hub), .. }) => {
                hub.resume(context, exchange, event, response).map(Exchange::Hub)
            }
            (Exchange::Proxy(exchange), Self { proxy: Some(proxy), .. }) => {
                proxy.resume(context, exchange, event, response).map(Exchange::Proxy)
            }
            (Exchange::Site(exchange), Self { site: Some(site), .. }) => {
                site.resume(context, exchange, event, response).map(Exchange::Site)
            }
            (Exchange::Auth(waiting), routes) => {
                routes.resume_auth(context, waiting, &event, response)
            }
            _ => Flow::Cut,
        };
        self.put_origin(context, response, before);
        flow
    }

    fn cancel(&mut self, context: &mut RequestContext<'_>, exchange: Exchange) {
        match (exchange, self) {
            (Exchange::Guestbook(exchange), Self { guestbook: Some(guestbook), .. }) => {
                guestbook.cancel(context, exchange);
            }
            (Exchange::Hub(exchange), Self { hub: Some(hub), .. }) => {
                hub.cancel(context, exchange);
            }
            (Exchange::Proxy(exchange), Self { proxy: Some(proxy), .. }) => {
                proxy.cancel(context, exchange);
            }
            (Exchange::Site(exchange), Self { site: Some(site), .. }) => {
                site.cancel(context, exchange);
            }
            (Exchange::Auth(waiting), _) => waiting.cancel(context),
            _ => {}
        }
    }

    /// Only the hub has streams.
    #[inline]
    fn has_stream_work(&self) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.has_stream_work())
    }

    fn pump_streams(
        &mut self,
        context: &mut ServiceContext<'_>,
        send: impl FnMut(ClientId, StreamSend<'_>) -> Delivery,
    ) {
        if let Some(hub) = &mut self.hub {
            hub.pump(context, send);
        }
    }

    fn stream_has_room(&mut self, number: u32) {
        if let Some(hub) = &mut self.hub {
            hub.stream_has_room(number);
        }
    }

    fn stream_has_ended(&mut self, number: u32) {
        if let Some(hub) = &mut self.hub {
            hub.stream_has_ended(number);
        }
    }

    /// Only the hub parks exchanges.
    fn park(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: Exchange,
    ) -> Result<u32, Exchange> {
        match (exchange, &mut self.hub) {
            (Exchange::Hub(exchange), Some(hub)) => {
                hub.park(context, exchange).map_err(Exchange::Hub)
            }
            (exchange, _) => Err(exchange),
        }
    }

    fn unpark(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: ExchangeId,
        number: u32,
        left: u32,
    ) -> Option<Exchange> {
        self.hub.as_mut()?.unpark(context, exchange, number, left).map(Exchange::Hub)
    }

    fn hands_over_streams(&self) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.hands_over_streams())
    }

    fn end_waiting(&mut self, context: &mut ServiceContext<'_>) {
        if let Some(hub) = &mut self.hub {
            hub.end_waiting(context.reactor);
        }
    }

    fn release_stream(&mut self, number: u32) -> Option<Vec<u8>> {
        self.hub.as_mut()?.release_stream(number)
    }

    fn adopt_stream(
        &mut self,
        context: &mut ServiceContext<'_>,
        client: ClientId,
        state: &[u8],
    ) -> Option<u32> {
        self.hub.as_mut()?.adopt_stream(context, client, state)
    }

    /// Only the front end has background tasks.
    fn background(
        &mut self,
        context: &mut ServiceContext<'_>,
        background: ExchangeId,
        event: Event<'_>,
    ) -> bool {
        self.proxy.as_mut().is_some_and(|proxy| proxy.background(context, background, event))
    }

    /// Passes an event to the service that requested it.
    fn event(&mut self, context: &mut ServiceContext<'_>, event: Event<'_>) {
        if let Some(hub) = &mut self.hub
            && hub.is_meant(&event)
        {
            return hub.event(context, event);
        }
        match (&mut self.proxy, &mut self.guestbook) {
            (Some(proxy), _) if proxy.is_meant(&event) => proxy.event(context, event),
            (_, Some(guestbook)) => guestbook.event(context, event),
            _ => {}
        }
    }
}
