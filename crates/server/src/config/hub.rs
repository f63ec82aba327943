//! The settings of a hub.

use super::{Cors, Listen};
use anyhow::ensure;
use pollux_guestbook::redis::{self, UrlError};
use pollux_hub::{
    dialect::Dialect,
    limits::Limits,
    subscribers::{MaxLifetime, OnLoss},
    topic::HubUrl,
};
use std::{fmt, path::PathBuf, str::FromStr, time::Duration};
use url::{Host, Url};

/// The shortest limit for the duration of a stream. A hub checks once a second which streams end.
const MAX_LIFETIME_LEAST: Duration = Duration::from_secs(MaxLifetime::SHORTEST as u64);

/// The shortest time between two comments to an idle subscriber, for the same reason.
const HEARTBEAT_LEAST: Duration = Duration::from_secs(1);

/// Where a hub keeps its history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HubStoreConfig {
    /// In memory. The history is empty after a restart.
    #[default]
    Memory,
    /// In memory and in a file. An update is on the disk before it is acknowledged.
    File(PathBuf),
    /// In memory and on a Redis server. Hubs that use the same Redis server behave as one hub.
    Redis(redis::Url),
}

impl FromStr for HubStoreConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            Some(("redis" | "rediss" | "unix" | "redis+unix", _)) => {
                text.parse().map(Self::Redis).map_err(|error: UrlError| error.to_string())
            }
            _ => Err("give memory, file:PATH or redis://HOST:PORT".into()),
        }
    }
}

/// The source of a JWK set that may change while the hub runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file, which is read again after it has changed.
    File(PathBuf),
    /// A URL, which is fetched again at intervals.
    Url(Url),
}

impl FromStr for KeySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((scheme, _)) = text.split_once("://") else { return Ok(Self::File(text.into())) };
        let url =
            Url::parse(text).map_err(|error| format!("{error}: give FILE or https://HOST"))?;
        if url.host().is_none() {
            return Err("the URL names no host".into());
        }
        match scheme {
            "https" => Ok(Self::Url(url)),
            "http" if is_near(&url) => Ok(Self::Url(url)),
            "http" => Err("keys that come over http:// could be anybody's: use https://".into()),
            _ => Err(format!("{scheme}:// is not supported: give FILE or https://HOST")),
        }
    }
}

/// Returns whether a URL is one of this host.
fn is_near(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Returns whether a text can be the identifier of an issuer (RFC 8414 §2). An issuer in an internal network may have
/// `http`: its identifier is compared with `iss`, and nothing is fetched from it.
fn is_issuer(text: &str) -> bool {
    let is_one = |url: Url| {
        let is_web = matches!(url.scheme(), "https" | "http");
        is_web && url.has_host() && url.query().is_none() && url.fragment().is_none()
    };
    Url::parse(text).is_ok_and(is_one)
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Url(url) => write!(f, "{url}"),
        }
    }
}

/// A Mercure hub at one path.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// The path, normally [`pollux_hub::topic::WELL_KNOWN`].
    pub path: String,
    /// The public URL of the server, without a path; `None` is the first address that it listens
    /// on. Relative topics are resolved against this URL, and tokens name it as their audience.
    pub origin: Option<String>,
    /// The file with the keys of subscribers' tokens: a secret, a public key (PEM) or a JWK set.
    pub subscriber_keys: Option<PathBuf>,
    /// A JWK set with the keys of all tokens, in place of `subscriber_keys`.
    pub key_source: Option<KeySource>,
    /// The interval at which the URL of `key_source` is fetched again.
    pub key_interval: Duration,
    /// The PEM file of the authorities that are trusted for that URL; `None` trusts those of the
    /// system.
    pub key_authorities: Option<PathBuf>,
    /// The file with the keys of publishers' tokens; `None` uses the keys of subscribers.
    pub publisher_keys: Option<PathBuf>,
    /// Whether subscribers without a token are served; they get no private updates.
    pub anonymous: bool,
    /// Whether publishers need no token. Use this only with listeners that other hosts cannot
    /// reach.
    pub publish_anonymous: bool,
    /// The revisions of the protocol that the hub understands.
    pub dialect: Dialect,
    /// The accepted issuers of tokens; if empty, every issuer that has the key is accepted.
    pub issuers: Vec<String>,
    /// The other origins whose web pages may use the hub, or `*`.
    pub cors: Vec<String>,
    /// Whether subscriptions are published: as updates, and through the web API.
    pub subscriptions: bool,
    /// How a subscriber that is too slow is handled.
    pub on_loss: OnLoss,
    /// The longest time without a message. After it, a subscriber gets a comment, so that no
    /// intermediary closes the idle connection; zero sends no comments.
    pub heartbeat: Duration,
    /// The longest duration of a stream. Then it ends, and the subscriber connects and is
    /// authorized again; zero is no limit.
    pub max_lifetime: Duration,
    /// Where the history is kept.
    pub store: HubStoreConfig,
    /// The limits of the hub.
    pub limits: Limits,
}

impl HubConfig {
    /// Returns the default settings for a hub at this path.
    #[must_use]
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            origin: None,
            subscriber_keys: None,
            key_source: None,
            key_interval: Duration::from_secs(600),
            key_authorities: None,
            publisher_keys: None,
            anonymous: false,
            publish_anonymous: false,
            dialect: Dialect::Both,
            issuers: Vec::new(),
            cors: Vec::new(),
            subscriptions: false,
            on_loss: OnLoss::Skip,
            heartbeat: Duration::from_secs(40),
            max_lifetime: Duration::from_secs(24 * 3600),
            store: HubStoreConfig::Memory,
            limits: Limits::default(),
        }
    }

    /// Checks all settings that can be checked without opening a file or a connection.
    ///
    /// # Errors
    /// The message names the setting at fault.
    pub fn check(&self) -> anyhow::Result<()> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
        ensure!(
            self.path.starts_with('/')
                && !self.path.ends_with('/')
                && !self.path.contains("//")
                && self.path.bytes().all(plain),
            "the hub's path must begin with /, not end with it, and consist of letters, digits \
             and /-._~"
        );
        let has_keys = self.subscriber_keys.is_some() || self.key_source.is_some();
        ensure!(
            has_keys || self.anonymous,
            "subscribers have neither a key (--hub-jwt-key, --hub-jwks) nor --hub-anonymous"
        );
        ensure!(
            has_keys || self.publisher_keys.is_some() || self.publish_anonymous,
            "publishers have neither a key (--hub-publisher-key, --hub-jwt-key, --hub-jwks) nor \
             --hub-publish-anonymous"
        );
        ensure!(
            self.subscriber_keys.is_none() || self.key_source.is_none(),
            "--hub-jwks is in place of --hub-jwt-key: give one of them"
        );
        ensure!(
            self.key_interval >= Duration::from_secs(1),
            "--hub-jwks-interval {:?}: at least 1 s",
            self.key_interval
        );
        ensure!(
            self.key_authorities.is_none() || matches!(self.key_source, Some(KeySource::Url(_))),
            "--hub-jwks-ca: it belongs to an https URL of --hub-jwks"
        );
        ensure!(
            self.max_lifetime.is_zero() || self.max_lifetime >= MAX_LIFETIME_LEAST,
            "--hub-max-lifetime {:?}: at least {MAX_LIFETIME_LEAST:?}, or 0 for no limit",
            self.max_lifetime
        );
        ensure!(
            self.heartbeat.is_zero() || self.heartbeat >= HEARTBEAT_LEAST,
            "--hub-heartbeat {:?}: at least {HEARTBEAT_LEAST:?}, or 0 for no comments",
            self.heartbeat
        );
        self.check_sizes()?;
        for issuer in &self.issuers {
            ensure!(
                is_issuer(issuer),
                "--hub-issuer {issuer:?}: give the issuer's URL as its tokens have it in `iss`, such as \
                 https://login.example: with https or http, and without ? and #"
            );
        }
        for origin in &self.cors {
            // It is compared with the field Origin byte for byte.
            ensure!(
                !origin.contains(',') && origin.parse::<Cors>().is_ok(),
                "--hub-cors {origin}: write * or an origin as browsers do, such as https://example.org: in lower \
                 case, without a path and without the scheme's own port; repeat the flag for another one"
            );
        }
        self.url("http://localhost").map(drop)
    }

    /// Checks that the hub can take an update and a subscriber at all, and that its history has room for what one
    /// subscriber makes it publish.
    fn check_sizes(&self) -> anyhow::Result<()> {
        let Limits { matchers, update_bytes, history_updates, .. } = self.limits;
        ensure!(matchers >= 1, "--hub-max-topics 0: at least 1, or nobody could subscribe");
        ensure!(update_bytes >= 1, "--hub-max-update 0: at least 1, or nobody could publish");
        ensure!(
            !self.subscriptions || history_updates >= matchers,
            "--hub-history {history_updates}: with --hub-subscriptions a subscriber of {matchers} topics \
             (--hub-max-topics) publishes as many updates at once; raise --hub-history to {matchers} or more, or lower \
             --hub-max-topics"
        );
        Ok(())
    }

    /// Checks the settings that depend on the addresses of the server.
    pub(crate) fn check_listeners(&self, listen: &[Listen]) -> anyhow::Result<()> {
        let is_near = |one: &Listen| match one {
            Listen::Tcp(address) => address.ip().is_loopback(),
            Listen::Unix(_) => true,
            // The address of a socket that systemd passes is not known before the start.
            Listen::Passed(_) => false,
        };
        if let Some(far) = listen.iter().find(|one| !is_near(one)) {
            ensure!(
                !self.publish_anonymous,
                "--hub-publish-anonymous: every client that can reach {far} could publish; listen on \
                 127.0.0.1, or give publishers a key (--hub-publisher-key)"
            );
        }
        Ok(())
    }

    /// Returns the URL of the server, which is used if none is configured.
    pub(crate) fn origin_of(listen: &[Listen], is_tls: bool) -> String {
        let scheme = if is_tls { "https" } else { "http" };
        match listen.first() {
            Some(Listen::Tcp(address)) => format!("{scheme}://{address}"),
            _ => format!("{scheme}://localhost"),
        }
    }

    /// Returns the public URL of the hub. `otherwise` is the URL of the server if none is
    /// configured.
    pub(crate) fn url(&self, otherwise: &str) -> anyhow::Result<HubUrl> {
        let origin = self.origin.as_deref().unwrap_or(otherwise).trim_end_matches('/');
        let hub = HubUrl::parse(&format!("{origin}{}", self.path)).map_err(anyhow::Error::msg)?;
        let is_server =
            |url: Url| url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        ensure!(
            Url::parse(origin).is_ok_and(is_server),
            "--hub-url {origin}: give the URL of the server alone, such as https://example.org; the hub's path, {}, \
             is added to it",
            self.path
        );
        Ok(hub)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_without_any_permitted_client_is_refused() {
        let mut config = HubConfig::new("/.well-known/mercure");
        assert!(config.check().is_err());
        config.anonymous = true;
        assert!(config.check().is_err());
        config.publish_anonymous = true;
        config.check().unwrap();
        for path in ["", "hub", "/hub/", "//hub", "/a b", "/"] {
            config.path = path.into();
            assert!(config.check().is_err(), "{path}");
        }
        let with_key = HubConfig { subscriber_keys: Some("k".into()), ..HubConfig::new("/hub") };
        with_key.check().unwrap();
        let lifetime =
            |seconds| HubConfig { max_lifetime: Duration::from_secs(seconds), ..with_key.clone() };
        assert!([0, 2].map(lifetime).iter().all(|config| config.check().is_ok()));
        let short = lifetime(1).check().unwrap_err().to_string();
        assert!(short.contains("--hub-max-lifetime 1s: at least 2s, or 0"), "{short}");
        assert_eq!(with_key.url("http://h:1").unwrap().as_str(), "http://h:1/hub");
    }

    /// Regression: a time of less than a second was accepted, and no comment was ever sent.
    #[test]
    fn a_heartbeat_is_a_second_or_more() {
        let heartbeat = |millis| HubConfig {
            subscriber_keys: Some("k".into()),
            heartbeat: Duration::from_millis(millis),
            ..HubConfig::new("/hub")
        };
        assert!([0, 1000, 40_000].map(heartbeat).iter().all(|config| config.check().is_ok()));
        let short = heartbeat(500).check().unwrap_err().to_string();
        assert!(short.contains("--hub-heartbeat 500ms: at least 1s, or 0"), "{short}");
    }

    /// Regression: with the URL of the hub itself, no token had the right `aud`, and no subscription was found.
    #[test]
    fn the_url_of_the_server_has_no_path() {
        let with_url = |url: &str| HubConfig {
            subscriber_keys: Some("k".into()),
            origin: Some(url.into()),
            ..HubConfig::new("/.well-known/mercure")
        };
        for url in ["https://h", "https://h/", "http://h:1", "https://[::1]:8"] {
            with_url(url).check().unwrap();
        }
        for url in [
            "https://h/.well-known/mercure",
            "https://h/a/",
            "https://h?x",
            "https://h#x",
            "h",
            "ftp://h",
        ] {
            assert!(with_url(url).check().is_err(), "{url}");
        }
        let fault = with_url("https://h/.well-known/mercure").check().unwrap_err().to_string();
        assert!(fault.starts_with("--hub-url https://h/.well-known/mercure: "), "{fault}");
    }

    fn with_key(change: impl FnOnce(&mut HubConfig)) -> anyhow::Result<()> {
        let mut config = HubConfig { subscriber_keys: Some("k".into()), ..HubConfig::new("/hub") };
        change(&mut config);
        config.check()
    }

    /// Regression: such a hub started, and refused everything.
    #[test]
    fn a_hub_takes_an_update_and_a_topic() {
        with_key(|hub| (hub.limits.matchers, hub.limits.update_bytes) = (1, 1)).unwrap();
        let fault = with_key(|hub| hub.limits.matchers = 0).unwrap_err().to_string();
        assert!(fault.starts_with("--hub-max-topics 0: at least 1"), "{fault}");
        let fault = with_key(|hub| hub.limits.update_bytes = 0).unwrap_err().to_string();
        assert!(fault.starts_with("--hub-max-update 0: at least 1"), "{fault}");
    }

    /// Regression: the events of one subscriber left the history before anybody got them.
    #[test]
    fn the_history_has_room_for_the_events_of_a_subscriber() {
        let check = |subscriptions, history| {
            with_key(|hub| {
                hub.subscriptions = subscriptions;
                hub.limits.history_updates = history;
            })
        };
        check(true, 100).unwrap();
        check(false, 1).unwrap();
        let fault = check(true, 99).unwrap_err().to_string();
        assert!(fault.contains("raise --hub-history to 100 or more"), "{fault}");
    }

    /// Regression: every text was accepted. No token had such an issuer, and the metadata named it.
    #[test]
    fn an_issuer_is_a_url() {
        let check = |issuer: &str| with_key(|hub| hub.issuers = vec![issuer.into()]);
        for issuer in
            ["https://a.example", "https://a.example/b/", "http://keycloak:8080/x", "http://[::1]"]
        {
            check(issuer).unwrap();
        }
        for issuer in ["", "a", "a.example", "ftp://a", "https://a?b", "https://a#b"] {
            let fault = check(issuer).unwrap_err().to_string();
            assert!(fault.starts_with(&format!("--hub-issuer {issuer:?}: ")), "{fault}");
        }
    }

    /// Regression: such an origin was accepted, and no page had it.
    #[test]
    fn origins_are_written_as_browsers_do() {
        let with_cors = |origin: &str| HubConfig {
            subscriber_keys: Some("k".into()),
            cors: vec!["https://a.example".into(), origin.into()],
            ..HubConfig::new("/hub")
        };
        for origin in ["*", "https://b.example", "http://b.example:8080"] {
            with_cors(origin).check().unwrap();
        }
        for origin in [
            "https://b.example/",
            "b.example",
            "https://B.example",
            "https://b.example:443",
            "https://b,https://c",
            "",
        ] {
            assert!(with_cors(origin).check().is_err(), "{origin}");
        }
    }
}
