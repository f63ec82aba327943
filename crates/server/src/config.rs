//! A configuration as plain data: the settings that a file or the flags contain.
//!
//! [`Config`] is read, written and compared, and opens nothing. [`Config::validate`] checks it.
//! [`Config::open`] derives the [`Settings`](crate::Settings) that a server runs with: there are
//! certificates, password files and caches, open.

mod acme;
mod all_faults;
mod architecture;
mod change;
mod clients;
mod fault;
mod hub;
mod hub_section;
mod listening;
mod load;
mod password;
mod plain_words;
mod rules;
mod site;
mod tls;
mod validate;
mod value;
mod warnings;

pub(crate) use crate::auth::is_realm_name;
pub use crate::auth::{BasicAuth, PASSWORD_BYTES_MAX, password_line};
pub use crate::clients::{
    ClientConfig, NETWORKS_MAX, Network, PROXY_SOURCES_MAX, ProxySource, Rate,
};
pub use crate::policy::{
    Cors, ErrorPage, PathField, Pattern, Redirect, Rewrite, SecurityHeaders, SiteRules,
};
pub(crate) use acme::select_challenges;
pub use fault::{Fault, Key};
pub use hub::{HubConfig, HubStoreConfig, KeySource};
pub use hub_section::{HubSection, SlowSubscribers};
pub use load::{Source, Sources};
pub use password::without_password;
pub use plain_words::{COMPRESS_ALONE, GUESTBOOK_ALONE, HSTS_ALONE, REQUEST_ID_ALONE};
pub use pollux_acme::{Challenge, Settings as AcmeSettings};
pub use pollux_tls::{CertificateFiles, ClientTrust, MinVersion};
pub use site::{Field, SiteSection};
pub use tls::TrialCertificate;
pub(crate) use validate::{OWN_FIELDS, ROUTES_MAX};
pub use value::{
    Accepting, Architecture, ClientCertificates, Compress, Discipline, ForwardedPolicy,
    HandoverConfig, HostPolicy, IdleEviction, KernelTlsMode, LargeFile, Limit, Listen, LogConfig,
    LogField, LogFormat, LogTarget, MechanismChoice, Origin, POOL_DEFAULT, POOL_MAX,
    PROCESSES_DEFAULT, ProxyVersion, RECEIVE_PROGRESS_BYTES, RequestIds, RouteConfig,
    SEND_PROGRESS_BYTES, SOCKET_PATH_BYTES, SandboxMode, SiteConfig, Size, SizeLimit, SlowLog,
    Store, StoreConnections, Symlinks, Text, Time, Timeouts, TlsConfig, TlsVersion, UserSpec,
};
pub(crate) use value::{ONLY_FILES, PROXY_NAMES, is_proxy_name};
pub(crate) use warnings::date_faults;

use pollux_http::Limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    path::PathBuf,
};

/// The maximum number of worker threads.
const WORKERS_MAX: u16 = 1024;
/// The port that is used if no address is given.
const DEFAULT_PORT: u16 = 8080;

/// A server's configuration. Keys are the names of the flags of `pollux serve`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Config {
    /// Further files to read, relative to this one; `*` stands for any part of a file's name, but not for a dot at
    /// its beginning. Keys of this file win over theirs, and their sites come after those of this file.
    pub include: Vec<PathBuf>,
    /// Addresses to listen on.
    pub listen: Vec<Text<Listen>>,
    /// Connections that the kernel queues for each listener.
    pub backlog: u32,
    /// Maximum number of connections accepted at one event.
    pub accept_limit: Limit,
    /// How the members of a pool get their connections.
    pub accept: Option<Text<Accepting>>,
    /// Which worker serves a connection.
    pub architecture: Text<Architecture>,
    /// Processes or threads of a pool.
    #[schemars(range(min = 1, max = POOL_MAX))]
    pub pool: Option<usize>,
    /// How to wait for events.
    pub mechanism: Text<MechanismChoice>,
    /// When interest changes.
    pub interest: Discipline,
    /// Worker threads.
    #[schemars(range(min = 1, max = WORKERS_MAX))]
    pub workers: u16,
    /// CPUs to pin workers to, in turn.
    pub pin: Vec<usize>,
    /// Soft RLIMIT_SIGPENDING, for experiments.
    pub signal_queue: Option<u64>,
    /// Maximum number of open connections.
    #[schemars(range(min = 1))]
    pub max_connections: Option<usize>,
    /// Whether idle connections give way to new ones at that limit.
    pub idle_eviction: IdleEviction,
    /// Networks whose clients are served; with one at least, all others are refused.
    pub allow: Vec<Text<Network>>,
    /// Networks whose clients are refused; the longest prefix of both lists decides.
    pub deny: Vec<Text<Network>>,
    /// Load balancers whose connections begin with a PROXY protocol header.
    pub proxy_protocol: Vec<Text<ProxySource>>,
    /// Maximum number of open connections of one client address.
    pub limit_connections_per_address: Limit,
    /// Rate of new connections of one client address.
    pub limit_accept_rate: Option<Text<Rate>>,
    /// Rate of requests of one client address.
    pub limit_request_rate: Option<Text<Rate>>,
    /// Maximum number of requests on one connection.
    pub max_requests: Limit,
    /// Time to receive the head of a request.
    pub header_timeout: Time,
    /// Time that a connection may be idle between two requests.
    pub keep_alive: Time,
    /// Time that a client may take to receive each 16 KiB of a response.
    pub send_timeout: Time,
    /// Time for requests in progress to finish after a stop was requested.
    pub grace: Time,
    /// Time for requests in progress to finish after a new process has taken over.
    pub drain: Time,
    /// Maximum size of a request's header section.
    pub max_header: Size,
    /// Memory for cached files, of all workers together.
    pub cache_size: Size,
    /// How the head of a large file is held back.
    pub large_file: LargeFile,
    /// Leave out the Server field.
    pub no_server_header: bool,
    /// Access log: a file, `-` for standard output, `syslog[:SOCKET]` or `journald[:SOCKET]`.
    pub access_log: Option<Text<LogTarget>>,
    /// What a line of a log looks like: `clf`, `combined` or `json`.
    pub log_format: Text<LogFormat>,
    /// Fields of a line of JSON, in this order.
    pub log_fields: Vec<Text<LogField>>,
    /// Log of requests that took `slow-threshold` or longer; as `access-log`.
    pub slow_log: Option<Text<LogTarget>>,
    /// How long a request takes that is slow.
    pub slow_threshold: Time,
    /// Identifiers of requests in X-Request-Id: `generate`, `accept` a client's, or `off`.
    pub request_id: Text<RequestIds>,
    /// Measure the time that system calls take.
    pub time_system_calls: bool,
    /// Second listener, for monitoring.
    pub admin: Option<Text<Listen>>,
    /// Socket for `pollux cache` and `pollux ctl`.
    pub control: Option<PathBuf>,
    /// The user that a server becomes which was started as root, as NAME or NAME:GROUP.
    pub user: Option<Text<UserSpec>>,
    /// Limits the files, TCP ports and system calls of the server: `auto` as far as the kernel can, `off`, or what
    /// the kernel does about a system call that is not allowed.
    pub sandbox: SandboxMode,
    /// Certificate chains (PEM), the default one first. The listeners then speak HTTPS; a client gets the
    /// certificate that has the name it requests.
    pub tls_cert: Vec<PathBuf>,
    /// Their keys (PEM), in the same order; none at all if the chains' files contain them.
    pub tls_key: Vec<PathBuf>,
    /// A certificate for trials: `self-signed`.
    pub tls: Option<TrialCertificate>,
    /// The oldest version of TLS that is accepted: 1.2 or 1.3.
    pub tls_min: Option<TlsVersion>,
    /// File with the authorities (PEM) of clients' certificates, which are then requested.
    pub tls_client_ca: Option<PathBuf>,
    /// Also serve clients without a certificate.
    pub tls_client_optional: bool,
    /// Time for which browsers use HTTPS alone (Strict-Transport-Security).
    pub hsts: Option<Time>,
    /// Address where plain HTTP gets a redirect to the same URL over HTTPS.
    pub redirect_http: Option<Text<Listen>>,
    /// Write the secrets of all connections to the file that SSLKEYLOGFILE names.
    pub tls_key_log: bool,
    /// Whether the kernel encrypts what a connection sends, from its first long file on: `off` or `send`.
    pub kernel_tls: KernelTlsMode,
    /// Host names for which certificates are ordered by ACME.
    pub acme: Vec<String>,
    /// Directory of the authority: `letsencrypt`, `letsencrypt-staging` or a URL.
    pub acme_directory: Option<String>,
    /// E-mail address for the authority.
    pub acme_email: Option<String>,
    /// File with the root (PEM) that the directory's own certificate must have.
    pub acme_ca: Option<PathBuf>,
    /// How names are validated: `tls-alpn-01`, `http-01`.
    pub acme_challenge: Vec<Text<Challenge>>,
    /// Directory for the ACME account and certificates.
    pub state_dir: Option<PathBuf>,
    /// A Mercure hub of the default site.
    pub hub: Option<HubSection>,
    /// The sites; requests find theirs by their Host.
    pub site: Vec<SiteSection>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            include: Vec::new(),
            listen: vec![Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT))).into()],
            backlog: 4096,
            accept_limit: Limit(NonZeroU32::new(64)),
            accept: None,
            architecture: Architecture::default().into(),
            pool: None,
            mechanism: "auto".parse().expect("auto is a mechanism"),
            interest: Discipline::default(),
            workers: 1,
            pin: Vec::new(),
            signal_queue: None,
            max_connections: None,
            idle_eviction: IdleEviction::default(),
            allow: Vec::new(),
            deny: Vec::new(),
            proxy_protocol: Vec::new(),
            limit_connections_per_address: Limit(None),
            limit_accept_rate: None,
            limit_request_rate: None,
            max_requests: Limit(None),
            header_timeout: Time::from_secs(20),
            keep_alive: Time::from_secs(75),
            send_timeout: Time::from_secs(30),
            grace: Time::from_secs(10),
            drain: Time::from_secs(600),
            max_header: Size(Limits::DEFAULT.header_section as u64),
            cache_size: Size(64 << 20),
            large_file: LargeFile::default(),
            no_server_header: false,
            access_log: None,
            log_format: LogFormat::default().into(),
            log_fields: LogField::usual().into_iter().map(Text::from).collect(),
            slow_log: None,
            slow_threshold: Time::from_secs(1),
            request_id: RequestIds::default().into(),
            time_system_calls: false,
            admin: None,
            control: None,
            user: None,
            sandbox: SandboxMode::default(),
            tls_cert: Vec::new(),
            tls_key: Vec::new(),
            tls: None,
            tls_min: None,
            tls_client_ca: None,
            tls_client_optional: false,
            hsts: None,
            redirect_http: None,
            tls_key_log: false,
            kernel_tls: KernelTlsMode::default(),
            acme: Vec::new(),
            acme_directory: None,
            acme_email: None,
            acme_ca: None,
            acme_challenge: Vec::new(),
            state_dir: None,
            hub: None,
            site: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the JSON schema of a configuration file.
    pub fn schema() -> serde_json::Value {
        schemars::schema_for!(Self).to_value()
    }

    /// Returns the values by key, as in a file. A key that is not set and has no default is absent.
    pub fn to_table(&self) -> toml::Table {
        // Every field is a table, an array, a text, a number or a truth value.
        toml::Table::try_from(self).unwrap_or_default()
    }

    /// Returns the settings of the logs of requests.
    pub(crate) fn log(&self) -> LogConfig {
        let slow = self.slow_log.as_ref().map(|target| SlowLog {
            target: target.value.clone(),
            threshold: self.slow_threshold.0,
        });
        LogConfig {
            access: self.access_log.as_ref().map(|target| target.value.clone()),
            slow,
            format: self.log_format.value,
            fields: self.log_fields.iter().map(|field| field.value.clone()).collect(),
        }
    }

    /// Returns the index of the site that gets the requests whose Host is the name of no other
    /// site.
    pub fn default_site(&self) -> usize {
        self.site.iter().position(|site| site.names.is_empty()).unwrap_or(0)
    }
}

#[cfg(test)]
mod mutation_tests;
#[cfg(test)]
mod tests;
