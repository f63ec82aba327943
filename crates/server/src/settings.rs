//! The settings that a server runs with: what is derived from a [`Config`](crate::config::Config)
//! once, before workers start. Certificates, password files and caches are open in them.

mod acme;
mod architecture;
mod frontend;
mod guestbook;
mod host;
mod hub;
mod open;
mod reopen;
mod store_errors;
mod tls;

pub use crate::auth::Realm;
pub use crate::transport::tls::{OriginTls, Tls};
pub use frontend::FrontendConfig;
pub use guestbook::GuestbookConfig;
pub use host::VirtualHost;
pub(crate) use hub::KEY_BYTES_MAX;
pub use pollux_tls::Certificates;

use crate::config::{
    Accepting, AcmeSettings, Architecture, ClientConfig, Discipline, HubConfig, IdleEviction,
    LargeFile, Listen, LogConfig, MechanismChoice, RequestIds, SiteConfig, Store, Symlinks,
    Timeouts,
};
use crate::policy::SiteRules;
use anyhow::{Context, ensure};
use host::SiteParts;
use pollux_http::Limits;
use pollux_sys::OwnFileTables;
use std::{net::SocketAddr, num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

/// The settings of a server. [`Settings::new`] has the defaults of the command line.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The addresses to listen on; at least one.
    pub listen: Vec<Listen>,
    /// Which worker serves which connection.
    pub architecture: Architecture,
    /// The number of workers in the pool; `None` is [`POOL_DEFAULT`](crate::config::POOL_DEFAULT).
    pub pool: Option<usize>,
    /// How the workers of a pool get their connections; `None` is [`Accepting::Blocking`] with one
    /// listener, [`Accepting::Exclusive`] with several.
    pub accepting: Option<Accepting>,
    /// The mechanism that waits for events; for [`Architecture::Event`] only.
    pub mechanism: MechanismChoice,
    /// When interest is changed and when a write is tried.
    pub interest: Discipline,
    /// Threads, each with its own listeners and connections; at least 1.
    pub workers: usize,
    /// Gives each worker its own file table, if the program makes the promise that this type stands
    /// for. Each worker then has the whole of RLIMIT_NOFILE, and system calls cost less. By default
    /// the workers share the program's table and its limit. Architectures with processes need the
    /// promise; there a child has its own table in any case.
    pub own_file_tables: Option<OwnFileTables>,
    /// Worker i runs only on the CPU `pin[i % pin.len()]`; if empty, no worker is pinned.
    pub pin: Vec<usize>,
    /// The maximum number of connections that the kernel queues for each listener before they are
    /// accepted (listen(2)). The kernel reduces it to net.core.somaxconn.
    pub backlog: u32,
    /// The maximum number of connections accepted at one event of a listener; `None` accepts until
    /// the queue is empty (gammo §4.4).
    pub accept_limit: Option<NonZeroU32>,
    /// The maximum number of open connections of all workers together. `None` derives it from
    /// RLIMIT_NOFILE, or is [`PROCESSES_DEFAULT`](crate::config::PROCESSES_DEFAULT) if each connection has a process.
    pub max_connections: Option<usize>,
    /// Whether the server closes an idle connection to serve a new one at that limit, or when a
    /// pool is full.
    pub idle_eviction: IdleEviction,
    /// Which clients are served, and the limits for each address.
    pub clients: ClientConfig,
    /// The maximum number of requests on one connection. The connection is closed after them.
    pub max_requests: Option<NonZeroU32>,
    /// The time limits of a connection.
    pub timeouts: Timeouts,
    /// The limits on the size of a request.
    pub limits: Limits,
    /// TLS on all listeners (see [`Tls::new`]); `None` is plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// The settings of ACME, which orders the certificates for names of `tls`.
    pub acme: Option<Arc<AcmeSettings>>,
    /// The directory with the responses for an ACME authority that validates names over plain HTTP.
    pub acme_answers: Option<PathBuf>,
    /// An additional listener for plain HTTP. It redirects each client to the first TCP listener
    /// over HTTPS (status 308).
    pub redirect_http: Option<Listen>,
    /// The port for redirects: each request is answered with the same URL over HTTPS at this port.
    /// The listener of `redirect_http` uses it.
    pub https_redirect: Option<u16>,
    /// The files that are served.
    pub site: SiteConfig,
    /// The origins that get the requests which this server does not answer itself.
    pub frontend: Option<Arc<FrontendConfig>>,
    /// The paths that need passwords, and the password files.
    pub auth: Option<Arc<Realm>>,
    /// Further sites, which are selected by the Host of a request. The other fields of this struct
    /// configure the default site.
    pub hosts: Vec<VirtualHost>,
    /// The names of the default site that would otherwise match the `*.` of another site.
    pub default_names: Vec<String>,
    /// The maximum size of a request's body for the default site, at most `limits.body`. Used only
    /// if there are several sites.
    pub default_body: u64,
    /// A guestbook at one path of the default site.
    pub guestbook: Option<Arc<GuestbookConfig>>,
    /// A Mercure hub at one path of the default site.
    pub hub: Option<Arc<HubConfig>>,
    /// How the head of a file's response is held back until the first bytes of the file are sent
    /// with it.
    pub large_file: LargeFile,
    /// The value of the `Server` field; `None` omits the field.
    pub server_name: Option<String>,
    /// Fields that are added to every response, as name and value. [`Settings::check`] checks them.
    pub headers: Vec<(String, String)>,
    /// How long requests in progress may take after a stop has been requested.
    pub grace: Duration,
    /// How long requests in progress may take after another process has taken over (a live upgrade).
    pub drain: Duration,
    /// The address that serves the page, metrics and health checks of `--admin`. It needs no
    /// password: every client that can connect may read it.
    pub admin: Option<Listen>,
    /// A socket through which an operator manages the server: see [`crate::admin`].
    pub control: Option<PathBuf>,
    /// The logs of requests: targets, format and fields.
    pub log: LogConfig,
    /// Whether requests get identifiers.
    pub request_ids: RequestIds,
    /// Whether to measure how long system calls take (costs two clock reads for each call).
    pub time_system_calls: bool,
    /// The maximum number of signals that are queued for this user, for experiments with signal
    /// mechanisms. [`run()`](crate::run()) lowers the soft RLIMIT_SIGPENDING to it. The limit
    /// belongs to the whole process, so [`crate::Server`] alone does not change it.
    pub signal_queue: Option<u64>,
}

impl Settings {
    /// Returns the defaults for `directory`, on one port of the loopback address. The kernel
    /// chooses the port.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            listen: vec![Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)))],
            architecture: Architecture::default(),
            pool: None,
            accepting: None,
            mechanism: MechanismChoice::Auto,
            interest: Discipline::default(),
            workers: 1,
            own_file_tables: None,
            pin: Vec::new(),
            backlog: 4096,
            accept_limit: NonZeroU32::new(64),
            max_connections: None,
            idle_eviction: IdleEviction::default(),
            clients: ClientConfig::default(),
            max_requests: None,
            timeouts: Timeouts {
                header: Duration::from_secs(20),
                keep_alive: Duration::from_secs(75),
                send: Duration::from_secs(30),
            },
            limits: Limits::DEFAULT,
            tls: None,
            acme: None,
            acme_answers: None,
            redirect_http: None,
            https_redirect: None,
            site: SiteConfig {
                directory: Some(directory.into()),
                index: vec!["index.html".into()],
                symlinks: Symlinks::default(),
                dotfiles: false,
                cache_bytes: 64 << 20,
                open_files: 256,
                precompressed: true,
                compress: None,
                rules: SiteRules::default(),
            },
            frontend: None,
            auth: None,
            hosts: Vec::new(),
            default_names: Vec::new(),
            default_body: u64::MAX,
            guestbook: None,
            hub: None,
            large_file: LargeFile::default(),
            server_name: Some("pollux".into()),
            headers: Vec::new(),
            grace: Duration::from_secs(10),
            drain: Duration::from_secs(600),
            admin: None,
            control: None,
            log: LogConfig::default(),
            request_ids: RequestIds::default(),
            time_system_calls: false,
            signal_queue: None,
        }
    }

    /// Returns the defaults for a front end without files.
    pub fn without_files(frontend: FrontendConfig) -> Self {
        let mut config = Self::new("");
        config.site.directory = None;
        config.frontend = Some(Arc::new(frontend));
        config
    }

    /// Returns the promise of [`Settings::own_file_tables`] if workers can have their own tables. A
    /// process can open the file of a guestbook only once (LMDB), and the descriptors of that file
    /// are in one table, so all workers must share this table.
    pub(crate) fn own_tables_of_workers(&self) -> Option<OwnFileTables> {
        let has_file = self.guestbooks().any(|guestbook| matches!(guestbook.store, Store::File(_)));
        self.own_file_tables.filter(|_| !has_file)
    }

    /// Returns the front end of each site, that of the default site first; `None` for a site that has none.
    pub(crate) fn frontends(&self) -> impl Iterator<Item = Option<&FrontendConfig>> {
        let hosts = self.hosts.iter().map(|host| host.frontend.as_deref());
        std::iter::once(self.frontend.as_deref()).chain(hosts)
    }

    /// Returns the guestbooks of all sites.
    pub(crate) fn guestbooks(&self) -> impl Iterator<Item = &GuestbookConfig> {
        let hosts = self.hosts.iter().filter_map(|host| host.guestbook.as_deref());
        self.guestbook.as_deref().into_iter().chain(hosts)
    }

    /// Returns how many files a worker may hold open for each site other than the default one: the number
    /// of the default site, divided by the number of sites.
    pub(crate) fn open_files_of_host(&self) -> u64 {
        let most = self.site.open_files;
        (most / (self.hosts.len() as u64 + 1)).max(most.min(1))
    }

    /// Returns the caches of all sites.
    pub fn cache_stores(&self) -> impl Iterator<Item = &pollux_cache::Store> {
        self.frontends().flatten().filter_map(|frontend| frontend.cache.as_ref())
    }

    /// Returns whether others could read the passwords that clients send: there is no TLS, and a
    /// listener is reachable from other machines.
    pub fn has_readable_passwords(&self) -> bool {
        let has_auth = self.auth.is_some() || self.hosts.iter().any(|host| host.auth.is_some());
        let is_public = |listen: &Listen| matches!(listen, Listen::Tcp(address) if !address.ip().to_canonical().is_loopback());
        has_auth && self.tls.is_none() && self.listen.iter().any(is_public)
    }

    /// Returns whether the passwords of a site have changed since `former` was read.
    pub fn has_other_passwords(&self, former: &Self) -> bool {
        fn realms(config: &Settings) -> impl Iterator<Item = Option<&Arc<Realm>>> {
            let hosts = config.hosts.iter().map(|host| host.auth.as_ref());
            std::iter::once(config.auth.as_ref()).chain(hosts)
        }
        realms(self).zip(realms(former)).any(|(now, before)| match (now, before) {
            (Some(now), Some(before)) => !now.has_same_files(before),
            _ => false,
        })
    }

    /// Returns whether the authorities of a site's https origins have changed since `former` was read.
    pub fn has_other_authorities(&self, former: &Self) -> bool {
        self.frontends().zip(former.frontends()).any(|(now, before)| {
            let now = now.and_then(|frontend| frontend.tls.as_ref());
            let before = before.and_then(|frontend| frontend.tls.as_ref());
            now.zip(before).is_some_and(|(now, before)| !now.has_same_authorities(before))
        })
    }

    /// Checks that the values are valid together.
    ///
    /// # Errors
    /// The message names the setting at fault.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.listen.is_empty(), "there is no address to listen on");
        ensure!(self.workers > 0, "there must be at least one worker");
        ensure!(self.workers <= MAX_WORKERS, "more than {MAX_WORKERS} workers");
        self.check_architecture()?;
        self.clients.check()?;
        self.log.check()?;
        ensure!(
            self.redirect_http.is_none() || self.tls.is_some(),
            "--redirect-http sends clients to HTTPS: add --tls-cert FILE --tls-key FILE"
        );
        ensure!(
            self.redirect_http.is_none() || !self.architecture.has_processes(),
            "--redirect-http needs a thread, which --architecture {} cannot have beside its processes: \
             start a second pollux serve, or take another architecture",
            self.architecture
        );
        ensure!(
            self.acme.is_none() || !self.architecture.has_processes(),
            "--acme needs a thread, which --architecture {} cannot have beside its processes: take another \
             architecture, or --tls-cert with the certificate of another ACME client",
            self.architecture
        );
        if let Some(all) = self.max_connections {
            ensure!(all > 0, "no connection would ever be accepted");
            ensure!(
                all >= self.workers,
                "--max-connections {all}: each of {} workers needs one at least (fewer: --workers)",
                self.workers
            );
        }
        if let Some(name) = &self.server_name {
            ensure!(
                name.bytes().all(|b| (b' '..0x7f).contains(&b)),
                "the Server field's value {name:?} holds characters other than printable ASCII"
            );
        }
        if let Some(hub) = &self.hub {
            hub.check()?;
            hub.check_listeners(&self.listen)?;
        }
        ensure!(
            self.site.directory.is_some()
                || self.frontend.is_some()
                || self.guestbook.is_some()
                || self.hub.is_some()
                || self.https_redirect.is_some()
                || !self.site.rules.redirects.is_empty(),
            "there is nothing to serve: name a directory, an origin (--origin URL), a process that \
                     serves the rest (--handover unix:PATH), a guestbook (--guestbook) or a hub (--hub)"
        );
        let default = SiteParts {
            site: &self.site,
            frontend: self.frontend.as_deref(),
            guestbook: self.guestbook.as_deref(),
            headers: &self.headers,
        };
        default.check(self.tls.is_some())?;
        for host in &self.hosts {
            let checked = host.parts().check(self.tls.is_some());
            checked.with_context(|| format!("the site {}", host.names.join(", ")))?;
        }
        Ok(())
    }
}

/// The most worker threads of one server.
pub const MAX_WORKERS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TlsConfig;

    #[test]
    fn addresses_are_read_in_every_form() {
        for (text, printed) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:8080", "[::1]:8080"),
            (":8080", "[::]:8080"),
            ("unix:/run/p.sock", "unix:/run/p.sock"),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), printed);
        }
        for wrong in ["", "127.0.0.1", "unix:", "127.0.0.1:99999"] {
            assert!(wrong.parse::<Listen>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn each_worker_has_a_connection_at_least() {
        let mut config = Settings::new(".");
        config.workers = 3;
        config.max_connections = Some(2);
        let message = config.check().unwrap_err().to_string();
        assert!(
            message.contains("--max-connections 2") && message.contains("3 workers"),
            "{message}"
        );
        config.max_connections = Some(3);
        config.check().unwrap();
    }

    /// Regression: the default site alone was checked. Another one passed its TLS connections on, and the process that
    /// got them answered in clear text.
    #[test]
    fn every_site_is_checked() {
        let mut config = Settings::new(".");
        let mut frontend = FrontendConfig::new(Vec::new());
        frontend.handovers = vec!["/x=unix:/a".parse().unwrap()];
        let host = VirtualHost::new(&["a.example"], config.site.clone());
        config.hosts = vec![VirtualHost { frontend: Some(Arc::new(frontend)), ..host }];
        config.check().unwrap();
        let plain = config.clone();
        let names = vec!["a.example".into()];
        let trial = TlsConfig { self_signed_names: names, ..TlsConfig::default() };
        config.tls = Some(Arc::new(Tls::new(&trial).unwrap()));
        let message = format!("{:#}", config.check().unwrap_err());
        assert!(message.contains("a.example") && message.contains("--handover"), "{message}");
        config = plain;
        config.hosts[0].headers = vec![("Date".into(), "now".into())];
        assert!(format!("{:#}", config.check().unwrap_err()).contains("a.example"));
    }

    #[test]
    fn a_header_cannot_smuggle_a_second_one() {
        let mut config = Settings::new(".");
        config.headers = vec![("X-Frame-Options".into(), "DENY".into())];
        config.check().unwrap();
        config.headers = vec![("Vary".into(), "Cookie".into())];
        config.check().unwrap();
        for (name, value) in [
            ("A", "b\r\nC: d"),
            ("A b", "c"),
            ("", "c"),
            ("Date", "now"),
            // Regression: a file had two entity tags, and content had a coding that it has not.
            ("ETag", "\"a\""),
            ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("Content-Encoding", "gzip"),
            ("Accept-Ranges", "none"),
        ] {
            config.headers = vec![(name.into(), value.into())];
            assert!(config.check().is_err(), "{name:?}: {value:?}");
        }
    }
}
