//! Checks that the values of a configuration are valid, individually and in combination.

use super::{Config, Fault, HubSection, Key, SiteSection, Text, UserSpec, value::Size};
use crate::config::{
    Architecture, BasicAuth, Cors, HostPolicy, LogFormat, ONLY_FILES, PROXY_NAMES, Store,
    is_proxy_name, is_realm_name,
};
use pollux_http::host::Authority;
use std::{collections::HashMap, time::Duration};

/// RFC 9110 names no minimum for a header section; requests of browsers do not fit into less than
/// this.
const HEADER_BYTES_MIN: u64 = 1 << 10;
/// The parser counts in 32 bits, and one client must not use more memory than this.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// A smaller cache has hardly room for one response of usual length.
const CACHE_BYTES_MIN: u64 = 1 << 20;
/// The maximum number of sites of one server.
const SITES_MAX: usize = 1024;
/// The maximum number of origins and handovers of a site.
pub(crate) const ROUTES_MAX: usize = 64;
/// The longest host name (RFC 1035 §2.3.4).
const NAME_BYTES_MAX: usize = 253;
/// Fields that the server writes itself. Each may occur only once in a response (RFC 9110 §5.3), and the coding
/// is a property of the content. `Vary` is a list, so a site may add to it.
pub(crate) const OWN_FIELDS: [&str; 11] = [
    "accept-ranges",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "last-modified",
    "transfer-encoding",
    "server",
];

/// The faults that have been found so far.
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    /// Adds a fault of `key` if `holds` is false.
    pub(super) fn check(&mut self, holds: bool, key: &[Key<'static>], message: &str, help: &str) {
        if !holds {
            self.0.push(Fault::at(key, message, help));
        }
    }

    /// Adds a fault if `name`, the key of a service that needs event loops, is set and the architecture has
    /// none.
    fn check_service(
        &mut self,
        site: &[Key<'static>],
        (name, is_set): (&'static str, bool),
        architecture: Architecture,
    ) {
        self.check(
            !is_set || architecture == Architecture::Event,
            &[site, &[Key::Name(name)]].concat(),
            &format!("the architecture {architecture} {ONLY_FILES}"),
            &format!("use the architecture event (--architecture event), or leave out `{name}`"),
        );
    }
}

impl Config {
    /// Checks all values without opening a file or a connection.
    ///
    /// # Errors
    /// All faults that were found, each with the key of its value.
    pub fn validate(&self) -> Result<(), Vec<Fault>> {
        let mut faults = Faults(Vec::new());
        self.check_listening(&mut faults);
        faults.0.extend(self.architecture_faults());
        self.check_limits(&mut faults);
        self.check_user(&mut faults);
        self.check_logs(&mut faults);
        faults.0.extend(self.client_faults());
        faults.0.extend(self.acme_faults().into_iter().chain(self.tls_faults()));
        faults.0.extend(self.redirect_faults());
        faults.check(
            !self.site.is_empty() || self.hub.is_some(),
            &[],
            "there is nothing to serve",
            "name a directory, an origin (--origin URL), a process to hand connections to \
             (--handover unix:PATH), a guestbook (--guestbook) or a hub (--hub); in a file, add a [[site]] with \
             one of them",
        );
        faults.check(
            self.site.len() <= SITES_MAX,
            &[Key::Name("site")],
            &format!("{} sites are more than {SITES_MAX}", self.site.len()),
            "run a second server for the others",
        );
        let default = self.default_site();
        for (index, site) in self.site.iter().enumerate().take(SITES_MAX) {
            let has_hub = index == default && self.hub.is_some();
            faults.check(
                has_hub || !site.is_empty(),
                &[Key::Name("site"), Key::Index(index)],
                "this site serves nothing",
                "give it `root`, `origin`, `handover`, `guestbook`, `hub` or `redirect`",
            );
            site.check(index, (self.architecture.value, self.cache_size), &mut faults);
        }
        faults.check_service(&[], ("hub", self.hub.is_some()), self.architecture.value);
        let listen: Vec<_> = self.listen.iter().map(|one| one.value.clone()).collect();
        let hub = self.hub.as_ref().map(HubSection::config);
        if let Some(Err(error)) =
            hub.map(|hub| hub.check().and_then(|()| hub.check_listeners(&listen)))
        {
            let help = "see docs/push.md";
            faults.check(false, &[Key::Name("hub")], &error.to_string(), help);
        }
        self.check_updates(&mut faults);
        self.check_names(&mut faults);
        self.check_guestbooks(&mut faults);
        self.check_cache_folders(&mut faults);
        if faults.0.is_empty() { Ok(()) } else { Err(faults.0) }
    }

    /// Checks that `user` is not root: a server that becomes root gives up nothing.
    fn check_user(&self, faults: &mut Faults) {
        let is_root = |user: &Text<UserSpec>| ["root", "0"].contains(&user.value.user.as_str());
        faults.check(
            !self.user.as_ref().is_some_and(is_root),
            &[Key::Name("user")],
            "this is root, who would keep root's rights",
            "name another user, such as www-data, or leave out `user` (--user)",
        );
    }

    fn check_limits(&self, faults: &mut Faults) {
        let workers = usize::from(self.workers);
        if let Some(most) = self.max_connections {
            faults.check(
                most >= workers,
                &[Key::Name("max-connections")],
                &format!("{most} connections are too few for {workers} workers"),
                "each worker needs at least one; or use fewer workers",
            );
        }
        faults.check(
            (HEADER_BYTES_MIN..=HEADER_BYTES_MAX).contains(&self.max_header.0),
            &[Key::Name("max-header")],
            "the header section's maximum is a size from 1K to 1M",
            "",
        );
    }

    /// Checks that a site does not refuse the updates that its hub is configured to take: every body is limited by its
    /// site.
    fn check_updates(&self, faults: &mut Faults) {
        let Some(hub) = &self.hub else { return };
        let most = self.site.get(self.default_site()).map(|site| site.max_body);
        let most = most.unwrap_or(SiteSection::default().max_body);
        faults.check(
            hub.max_update == HubSection::default().max_update || hub.max_update.0 <= most.0,
            &[Key::Name("hub"), Key::Name("max-update")],
            &format!(
                "larger updates than {most} never reach the hub: that is the `max-body` of its site"
            ),
            "raise `max-body` (--max-body) of the default site as well",
        );
    }

    /// Checks that keys about logs are used only together with a log.
    fn check_logs(&self, faults: &mut Faults) {
        let default = Self::default();
        let has_log = self.access_log.is_some() || self.slow_log.is_some();
        let log = "add `access-log = \"FILE\"` (--access-log)";
        faults.check(
            has_log || self.log_format == default.log_format,
            &[Key::Name("log-format")],
            "`log-format` has no effect: there is no log",
            log,
        );
        faults.check(
            self.log_format.value == LogFormat::Json || self.log_fields == default.log_fields,
            &[Key::Name("log-fields")],
            "`log-fields` has no effect: only lines of JSON have fields to choose",
            "add `log-format = \"json\"` (--log-format json)",
        );
        for (number, field) in self.log_fields.iter().enumerate() {
            let is_twice = self.log_fields[..number].iter().any(|other| other.value == field.value);
            faults.check(
                !is_twice,
                &[Key::Name("log-fields"), Key::Index(number)],
                &format!("`{field}` is there twice"),
                "leave one of them out: a JSON object has one member of a name",
            );
        }
        faults.check(
            self.slow_log.is_some() || self.slow_threshold == default.slow_threshold,
            &[Key::Name("slow-threshold")],
            "`slow-threshold` has no effect: there is no log of slow requests",
            "add `slow-log = \"FILE\"` (--slow-log)",
        );
        faults.check(
            self.slow_threshold.0 >= Duration::from_millis(1),
            &[Key::Name("slow-threshold")],
            "with a threshold of 0 every request is slow",
            "1s is usual; `access-log` (--access-log) has all requests",
        );
        if let Err(error) = self.log().check() {
            let help = "see docs/observing.md";
            faults.check(false, &[Key::Name("access-log")], &error.to_string(), help);
        }
    }

    /// Checks that at most one site has a guestbook, because all of them would share one store.
    fn check_guestbooks(&self, faults: &mut Faults) {
        let all = self.site.iter().enumerate().filter(|(_, site)| site.guestbook.is_some());
        for (index, _) in all.skip(1) {
            faults.check(
                false,
                &[Key::Name("site"), Key::Index(index), Key::Name("guestbook")],
                "another site has a guestbook already",
                "one site of a server can have a guestbook",
            );
        }
    }

    /// Checks that no two caches have the same folder, which only one of them can use.
    fn check_cache_folders(&self, faults: &mut Faults) {
        for (index, site) in self.site.iter().enumerate() {
            let Some(folder) = site.cache.and(site.cache_dir.as_ref()) else { continue };
            let is_same = |other: &SiteSection| {
                other.cache.is_some() && other.cache_dir.as_ref() == Some(folder)
            };
            faults.check(
                !self.site[..index].iter().any(is_same),
                &[Key::Name("site"), Key::Index(index), Key::Name("cache-dir")],
                "the cache of another site has this folder",
                "name another folder for each cache",
            );
        }
    }

    /// Checks that no name belongs to two sites, and that at most one site has no name.
    fn check_names(&self, faults: &mut Faults) {
        let mut first = HashMap::new();
        let mut default = None;
        for (index, site) in self.site.iter().enumerate() {
            let site_key = [Key::Name("site"), Key::Index(index)];
            if site.names.is_empty() {
                faults.check(
                    default.is_none(),
                    &site_key,
                    "two sites have no names: only one can be the default",
                    "give one of them `names = [\"example.org\"]`",
                );
                default.get_or_insert(index);
            }
            for (number, name) in site.names.iter().enumerate() {
                let key =
                    [Key::Name("site"), Key::Index(index), Key::Name("names"), Key::Index(number)];
                let host = name.strip_prefix("*.").unwrap_or(name);
                faults.check(
                    is_host_name(host),
                    &key,
                    &format!("{name:?} is no host name"),
                    "names are like example.org, or *.example.org for all names below it; without a \
                     port; those of other alphabets are like xn--bcher-kva.example",
                );
                let owner = first.entry(name.to_ascii_lowercase()).or_insert(index);
                faults.check(
                    *owner == index,
                    &key,
                    &format!("{name} is also a name of site {}", *owner + 1),
                    "a request goes to one site: remove the name from one of them",
                );
            }
        }
    }
}

fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let is_ipv6 = name.starts_with('[') && Authority::parse(name.as_bytes()).is_some();
    name.len() <= NAME_BYTES_MAX && (is_ipv6 || name.split('.').all(is_label))
}

impl SiteSection {
    /// Returns whether the section configures nothing to serve.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
            && self.origin.is_empty()
            && self.handover.is_empty()
            && self.guestbook.is_none()
            && self.redirect.is_empty()
    }

    fn check(
        &self,
        index: usize,
        (architecture, cache_size): (Architecture, Size),
        faults: &mut Faults,
    ) {
        let key = |name| [Key::Name("site"), Key::Index(index), Key::Name(name)];
        for (number, file_name) in self.index.iter().enumerate() {
            let path = [&key("index")[..], &[Key::Index(number)]].concat();
            faults.check(
                !file_name.is_empty() && !file_name.contains(['/', '\0']),
                &path,
                &format!("{file_name:?} is no file name"),
                "an index is a file's name without a slash",
            );
        }
        faults.check(
            self.fallback.as_ref().is_none_or(|path| path.starts_with('/')),
            &key("fallback"),
            "the fallback is no path",
            "it is a file of the site, and begins with a slash: /index.html",
        );
        faults.check(
            self.compress.is_none() || cache_size.0 > 0,
            &key("compress"),
            "what is compressed is kept in the file cache, and there is none",
            "leave out `compress`, or give `cache-size` (--cache-size) a size",
        );
        self.check_passwords(index, faults);
        self.check_password_of_fallback(index, faults);
        self.check_cors(index, faults);
        self.check_fields(index, faults);
        for service in [
            ("origin", !self.origin.is_empty()),
            ("handover", !self.handover.is_empty()),
            ("cache", self.cache.is_some()),
        ] {
            faults.check_service(&key("")[..2], service, architecture);
        }
        self.check_origins(index, faults);
        self.check_ineffective_keys(index, faults);
        if self.guestbook.is_none() {
            for (name, is_set) in [
                ("guestbook-template", self.guestbook_template.is_some()),
                ("store", self.store.is_some()),
                ("store-connections", self.store_connections.is_some()),
            ] {
                faults.check(
                    !is_set,
                    &key(name),
                    &format!("`{name}` is for a guestbook, and there is none"),
                    "add `guestbook = \"/guestbook\"` (--guestbook)",
                );
            }
        }
        if let Some(path) = &self.guestbook {
            let is_path = |b: u8| b.is_ascii_alphanumeric() || b"/-._~".contains(&b);
            faults.check(
                path.starts_with('/') && !path.starts_with("//") && path.bytes().all(is_path),
                &key("guestbook"),
                &format!("{path:?} is no path"),
                "it begins with one slash and has letters, digits and /-._~",
            );
            let most = pollux_guestbook::limits::SHOWN_MAX;
            faults.check(
                (1..=most).contains(&self.guestbook_shown),
                &key("guestbook-shown"),
                &format!("the number of remarks is one from 1 to {most}"),
                "",
            );
            let is_file =
                self.store.as_ref().is_none_or(|store| matches!(store.value, Store::File(_)));
            faults.check(
                !is_file || self.store_connections.is_none(),
                &key("store-connections"),
                "a file has no connections",
                "leave out `store-connections`, or use store = \"redis://…\" (--store)",
            );
        }
    }

    fn check_cors(&self, index: usize, faults: &mut Faults) {
        let key = [Key::Name("site"), Key::Index(index), Key::Name("cors-credentials")];
        let origins = self.cors.as_ref().map(|cors| &cors.value);
        faults.check(
            !self.cors_credentials || origins.is_some(),
            &key,
            "`cors-credentials` has no effect: scripts of other origins may read nothing",
            "add `cors = \"https://example.org\"` (--cors)",
        );
        faults.check(
            !self.cors_credentials || !origins.is_some_and(Cors::is_for_all),
            &key,
            "with credentials, every page that a visitor opens could read what is meant for the visitor alone; \
             browsers refuse that",
            "name the origins in `cors` (--cors) instead of `*`",
        );
    }

    /// Checks that the fallback is not in an area with passwords of its own: it is sent for other paths, too.
    fn check_password_of_fallback(&self, index: usize, faults: &mut Faults) {
        let key = [Key::Name("site"), Key::Index(index), Key::Name("fallback")];
        let areas = || self.basic_auth.iter().map(|area| &area.value);
        let area = self.fallback.as_deref().and_then(|path| BasicAuth::of_path(areas(), path));
        faults.check(
            area.is_none_or(BasicAuth::is_whole_site),
            &key,
            "this file needs a password, and the fallback is sent without it for paths that need none",
            "use a file that is not below a prefix of `basic-auth` (--basic-auth), or require the password at all paths \
             (`FILE` without a prefix)",
        );
    }

    fn check_passwords(&self, index: usize, faults: &mut Faults) {
        let key = |name| [Key::Name("site"), Key::Index(index), Key::Name(name)];
        let default = Self::default();
        let has_passwords = !self.basic_auth.is_empty();
        for (name, is_set) in [
            ("basic-auth-realm", self.basic_auth_realm != default.basic_auth_realm),
            ("basic-auth-forward", self.basic_auth_forward),
        ] {
            faults.check(
                !is_set || has_passwords,
                &key(name),
                &format!("`{name}` has no effect: no path of this site needs a password"),
                "add `basic-auth = [\"/PREFIX=FILE\"]` (--basic-auth)",
            );
        }
        faults.check(
            is_realm_name(&self.basic_auth_realm),
            &key("basic-auth-realm"),
            "a browser cannot be given this name",
            "it has printable ASCII characters, at least one, and neither quotes nor backslashes",
        );
        for (number, area) in self.basic_auth.iter().enumerate() {
            let is_twice = self.basic_auth[..number]
                .iter()
                .any(|other| other.value.is_for_paths_of(&area.value));
            faults.check(
                !is_twice,
                &[&key("basic-auth")[..], &[Key::Index(number)]].concat(),
                "these paths have a password file already",
                "put all users into one file",
            );
        }
        faults.check(
            !has_passwords || self.handover.is_empty(),
            &key("basic-auth"),
            "a process that is handed a connection gets its later requests without a password",
            "use `origin` (--origin) instead of `handover`, or let that process ask for passwords",
        );
    }

    /// Reports keys that have no effect because the key that they depend on is not set.
    fn check_ineffective_keys(&self, index: usize, faults: &mut Faults) {
        let default = Self::default();
        let has_no_origin = self.origin.is_empty();
        let has_no_cache = self.cache.is_none();
        let origin = "add `origin = [\"http://HOST:PORT\"]` (--origin)";
        let cache = "add `cache = \"256M\"` (--cache)";
        let of_origin = [
            ("origin-host", self.origin_host != default.origin_host),
            ("forwarded", self.forwarded != default.forwarded),
            ("via", self.via != default.via),
            (
                "origin-connect-timeout",
                self.origin_connect_timeout != default.origin_connect_timeout,
            ),
            ("origin-timeout", self.origin_timeout != default.origin_timeout),
            ("origin-connections", self.origin_connections != default.origin_connections),
            ("origin-proxy-protocol", self.origin_proxy_protocol.is_some()),
            ("origin-ca", self.origin_ca.is_some()),
            ("origin-keep", self.origin_keep != default.origin_keep),
            ("origin-keep-timeout", self.origin_keep_timeout != default.origin_keep_timeout),
        ];
        let of_cache = [
            ("cache-stale", self.cache_stale != default.cache_stale),
            ("cache-object", self.cache_object != default.cache_object),
            ("cache-negative", self.cache_negative != default.cache_negative),
            ("cache-set-cookie", self.cache_set_cookie),
            ("cache-dir", self.cache_dir.is_some()),
        ];
        let all = of_origin
            .map(|(name, is_set)| (name, is_set && has_no_origin, "origin", origin))
            .into_iter()
            .chain(of_cache.map(|(name, is_set)| (name, is_set && has_no_cache, "cache", cache)));
        for (name, has_no_effect, of, help) in all {
            let key = [Key::Name("site"), Key::Index(index), Key::Name(name)];
            let message = format!("`{name}` has no effect: this site has no {of}");
            faults.check(!has_no_effect, &key, &message, help);
        }
    }

    fn check_fields(&self, index: usize, faults: &mut Faults) {
        for (number, field) in self.header.iter().enumerate() {
            let key =
                [Key::Name("site"), Key::Index(index), Key::Name("header"), Key::Index(number)];
            let (name, value) = (&field.value.name, &field.value.value);
            faults.check(
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
                &key,
                &format!("{name:?} is no field name"),
                "a name has letters, digits and -",
            );
            faults.check(
                value.bytes().all(|b| b == b'\t' || (b' '..0x7f).contains(&b)),
                &key,
                &format!(
                    "the value of {name} may contain only printable ASCII characters and tabs"
                ),
                "",
            );
            faults.check(
                !OWN_FIELDS.contains(&name.to_ascii_lowercase().as_str()),
                &key,
                &format!("the server writes the field {name} itself"),
                "leave it out",
            );
        }
    }

    fn check_origins(&self, index: usize, faults: &mut Faults) {
        let key = |name| [Key::Name("site"), Key::Index(index), Key::Name(name)];
        let routes = self.origin.len() + self.handover.len();
        faults.check(
            routes <= ROUTES_MAX,
            &key("origin"),
            &format!(
                "a site has at most {ROUTES_MAX} origins and handovers, and this one has {routes}"
            ),
            "let a server behind this one distribute the requests",
        );
        for (number, handover) in self.handover.iter().enumerate() {
            let path = [&key("handover")[..], &[Key::Index(number)]].concat();
            let prefix = &handover.value.prefix;
            faults.check(
                !self.handover[..number].iter().any(|other| other.value.prefix == *prefix),
                &path,
                "the same requests are handed to another process already",
                "give one of them another prefix (\"/PREFIX=unix:PATH\")",
            );
            faults.check(
                !self.origin.iter().any(|origin| origin.value.prefix == *prefix),
                &path,
                "the same requests are forwarded to an origin",
                "give one of them another prefix (\"/PREFIX=unix:PATH\")",
            );
        }
        if let HostPolicy::Named(name) = &self.origin_host.value {
            faults.check(
                Authority::parse(name.as_bytes()).is_some(),
                &key("origin-host"),
                &format!("{name:?} is no host name"),
                "client, origin, or HOST or HOST:PORT",
            );
        }
        faults.check(
            is_proxy_name(&self.via),
            &key("via"),
            &format!("{:?} is no name for this proxy", self.via),
            &format!("{PROXY_NAMES}; or write `via = \"off\"` (--via off)"),
        );
        for (name, time) in [
            ("origin-connect-timeout", self.origin_connect_timeout),
            ("origin-timeout", self.origin_timeout),
        ] {
            faults.check(
                time.0 >= Duration::from_millis(1),
                &key(name),
                "with a timeout of 0 every request would fail",
                "5s is usual",
            );
        }
        let has_tls = self.origin.iter().any(|route| route.value.origin.tls_name().is_some());
        faults.check(
            self.origin_ca.is_none() || has_tls,
            &key("origin-ca"),
            "an authority is given for https origins, and there is none",
            "write `https://` in `origin` (--origin), or leave out `origin-ca` (--origin-ca)",
        );
        faults.check(
            self.origin_proxy_protocol.is_none() || !has_tls,
            &key("origin-proxy-protocol"),
            "the PROXY protocol is not supported to https origins",
            "use an http:// origin, or leave out `origin-proxy-protocol` (--origin-proxy-protocol)",
        );
        let Some(size) = self.cache else { return };
        faults.check(
            !self.origin.is_empty(),
            &key("cache"),
            "the cache stores responses of origins, and there is no origin",
            "add `origin = [\"http://HOST:PORT\"]` (--origin)",
        );
        faults.check(size.0 >= CACHE_BYTES_MIN, &key("cache"), "a cache has at least 1M", "");
    }
}
