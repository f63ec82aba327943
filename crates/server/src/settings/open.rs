//! Converts plain data into the settings that a server runs with: opens caches, and fills in defaults
//! that depend on the environment.

use super::{FrontendConfig, GuestbookConfig, OriginTls, Realm, Settings, VirtualHost};
use crate::{
    config::{ClientTrust, Config, ForwardedPolicy, SiteConfig, SiteSection, Store, Timeouts},
    upgrade,
};
use anyhow::Context;
use pollux_cache::FsDirectory;
use pollux_http::Limits;
use std::{io, path::PathBuf, sync::Arc};

impl Config {
    /// Creates the settings of a server: opens caches and reads the templates of guestbooks.
    /// `store` returns the file for a guestbook whose store is not configured.
    ///
    /// # Errors
    /// The message names the directory or the file that cannot be opened. A configuration that was
    /// not [validated](Config::validate) may fail later.
    pub fn open(&self, store: impl Fn() -> anyhow::Result<PathBuf>) -> anyhow::Result<Settings> {
        self.open_with(store, |_| None)
    }

    /// Does the same as [`Config::open`], but reuses the cache that `former_cache` returns for a site's
    /// number.
    pub(super) fn open_with(
        &self,
        store: impl Fn() -> anyhow::Result<PathBuf>,
        former_cache: impl Fn(usize) -> Option<pollux_cache::Store>,
    ) -> anyhow::Result<Settings> {
        let mut config = Settings::new("");
        config.listen = self.listen.iter().map(|listen| listen.value.clone()).collect();
        config.backlog = self.backlog;
        config.accept_limit = self.accept_limit.0;
        config.accepting = self.accept.as_ref().map(|way| way.value);
        config.architecture = self.architecture.value;
        config.pool = self.pool;
        config.mechanism = self.mechanism.value.clone();
        config.interest = self.interest;
        config.workers = self.workers.into();
        config.pin.clone_from(&self.pin);
        config.signal_queue = self.signal_queue;
        config.max_connections = self.max_connections;
        config.idle_eviction = self.idle_eviction;
        config.clients = self.clients();
        config.max_requests = self.max_requests.0;
        config.timeouts = Timeouts {
            header: self.header_timeout.0,
            keep_alive: self.keep_alive.0,
            send: self.send_timeout.0,
        };
        config.grace = self.grace.0;
        config.drain = self.drain.0;
        config.large_file = self.large_file;
        if self.no_server_header {
            config.server_name = None;
        }
        config.log = self.log();
        config.request_ids = self.request_id.value;
        config.admin = self.admin.as_ref().map(|listen| listen.value.clone());
        config.time_system_calls = self.time_system_calls;
        config.hub = self.hub.as_ref().map(|hub| Arc::new(hub.config()));
        let largest_body = self.site.iter().map(|site| site.max_body.0).max();
        config.limits = Limits {
            header_section: self.max_header.0 as usize,
            body: largest_body.unwrap_or(Limits::DEFAULT.body),
            ..Limits::DEFAULT
        };
        let default = self.default_site();
        for (index, section) in self.site.iter().enumerate() {
            let mut host = section.open(&config, self.cache_size.0, &store, former_cache(index))?;
            section.add_hsts(self, &mut host.headers);
            if index == default {
                config.site = host.site;
                config.frontend = host.frontend;
                config.auth = host.auth;
                config.guestbook = host.guestbook;
                config.headers = host.headers;
                config.default_body = host.max_body;
                config.default_names = host.names;
            } else {
                config.hosts.push(host);
            }
        }
        config.control.clone_from(&self.control);
        config.redirect_http = self.redirect_http.as_ref().map(|listen| listen.value.clone());
        config.acme = self.acme()?.map(Arc::new);
        Ok(config)
    }
}

impl SiteSection {
    fn open(
        &self,
        config: &Settings,
        file_cache_bytes: u64,
        store: &impl Fn() -> anyhow::Result<PathBuf>,
        former_cache: Option<pollux_cache::Store>,
    ) -> anyhow::Result<VirtualHost> {
        Ok(VirtualHost {
            names: self.names.iter().map(|name| name.to_ascii_lowercase()).collect(),
            site: SiteConfig {
                directory: self.root.clone(),
                index: self.index.clone(),
                symlinks: self.symlinks,
                dotfiles: self.dotfiles,
                cache_bytes: file_cache_bytes,
                precompressed: !self.no_precompressed,
                compress: self.compress.as_ref().map(|compress| compress.value.clone()),
                rules: self.rules(),
                ..config.site.clone()
            },
            frontend: self.frontend(former_cache)?.map(Arc::new),
            guestbook: self.guestbook(store)?.map(Arc::new),
            auth: self.realm()?.map(Arc::new),
            headers: self
                .header
                .iter()
                .map(|field| (field.value.name.clone(), field.value.value.clone()))
                .collect(),
            max_body: self.max_body.0,
        })
    }

    fn realm(&self) -> anyhow::Result<Option<Realm>> {
        if self.basic_auth.is_empty() {
            return Ok(None);
        }
        let areas: Vec<_> = self.basic_auth.iter().map(|area| area.value.clone()).collect();
        Realm::open(&areas, &self.basic_auth_realm, self.basic_auth_forward).map(Some)
    }

    fn frontend(
        &self,
        former_cache: Option<pollux_cache::Store>,
    ) -> anyhow::Result<Option<FrontendConfig>> {
        if self.origin.is_empty() && self.handover.is_empty() {
            return Ok(None);
        }
        let routes = self.origin.iter().map(|route| route.value.clone()).collect();
        let mut config = FrontendConfig::new(routes);
        config.handovers = self.handover.iter().map(|handover| handover.value.clone()).collect();
        config.host = self.origin_host.value.clone();
        config.forwarded = self.forwarded.value;
        config.via = (self.via != "off").then(|| self.via.clone());
        config.connect_timeout = self.origin_connect_timeout.0;
        config.timeout = self.origin_timeout.0;
        config.connections = self.origin_connections;
        config.proxy_protocol = self.origin_proxy_protocol.map(|version| version.0);
        // With the PROXY protocol a connection is for one client only.
        config.keep = if config.proxy_protocol.is_some() { 0 } else { self.origin_keep };
        config.keep_timeout = self.origin_keep_timeout.0;
        if config.has_tls_origin() {
            let trust = self.origin_ca.clone().map_or(ClientTrust::System, ClientTrust::File);
            config.tls = Some(OriginTls::new(&trust)?);
        }
        config.cache = match (former_cache, self.cache) {
            (Some(former), _) => Some(former),
            (None, Some(size)) => Some(self.cache_store(size.0)?),
            (None, None) => None,
        };
        Ok(Some(config))
    }

    fn cache_store(&self, limit_bytes: u64) -> anyhow::Result<pollux_cache::Store> {
        let mut config = pollux_cache::Config {
            limit_bytes,
            max_object_bytes: self.cache_object.0,
            negative_lifetime_s: self.cache_negative.as_secs_u32(),
            stale_if_error_s: self.cache_stale.as_secs_u32(),
            cache_set_cookie: self.cache_set_cookie,
            ..Default::default()
        };
        if matches!(self.forwarded.value, ForwardedPolicy::Keep | ForwardedPolicy::Remove) {
            // An origin gets the client's own fields or none, so its response may depend on them.
            config.rewritten_fields.retain(|name| !name.contains("forwarded"));
        }
        let implied = host_and_scheme_fields(self.forwarded.value);
        config.implied_vary = implied.iter().map(|&name| name.into()).collect();
        let Some(path) = &self.cache_dir else { return Ok(pollux_cache::Store::new(config)) };
        let size = self.cache_dir_size.0;
        let open = {
            let path = path.clone();
            move || FsDirectory::open(path.clone())
        };
        match open() {
            Ok(directory) => pollux_cache::Store::with_directory(config, directory, size),
            // The server that this process succeeds uses it, and releases it at the end of the upgrade.
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && upgrade::is_in_progress() =>
            {
                pollux_cache::Store::with_directory_in_use(config, open, size)
            }
            Err(error) => Err(error),
        }
        .with_context(|| format!("--cache-dir {}", path.display()))
    }

    fn guestbook(
        &self,
        store: &impl Fn() -> anyhow::Result<PathBuf>,
    ) -> anyhow::Result<Option<GuestbookConfig>> {
        let Some(path) = &self.guestbook else { return Ok(None) };
        let store = match &self.store {
            Some(text) => text.value.clone(),
            None => Store::File(store()?),
        };
        let mut guestbook = GuestbookConfig::new(path, store);
        guestbook.template.clone_from(&self.guestbook_template);
        guestbook.shown = self.guestbook_shown;
        guestbook.connections =
            self.store_connections.as_ref().map(|text| text.value).unwrap_or_default();
        guestbook.load()?;
        Ok(Some(guestbook))
    }
}

/// Returns the fields of a request from which an origin may take another host or scheme. The key of a stored response
/// contains neither, and the origin's `Vary` rarely names them.
fn host_and_scheme_fields(policy: ForwardedPolicy) -> &'static [&'static str] {
    match policy {
        ForwardedPolicy::Replace | ForwardedPolicy::Remove => &[],
        // The others are not sent.
        ForwardedPolicy::Append => &["x-forwarded-host", "x-forwarded-proto"],
        ForwardedPolicy::Keep => &[
            "x-forwarded-host",
            "x-forwarded-port",
            "x-forwarded-prefix",
            "x-forwarded-proto",
            "x-forwarded-scheme",
            "x-forwarded-ssl",
        ],
    }
}
