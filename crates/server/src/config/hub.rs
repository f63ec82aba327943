//! The settings of a hub.

use super::{Architecture, Config, Listen};
use anyhow::{Context, ensure};
use pollux_guestbook::redis::{Url, UrlError};
use pollux_hub::{
    dialect::Dialect, limits::Limits, subscribers::OnLoss, token::KeySet, topic::HubUrl,
};
use std::{path::PathBuf, str::FromStr, time::Duration};

/// Where a hub keeps its history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HubStoreConfig {
    /// In memory: it is empty after a restart.
    #[default]
    Memory,
    /// In a file as well: an update that was acknowledged is on the disk.
    File(PathBuf),
    /// On a Redis server as well: hubs that have the same one are one hub.
    Redis(Url),
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

/// A Mercure hub at one path.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// The path, normally [`pollux_hub::topic::WELL_KNOWN`].
    pub path: String,
    /// The public URL of the server, without a path; `None` is the first address that it listens
    /// at. Relative topics are resolved against it, and tokens name it as their audience.
    pub origin: Option<String>,
    /// The file with the keys of subscribers' tokens: a secret, a public key (PEM) or a JWK set.
    pub subscriber_keys: Option<PathBuf>,
    /// The file with the keys of publishers' tokens; `None` is that of subscribers.
    pub publisher_keys: Option<PathBuf>,
    /// Whether subscribers need no token, as long as they read no private updates.
    pub anonymous: bool,
    /// Whether publishers need no token. Only for listeners that other hosts cannot reach.
    pub publish_anonymous: bool,
    /// Which revisions of the protocol are understood.
    pub dialect: Dialect,
    /// Issuers of tokens of dialect 1; empty accepts every issuer that has the key.
    pub issuers: Vec<String>,
    /// Origins of web pages elsewhere that may use the hub, or `*`.
    pub cors: Vec<String>,
    /// Whether subscriptions are published: their updates, and their web API.
    pub subscriptions: bool,
    /// What becomes of a subscriber that is too slow.
    pub on_loss: OnLoss,
    /// How often an idle subscriber gets a comment, so that nobody in between forgets the
    /// connection; zero is never.
    pub heartbeat: Duration,
    /// Where the history is kept.
    pub store: HubStoreConfig,
    /// The bounds.
    pub limits: Limits,
}

impl HubConfig {
    /// A hub at this path, with the defaults of the command line.
    #[must_use]
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            origin: None,
            subscriber_keys: None,
            publisher_keys: None,
            anonymous: false,
            publish_anonymous: false,
            dialect: Dialect::Both,
            issuers: Vec::new(),
            cors: Vec::new(),
            subscriptions: false,
            on_loss: OnLoss::Skip,
            heartbeat: Duration::from_secs(40),
            store: HubStoreConfig::Memory,
            limits: Limits::default(),
        }
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// Names the setting at fault.
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
        ensure!(
            self.subscriber_keys.is_some() || self.anonymous,
            "subscribers have neither a key (--hub-jwt-key) nor --hub-anonymous"
        );
        ensure!(
            self.subscriber_keys.is_some()
                || self.publisher_keys.is_some()
                || self.publish_anonymous,
            "publishers have neither a key (--hub-publisher-key, --hub-jwt-key) nor \
             --hub-publish-anonymous"
        );
        self.url("http://localhost").map(drop)
    }

    /// Checks what depends on the rest of the configuration.
    pub(super) fn check_server(&self, config: &Config) -> anyhow::Result<()> {
        let name = config.architecture;
        ensure!(
            name == Architecture::Event,
            "--hub: --architecture {name} would need a thread or a process for each subscriber; \
             use --architecture event"
        );
        let is_near = |listen: &Listen| match listen {
            Listen::Tcp(address) => address.ip().is_loopback(),
            Listen::Unix(_) => true,
            // Where a socket listens that systemd passes is not known before the start.
            Listen::Passed(_) => false,
        };
        if let Some(far) = config.listen.iter().find(|listen| !is_near(listen)) {
            ensure!(
                !self.publish_anonymous,
                "--hub-publish-anonymous: every client that can reach {far} could publish; listen on \
                 127.0.0.1, or give publishers a key (--hub-publisher-key)"
            );
        }
        Ok(())
    }

    /// The URL of a server, for where none is configured.
    pub(crate) fn origin_of(config: &Config) -> String {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        match config.listen.first() {
            Some(Listen::Tcp(address)) => format!("{scheme}://{address}"),
            _ => format!("{scheme}://localhost"),
        }
    }

    /// The public URL of the hub; `otherwise` is the server's where none is configured.
    pub(crate) fn url(&self, otherwise: &str) -> anyhow::Result<HubUrl> {
        let origin = self.origin.as_deref().unwrap_or(otherwise).trim_end_matches('/');
        HubUrl::parse(&format!("{origin}{}", self.path)).map_err(anyhow::Error::msg)
    }

    /// Reads the keys of subscribers and of publishers.
    pub(crate) fn read_keys(&self) -> anyhow::Result<(Option<KeySet>, Option<KeySet>)> {
        let read = |path: &PathBuf| {
            let named = || format!("the hub's key {}", path.display());
            let text = std::fs::read(path).with_context(named)?;
            KeySet::parse(&text).with_context(named)
        };
        let subscribers = self.subscriber_keys.as_ref().map(read).transpose()?;
        let publishers = match &self.publisher_keys {
            Some(path) => Some(read(path)?),
            None => subscribers.clone(),
        };
        Ok((subscribers, publishers))
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
        assert!(format!("{:#}", with_key.read_keys().unwrap_err()).contains("key k"));
        assert_eq!(with_key.url("http://h:1").unwrap().as_str(), "http://h:1/hub");
    }
}
