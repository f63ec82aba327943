//! Which application answers: the one type that engines are made for.

use crate::{
    config::Config, protocol::rules::Rules, reactor::ExchangeId, transport::outbox::Outbox,
};
use crate::{
    service::{Application, Flow, Part, Turn, Wake, World},
    services::{
        guestbook::{self, Guestbook, Opening},
        proxy::{self, Frontend, RouteId},
        site::{Contents, Site, Tree},
    },
};
use pollux_http::request::Request;
use std::sync::Arc;

/// Every application that there is. A type of its own and no trait object, so that an engine is
/// monomorphised by its mechanism alone and a request's way has no dynamic call.
#[derive(Debug)]
pub(crate) struct Routes {
    /// Files below a directory: whatever is nobody else's.
    site: Option<Site>,
    /// A guestbook at one path.
    guestbook: Option<Box<Guestbook>>,
    /// Origins of some paths, or of what is no file.
    frontend: Option<Box<Frontend>>,
}

/// The exchange of the application that has it.
pub(crate) enum Exchange {
    /// Of the site.
    Site(<Site as Application>::Exchange),
    /// Of the guestbook.
    Guestbook(guestbook::Exchange),
    /// Of the front end.
    Frontend(proxy::Exchange),
}

impl Routes {
    /// What `config` asks for, for one worker; `contents` of files are those of all.
    ///
    /// # Errors
    /// As [`Tree::of`] and [`Guestbook::open`].
    pub(crate) fn open(
        config: &Config,
        rules: &Rules,
        contents: Arc<Contents>,
    ) -> anyhow::Result<Self> {
        Self::open_in(Tree::of(&config.site)?, contents, config, rules, Opening::Now)
    }

    /// As [`Routes::open`], but with a directory that is open, and stores when `opening` says.
    ///
    /// # Errors
    /// As [`Routes::open`].
    pub(crate) fn open_in(
        tree: Option<Arc<Tree>>,
        contents: Arc<Contents>,
        config: &Config,
        rules: &Rules,
        opening: Opening,
    ) -> anyhow::Result<Self> {
        let guestbook = config.guestbook.as_ref();
        let serve = |tree| Site::new(tree, contents, &config.site, rules.common_fields.clone());
        Ok(Self {
            site: tree.map(serve).transpose()?,
            guestbook: guestbook
                .map(|config| Guestbook::open(config, opening))
                .transpose()?
                .map(Box::new),
            frontend: config.frontend.as_ref().map(|frontend| {
                Box::new(Frontend::new(frontend, config.own_file_tables.is_some()))
            }),
        })
    }

    /// The origins that a request is for, if it is for some: those of its path's prefix, or those
    /// that have what is no file.
    fn route(&mut self, turn: &Turn<'_>, request: &Request<'_>) -> Option<RouteId> {
        let frontend = self.frontend.as_ref()?;
        let route = frontend.route(&request.target)?;
        let is_file = frontend.is_behind_files(route)
            && self.site.as_mut().is_some_and(|site| site.has(request, turn.local.clock.tick()));
        (!is_file).then_some(route)
    }

    /// A request that is not the site's alone.
    fn begin_elsewhere(
        &mut self,
        turn: &mut Turn<'_>,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        if let Some(guestbook) = &mut self.guestbook
            && guestbook.has(&request.target)
        {
            return guestbook.begin(turn, request, outbox).map(Exchange::Guestbook);
        }
        let route = self.route(turn, request);
        match (&mut self.frontend, route, &mut self.site) {
            (Some(frontend), Some(route), _) => {
                frontend.begin_on(route, turn, request, outbox).map(Exchange::Frontend)
            }
            (_, _, Some(site)) => site.begin(turn, request, outbox).map(Exchange::Site),
            (_, _, None) => {
                Frontend::refuse(turn, request, outbox);
                Flow::Done
            }
        }
    }
}

impl Application for Routes {
    type Exchange = Exchange;

    #[inline]
    fn begin(
        &mut self,
        turn: &mut Turn<'_>,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        match self {
            Self { site: Some(site), guestbook: None, frontend: None } => {
                site.begin(turn, request, outbox).map(Exchange::Site)
            }
            _ => self.begin_elsewhere(turn, request, outbox),
        }
    }

    fn body(
        &mut self,
        turn: &mut Turn<'_>,
        exchange: Exchange,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        match (exchange, self) {
            (Exchange::Guestbook(exchange), Self { guestbook: Some(guestbook), .. }) => {
                guestbook.body(turn, exchange, part, outbox).map(Exchange::Guestbook)
            }
            (Exchange::Frontend(exchange), Self { frontend: Some(frontend), .. }) => {
                frontend.body(turn, exchange, part, outbox).map(Exchange::Frontend)
            }
            (Exchange::Site(exchange), Self { site: Some(site), .. }) => {
                site.body(turn, exchange, part, outbox).map(Exchange::Site)
            }
            // An exchange of somebody who is not there.
            _ => Flow::Cut,
        }
    }

    fn resume(
        &mut self,
        turn: &mut Turn<'_>,
        exchange: Exchange,
        wake: Wake<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        match (exchange, self) {
            (Exchange::Guestbook(exchange), Self { guestbook: Some(guestbook), .. }) => {
                guestbook.resume(turn, exchange, wake, outbox).map(Exchange::Guestbook)
            }
            (Exchange::Frontend(exchange), Self { frontend: Some(frontend), .. }) => {
                frontend.resume(turn, exchange, wake, outbox).map(Exchange::Frontend)
            }
            (Exchange::Site(exchange), Self { site: Some(site), .. }) => {
                site.resume(turn, exchange, wake, outbox).map(Exchange::Site)
            }
            _ => Flow::Cut,
        }
    }

    fn cancel(&mut self, turn: &mut Turn<'_>, exchange: Exchange) {
        match (exchange, self) {
            (Exchange::Guestbook(exchange), Self { guestbook: Some(guestbook), .. }) => {
                guestbook.cancel(turn, exchange);
            }
            (Exchange::Frontend(exchange), Self { frontend: Some(frontend), .. }) => {
                frontend.cancel(turn, exchange);
            }
            (Exchange::Site(exchange), Self { site: Some(site), .. }) => {
                site.cancel(turn, exchange);
            }
            _ => {}
        }
    }

    /// Only the front end has errands.
    fn errand(&mut self, world: &mut World<'_>, errand: ExchangeId, wake: Wake<'_>) -> bool {
        self.frontend.as_mut().is_some_and(|frontend| frontend.errand(world, errand, wake))
    }

    /// Whoever asked for something for itself is told.
    fn event(&mut self, world: &mut World<'_>, wake: Wake<'_>) {
        match (&mut self.frontend, &mut self.guestbook) {
            (Some(frontend), _) if frontend.is_meant(&wake) => frontend.event(world, wake),
            (_, Some(guestbook)) => guestbook.event(world, wake),
            _ => {}
        }
    }
}
