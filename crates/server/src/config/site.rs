//! The `[[site]]` table of a configuration file.

use super::value::{ProxyVersion, Size, SizeLimit, Text, Time};
use crate::config::{
    BasicAuth, Compress, Cors, ErrorPage, ForwardedPolicy, HandoverConfig, HostPolicy, PathField,
    Redirect, Rewrite, RouteConfig, SecurityHeaders, Store, StoreConnections, Symlinks,
};
use pollux_guestbook::limits::{SHOWN, SHOWN_MAX};
use pollux_http::Limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{num::NonZeroUsize, path::PathBuf, str::FromStr};

/// A site: which names it has, and what it serves. Keys are the names of the flags.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct SiteSection {
    /// Host names: `example.org`, or `*.example.org` for every name below it. A site without names
    /// is the default: it gets the requests that no other site is named for. With names everywhere,
    /// the first site is.
    pub names: Vec<String>,
    /// Certificate chains (PEM), in addition to those of the server.
    pub tls_cert: Vec<PathBuf>,
    /// Their keys (PEM), in the same order; none at all if the chains' files contain them.
    pub tls_key: Vec<PathBuf>,
    /// Time for which browsers use HTTPS alone, instead of the server's `hsts`.
    pub hsts: Option<Time>,
    /// Host names for which certificates are ordered by ACME.
    pub acme: Vec<String>,
    /// Directory to serve.
    pub root: Option<PathBuf>,
    /// File names tried for a directory, in order.
    pub index: Vec<String>,
    /// Which symbolic links are followed.
    pub symlinks: Symlinks,
    /// Also serve names that begin with a dot.
    pub dotfiles: bool,
    /// Do not serve FILE.zst, FILE.br or FILE.gz in place of FILE.
    pub no_precompressed: bool,
    /// Compress files at their first request: codings in order of preference, such as
    /// `"zstd,br,gzip"`.
    pub compress: Option<Text<Compress>>,
    /// Fields added to every response: `"NAME: VALUE"`.
    pub header: Vec<Text<Field>>,
    /// Where clients are sent: `"FROM TO"` or `"FROM TO STATUS"`; the first that is for a path counts.
    pub redirect: Vec<Text<Redirect>>,
    /// Which path is answered instead of another: `"FROM TO"`; the first that is for a path counts.
    pub rewrite: Vec<Text<Rewrite>>,
    /// Files of the site that are sent with an error's status: `"STATUS PATH"`.
    pub error_page: Vec<Text<ErrorPage>>,
    /// File that is served where there is none and the path's last segment has no dot.
    pub fallback: Option<String>,
    /// List directories that have no index.
    pub listing: bool,
    /// Fields of the files whose paths a pattern matches: `"PATTERN NAME: VALUE"`.
    pub header_for: Vec<Text<PathField>>,
    /// Origin whose scripts may read the site's files, or `*`.
    pub cors: Option<Text<Cors>>,
    /// Scripts of these origins may send cookies and passwords.
    pub cors_credentials: bool,
    /// Fields for visitors' safety: `basic` or `strict`.
    pub security_headers: Option<Text<SecurityHeaders>>,
    /// Password files, and the paths that need their passwords: `"FILE"` or `"/PREFIX=FILE"`.
    pub basic_auth: Vec<Text<BasicAuth>>,
    /// What browsers show when they ask for a name and a password.
    pub basic_auth_realm: String,
    /// Origins get the names and passwords too.
    pub basic_auth_forward: bool,
    /// Maximum size of a request's body.
    pub max_body: SizeLimit,
    /// Origins: `"URL"` or `"/PREFIX=URL"`, with http://, https:// or unix:.
    pub origin: Vec<Text<RouteConfig>>,
    /// Processes that are handed connections: `"unix:PATH"` or `"/PREFIX=unix:PATH"`.
    pub handover: Vec<Text<HandoverConfig>>,
    /// Host field that origins get: `client`, `origin` or a name.
    pub origin_host: Text<HostPolicy>,
    /// What happens to Forwarded and X-Forwarded-*: `replace`, `append`, `keep` or `remove`.
    pub forwarded: Text<ForwardedPolicy>,
    /// Version of the PROXY protocol with which connections to origins begin.
    pub origin_proxy_protocol: Option<ProxyVersion>,
    /// File with the authorities (PEM) that certificates of https origins must be of, instead of those
    /// that the system trusts.
    pub origin_ca: Option<PathBuf>,
    /// Name of this proxy in Via, or `off`.
    pub via: String,
    /// Time to connect to an origin.
    pub origin_connect_timeout: Time,
    /// Time that an origin may be silent.
    pub origin_timeout: Time,
    /// Maximum number of connections to origins, for each worker.
    pub origin_connections: NonZeroUsize,
    /// Idle connections kept to each origin, for each worker.
    pub origin_keep: usize,
    /// Time that they are kept.
    pub origin_keep_timeout: Time,
    /// Memory in which responses of origins are stored.
    pub cache: Option<Size>,
    /// Time that a stale response may replace that of an origin that fails.
    pub cache_stale: Time,
    /// Maximum size of a stored response.
    pub cache_object: Size,
    /// Time to store responses such as 404 that state no lifetime.
    pub cache_negative: Time,
    /// Also store responses with Set-Cookie that do not say `public`.
    pub cache_set_cookie: bool,
    /// Directory in which responses are stored, too.
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of the files in it.
    pub cache_dir_size: Size,
    /// Path of a guestbook.
    pub guestbook: Option<String>,
    /// Its page.
    pub guestbook_template: Option<PathBuf>,
    /// How many remarks it shows.
    #[schemars(range(min = 1, max = SHOWN_MAX))]
    pub guestbook_shown: u32,
    /// Where its remarks are stored.
    pub store: Option<Text<Store>>,
    /// Connections to Redis.
    pub store_connections: Option<Text<StoreConnections>>,
}

impl Default for SiteSection {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            tls_cert: Vec::new(),
            tls_key: Vec::new(),
            hsts: None,
            acme: Vec::new(),
            root: None,
            index: vec!["index.html".into()],
            symlinks: Symlinks::default(),
            dotfiles: false,
            no_precompressed: false,
            compress: None,
            header: Vec::new(),
            redirect: Vec::new(),
            rewrite: Vec::new(),
            error_page: Vec::new(),
            fallback: None,
            listing: false,
            header_for: Vec::new(),
            cors: None,
            cors_credentials: false,
            security_headers: None,
            basic_auth: Vec::new(),
            basic_auth_realm: "restricted".into(),
            basic_auth_forward: false,
            max_body: SizeLimit(Limits::DEFAULT.body),
            origin: Vec::new(),
            handover: Vec::new(),
            origin_host: HostPolicy::default().into(),
            forwarded: ForwardedPolicy::default().into(),
            via: "pollux".into(),
            origin_connect_timeout: Time::from_secs(5),
            origin_timeout: Time::from_secs(60),
            origin_connections: const { NonZeroUsize::new(1024).expect("1024 is not 0") },
            origin_proxy_protocol: None,
            origin_ca: None,
            origin_keep: 32,
            origin_keep_timeout: Time::from_secs(60),
            cache: None,
            cache_stale: Time::from_secs(0),
            cache_object: Size(8 << 20),
            cache_negative: Time::from_secs(0),
            cache_set_cookie: false,
            cache_dir: None,
            cache_dir_size: Size(1 << 30),
            guestbook: None,
            guestbook_template: None,
            guestbook_shown: SHOWN,
            store: None,
            store_connections: None,
        }
    }
}

/// A response field, `NAME: VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name.
    pub name: String,
    /// The value, without spaces around it.
    pub value: String,
}

impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').ok_or("expected NAME: VALUE")?;
        Ok(Self { name: name.trim().into(), value: value.trim().into() })
    }
}
