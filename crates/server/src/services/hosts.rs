//! Several sites in one server: a request's Host decides which of them answers.
//!
//! A server with one site calls it directly. Otherwise the name is looked up in sorted lists, by
//! binary search: a request costs no hash and no allocation.

use super::{
    Routes,
    guestbook::StoreOpening,
    hub::{HubShared, without_token},
    routes,
    site::{Contents, Tree},
};
use crate::{
    config::Architecture,
    protocol::rules::Rules,
    reactor::{ClientId, ExchangeId, Reactor},
    service::{
        Event, Flow, Page, Part, RequestContext, ResponseWriter, Service, ServiceContext,
        StreamSend,
    },
    settings::{Settings, VirtualHost},
};
use pollux_http::{
    Status,
    host::Authority,
    request::{Framing, Request},
};
use pollux_hub::subscribers::Delivery;
use std::{borrow::Cow, cmp::Ordering, sync::Arc};

/// The number of the default site.
const DEFAULT: u16 = 0;

/// All sites of one worker.
#[derive(Debug)]
pub(crate) struct Hosts {
    /// Answers requests whose name belongs to no other site.
    default: Routes,
    /// The other sites and the names of all sites; `None` on a server with one site.
    others: Option<Box<Others>>,
}

#[derive(Debug)]
struct Others {
    sites: Vec<HostSite>,
    /// The maximum length of a request body for the default site, in bytes.
    default_body: u64,
    names: Names,
}

#[derive(Debug)]
struct HostSite {
    routes: Routes,
    rules: Arc<Rules>,
    max_body: u64,
}

/// An exchange, and the site to which it belongs.
pub(crate) struct Exchange {
    site: u16,
    /// The number of bytes of the body that may still arrive.
    body_left: u64,
    inner: routes::Exchange,
}

impl Exchange {
    /// Returns whether the service of the exchange is moved to the next generation when the configuration
    /// changes.
    pub(crate) fn outlives_generations(&self) -> bool {
        matches!(self.inner, routes::Exchange::Hub(_) | routes::Exchange::Guestbook(_))
    }

    /// Returns whether the password of the request is being verified, so that no service has the exchange
    /// yet.
    pub(crate) fn awaits_password(&self) -> bool {
        matches!(self.inner, routes::Exchange::Auth(_))
    }
}

impl Hosts {
    /// Opens the sites of `config` for one worker. All workers share `contents`, the contents of the default
    /// site's files.
    ///
    /// # Errors
    /// The errors of [`Tree::of`] and [`Routes::open_in`].
    pub(crate) fn open(
        config: &Settings,
        rules: &Rules,
        contents: Arc<Contents>,
    ) -> anyhow::Result<Self> {
        Self::open_in(Tree::of(&config.site)?, contents, config, rules, StoreOpening::Now)
    }

    /// Opens the sites as [`Hosts::open`] does, but the directory of the default site is open already, and
    /// the stores of guestbooks are opened at the time that `opening` says.
    ///
    /// # Errors
    /// The errors of [`Routes::open_in`].
    pub(crate) fn open_in(
        tree: Option<Arc<Tree>>,
        contents: Arc<Contents>,
        config: &Settings,
        rules: &Rules,
        opening: StoreOpening,
    ) -> anyhow::Result<Self> {
        let default = Routes::open_in(tree, contents, config, rules, opening)?;
        if config.hosts.is_empty() {
            return Ok(Self { default, others: None });
        }
        let open = |host| HostSite::open(config, host, opening);
        let sites = config.hosts.iter().map(open).collect::<Result<_, _>>()?;
        let others = Others { sites, default_body: config.default_body, names: Names::of(config) };
        Ok(Self { default, others: Some(Box::new(others)) })
    }

    /// Adds the part of one worker of the hub of the default site. All workers share the hub; `worker` is the
    /// number of this one.
    pub(crate) fn add_hub(&mut self, shared: Arc<HubShared>, worker: usize) {
        self.default.add_hub(shared, worker);
    }

    /// Takes the hub and the guestbooks from the sites that these sites replace. They continue with their
    /// streams and stores. Sites with a guestbook keep their number (`crate::reload` ensures that).
    pub(crate) fn take_over(&mut self, former: &mut Self) {
        self.default.take_over(&mut former.default);
        if let (Some(others), Some(former)) = (&mut self.others, &mut former.others) {
            for (site, former) in others.sites.iter_mut().zip(&mut former.sites) {
                site.routes.take_over(&mut former.routes);
            }
        }
    }

    fn routes(&self) -> impl Iterator<Item = &Routes> {
        let others = self.others.iter().flat_map(|others| &others.sites);
        std::iter::once(&self.default).chain(others.map(|site| &site.routes))
    }

    /// Returns whether a background task belongs to one of these sites.
    pub(crate) fn has_background(&self, background: ExchangeId) -> bool {
        self.routes().any(|routes| routes.has_background(background))
    }

    /// Returns whether these sites have any background task.
    pub(crate) fn has_any_background(&self) -> bool {
        self.routes().any(Routes::has_any_background)
    }

    /// Returns whether an event concerns an origin of these sites.
    pub(crate) fn is_meant_by_origin(&self, event: &Event<'_>) -> bool {
        self.routes().any(|routes| routes.is_meant_by_origin(event))
    }

    /// Closes the connections to origins that these sites keep open.
    pub(crate) fn retire(&mut self, reactor: &mut Reactor) {
        self.default.retire(reactor);
        for site in self.others.iter_mut().flat_map(|others| &mut others.sites) {
            site.routes.retire(reactor);
        }
    }

    /// Returns the routes of a site, and the context of the call with the rules of that site.
    fn site<'s, 't>(
        &'s mut self,
        site: u16,
        context: &'t mut RequestContext<'_>,
    ) -> (&'s mut Routes, RequestContext<'t>)
    where
        's: 't,
    {
        match (&mut self.others, site) {
            (Some(others), 1..) => {
                let site = &mut others.sites[usize::from(site) - 1];
                (&mut site.routes, context.with_rules(&site.rules))
            }
            _ => (&mut self.default, context.reborrow()),
        }
    }

    /// Begins a request on a server with several sites.
    fn begin_by_name(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let Some(others) = &self.others else { return Flow::Cut };
        let site = request.host.map_or(DEFAULT, |host| others.names.find(host));
        let max_body = match site {
            DEFAULT => others.default_body,
            site => others.sites[usize::from(site) - 1].max_body,
        };
        let (routes, mut context) = self.site(site, context);
        if let Framing::Length(length) = request.framing
            && length > max_body
        {
            context.close_after();
            if routes.refuse_large(&mut context, request, response) {
                return Flow::Done;
            }
            let page = Page { status: Status::ContentTooLarge, reason: "", fields: b"" };
            let answer = page.put(&context, response);
            // A request for the hub may have its token in the query.
            context.log(&without_token(request), answer);
            return Flow::Done;
        }
        let flow = routes.begin(&mut context, request, response);
        flow.map(|inner| Exchange { site, body_left: max_body, inner })
    }
}

impl HostSite {
    fn open(config: &Settings, host: &VirtualHost, opening: StoreOpening) -> anyhow::Result<Self> {
        let (bytes, open_files) = share_of_site(config, host);
        let mut own = config.clone();
        own.own_file_tables = config.own_tables_of_workers();
        own.hosts = Vec::new();
        // Clients are checked once, before the site of the request is determined.
        own.clients = Default::default();
        own.site = host.site.clone();
        own.site.cache_bytes = bytes;
        own.site.open_files = open_files;
        own.frontend.clone_from(&host.frontend);
        own.auth.clone_from(&host.auth);
        own.guestbook.clone_from(&host.guestbook);
        // Only the default site has the hub, so no other site's pages may name it.
        own.hub = None;
        own.headers.clone_from(&host.headers);
        let rules = Rules::new(&own);
        let tree = Tree::of(&own.site)?;
        let contents = match config.architecture {
            Architecture::Forking | Architecture::Threaded => Contents::of_one_connection(),
            _ => Contents::new(bytes, 1),
        };
        let routes = Routes::open_in(tree, contents, &own, &rules, opening)?;
        Ok(Self { routes, rules: Arc::new(rules), max_body: host.max_body })
    }
}

/// Returns the bytes of memory and the open files that a worker may cache of a site that is not the default one.
fn share_of_site(config: &Settings, host: &VirtualHost) -> (u64, u64) {
    // Heads differ from site to site, so contents are not shared: each worker has an equal part of the memory.
    let workers = config.pool_size().unwrap_or(config.workers);
    let (sites, workers) = (config.hosts.len() as u64 + 1, workers.max(1) as u64);
    // The default site of a worker that serves one connection has only a small cache and no open files.
    let most = config.site.cache_bytes / sites;
    let bytes = (host.site.cache_bytes / sites / workers).min(most);
    (bytes, config.open_files_of_host())
}

/// Panics on a request for the target in `POLLUX_TEST_PANIC`. For tests, and only in debug builds.
#[cfg(debug_assertions)]
fn panic_if_planted(request: &Request<'_>) {
    static TARGET: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let target = TARGET.get_or_init(|| std::env::var("POLLUX_TEST_PANIC").ok());
    let Some(target) = target else { return };
    let requested = request.line.split(|byte| *byte == b' ').nth(1);
    assert!(requested != Some(target.as_bytes()), "planted by POLLUX_TEST_PANIC");
}

impl Service for Hosts {
    type Exchange = Exchange;

    #[inline]
    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        #[cfg(debug_assertions)]
        panic_if_planted(request);
        if self.others.is_some() {
            return self.begin_by_name(context, request, response);
        }
        let flow = self.default.begin(context, request, response);
        flow.map(|inner| Exchange { site: DEFAULT, body_left: u64::MAX, inner })
    }

    fn log_line<'b>(&self, request: &Request<'b>) -> Cow<'b, [u8]> {
        // A request for the hub may have its token in the query.
        without_token(request)
    }

    fn refuse_large(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> bool {
        let others = self.others.as_ref();
        let named = others.and_then(|others| request.host.map(|host| others.names.find(host)));
        let (routes, mut context) = self.site(named.unwrap_or(DEFAULT), context);
        routes.refuse_large(&mut context, request, response)
    }

    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let Exchange { site, mut body_left, inner } = exchange;
        let (routes, mut context) = self.site(site, context);
        if let Part::Data(bytes) = part {
            let Some(left) = body_left.checked_sub(bytes.len() as u64) else {
                // The length of a chunked body is checked only here.
                routes.cancel(&mut context, inner);
                // A response that has begun cannot become a refusal, so the connection is cut.
                if response.body().is_some() {
                    return Flow::Cut;
                }
                context.close_after();
                let page = Page { status: Status::ContentTooLarge, reason: "", fields: b"" };
                let answer = page.put(&context, response);
                // The head of the request is not kept for services that need only its body.
                context.log(b"-", answer);
                return Flow::Done;
            };
            body_left = left;
        }
        let flow = routes.body(&mut context, inner, part, response);
        flow.map(|inner| Exchange { site, body_left, inner })
    }

    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let Exchange { site, body_left, inner } = exchange;
        let (routes, mut context) = self.site(site, context);
        let flow = routes.resume(&mut context, inner, event, response);
        flow.map(|inner| Exchange { site, body_left, inner })
    }

    fn cancel(&mut self, context: &mut RequestContext<'_>, exchange: Exchange) {
        let (routes, mut context) = self.site(exchange.site, context);
        routes.cancel(&mut context, exchange.inner);
    }

    #[inline]
    fn has_stream_work(&self) -> bool {
        self.default.has_stream_work()
    }

    fn pump_streams(
        &mut self,
        context: &mut ServiceContext<'_>,
        send: impl FnMut(ClientId, StreamSend<'_>) -> Delivery,
    ) {
        self.default.pump_streams(context, send);
    }

    fn stream_has_room(&mut self, number: u32) {
        self.default.stream_has_room(number);
    }

    fn stream_has_ended(&mut self, number: u32) {
        self.default.stream_has_ended(number);
    }

    fn park(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: Exchange,
    ) -> Result<u32, Exchange> {
        let Exchange { site, body_left, inner } = exchange;
        let parked = match site {
            DEFAULT => self.default.park(context, inner),
            _ => Err(inner),
        };
        parked.map_err(|inner| Exchange { site, body_left, inner })
    }

    fn unpark(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: ExchangeId,
        number: u32,
        left: u32,
    ) -> Option<Exchange> {
        let inner = self.default.unpark(context, exchange, number, left)?;
        Some(Exchange { site: DEFAULT, body_left: u64::MAX, inner })
    }

    fn hands_over_streams(&self) -> bool {
        self.default.hands_over_streams()
    }

    fn end_waiting(&mut self, context: &mut ServiceContext<'_>) {
        self.default.end_waiting(context);
    }

    fn release_stream(&mut self, number: u32) -> Option<Vec<u8>> {
        self.default.release_stream(number)
    }

    fn adopt_stream(
        &mut self,
        context: &mut ServiceContext<'_>,
        client: ClientId,
        state: &[u8],
    ) -> Option<u32> {
        self.default.adopt_stream(context, client, state)
    }

    fn background(
        &mut self,
        context: &mut ServiceContext<'_>,
        background: ExchangeId,
        event: Event<'_>,
    ) -> bool {
        let owner = match &mut self.others {
            Some(others) => {
                others.sites.iter_mut().find(|site| site.routes.has_background(background))
            }
            None => None,
        };
        match owner {
            Some(site) => {
                site.routes.background(&mut context.with_rules(&site.rules), background, event)
            }
            None => self.default.background(context, background, event),
        }
    }

    fn event(&mut self, context: &mut ServiceContext<'_>, event: Event<'_>) {
        let owner = match &mut self.others {
            Some(others) if !self.default.is_meant(&event) => {
                // Hubs and origins recognise their events. The guestbook of one site gets all others.
                let sites = &mut others.sites;
                let of = |is_owner: &dyn Fn(&Routes) -> bool| {
                    sites.iter().position(|site| is_owner(&site.routes))
                };
                let index =
                    of(&|routes| routes.is_meant(&event)).or_else(|| of(&Routes::has_guestbook));
                index.map(|index| &mut sites[index])
            }
            _ => None,
        };
        match owner {
            Some(site) => site.routes.event(&mut context.with_rules(&site.rules), event),
            None => self.default.event(context, event),
        }
    }
}

/// The names of all sites; requests with any other name go to the default site.
#[derive(Debug, Default)]
struct Names {
    /// Sorted by name, in lower case.
    exact: Vec<(Box<[u8]>, u16)>,
    /// The names after `*.`, sorted in the same way.
    below: Vec<(Box<[u8]>, u16)>,
}

impl Names {
    fn of(config: &Settings) -> Self {
        let mut names = Self::default();
        let others = config.hosts.iter().enumerate().map(|(index, host)| (index + 1, &host.names));
        for (site, all) in others.chain([(usize::from(DEFAULT), &config.default_names)]) {
            // `Config::validate` permits far fewer sites than 65,536.
            let site = u16::try_from(site).unwrap_or(DEFAULT);
            for name in all {
                let (list, name) = match name.strip_prefix("*.") {
                    Some(name) => (&mut names.below, name),
                    None => (&mut names.exact, name.as_str()),
                };
                list.push((name.to_ascii_lowercase().into_bytes().into(), site));
            }
        }
        names.exact.sort();
        names.below.sort();
        names
    }

    /// Returns the site for a Host field: that of the exact name, else that of the longest matching `*.`
    /// name, else the default site.
    fn find(&self, host: &[u8]) -> u16 {
        let Some(authority) = Authority::parse(host) else { return DEFAULT };
        let name = authority.host;
        let name = name.strip_suffix(b".").unwrap_or(name);
        if let Some(site) = search(&self.exact, name) {
            return site;
        }
        let dots = name.iter().enumerate().filter(|(_, byte)| **byte == b'.');
        dots.filter_map(|(dot, _)| search(&self.below, &name[dot + 1..])).next().unwrap_or(DEFAULT)
    }
}

fn search(list: &[(Box<[u8]>, u16)], name: &[u8]) -> Option<u16> {
    let found = list.binary_search_by(|(known, _)| compare(known, name)).ok()?;
    Some(list[found].1)
}

/// Compares a name in lower case with one in any case.
fn compare(known: &[u8], name: &[u8]) -> Ordering {
    known.iter().copied().cmp(name.iter().map(u8::to_ascii_lowercase))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::POOL_DEFAULT;

    /// Regression: a pool of the default size counted as one worker, and a worker of one connection had as much
    /// memory for each further site as for the default one, and open files besides.
    #[test]
    fn all_sites_of_all_workers_use_less_than_twice_the_memory() {
        let mut config = Settings::new("");
        let site = config.site.clone();
        config.hosts = vec![VirtualHost::new(&[], site.clone()); 3];
        let share = |config: &Settings| share_of_site(config, &config.hosts[0]);
        assert_eq!(share(&config), (site.cache_bytes / 4, site.open_files / 4));
        config.workers = 2;
        assert_eq!(share(&config).0, site.cache_bytes / 4 / 2);
        config.workers = 1;
        config.architecture = Architecture::Prethreaded;
        assert_eq!(share(&config).0, site.cache_bytes / 4 / POOL_DEFAULT as u64);
        config.max_connections = Some(8);
        assert_eq!(share(&config).0, site.cache_bytes / 4 / 8);
        config.pool = Some(4);
        assert_eq!(share(&config).0, site.cache_bytes / 4 / 4);
        config.architecture = Architecture::Threaded;
        (config.pool, config.max_connections) = (None, None);
        (config.site.cache_bytes, config.site.open_files) = (1 << 20, 0);
        assert_eq!(share(&config), (1 << 18, 0));
    }

    #[test]
    fn a_name_finds_its_site_and_everything_else_the_default() {
        let mut config = Settings::new("");
        let host = |names: &[&str]| VirtualHost::new(names, config.site.clone());
        let hosts = vec![
            host(&["example.org", "www.example.org"]),
            host(&["*.example.org"]),
            host(&["*.a.example.org", "[::1]"]),
        ];
        config.hosts = hosts;
        let names = Names::of(&config);
        for (name, site) in [
            ("example.org", 1),
            ("EXAMPLE.org:8080", 1),
            ("www.example.org.", 1),
            ("b.example.org", 2),
            ("c.b.example.org", 2),
            ("a.example.org", 2),
            ("b.a.example.org", 3),
            ("[::1]:80", 3),
            ("example.com", 0),
            ("badexample.org", 0),
            ("", 0),
            ("127.0.0.1", 0),
        ] {
            assert_eq!(names.find(name.as_bytes()), site, "{name}");
        }
    }
}
