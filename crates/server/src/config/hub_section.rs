//! The `[hub]` table of a configuration file.

use super::hub::{HubConfig, HubStoreConfig, KeySource};
use super::value::{Size, Text, Time};
use pollux_hub::{dialect::Dialect, limits::Limits, subscribers::OnLoss, topic::WELL_KNOWN};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What becomes of a subscriber that is too slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SlowSubscribers {
    /// A comment in its stream says that it missed updates, and it gets those that are left.
    #[default]
    Skip,
    /// Its stream ends.
    Close,
}

/// A Mercure hub of the default site. Keys are the names of the flags without `hub-`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct HubSection {
    /// The path.
    pub path: String,
    /// The public URL of the server, without a path.
    pub url: Option<String>,
    /// The file with the key of subscribers' and publishers' tokens.
    pub jwt_key: Option<PathBuf>,
    /// A JWK set with the keys of all tokens, in place of `jwt-key`: a file, or an `http` or `https` URL.
    pub jwks: Option<Text<KeySource>>,
    /// How often that URL is fetched again.
    pub jwks_interval: Time,
    /// The PEM file of the authorities that are trusted for that URL, instead of the system's.
    pub jwks_ca: Option<PathBuf>,
    /// The file with the key of publishers' tokens, if it is another one.
    pub publisher_key: Option<PathBuf>,
    /// Issuers whose tokens are accepted; none: every issuer that has a key.
    pub issuer: Vec<String>,
    /// Subscribers need no token, and get what is not private.
    pub anonymous: bool,
    /// Publishers need no token.
    pub publish_anonymous: bool,
    /// The version of Mercure: `0`, `1` or `both`.
    pub dialect: Option<Text<Dialect>>,
    /// Other origins whose pages may use the hub.
    pub cors: Vec<String>,
    /// Publish an update when a subscription begins or ends, and list the active ones.
    pub subscriptions: bool,
    /// After this time without anything else, a subscriber gets a comment; 0 is never.
    pub heartbeat: Time,
    /// The longest time that a stream lasts; 0 is no limit.
    pub max_lifetime: Time,
    /// Where to keep the history: `memory`, `file:PATH`, `redis://HOST:PORT[/DB]` or `unix:///PATH`.
    pub store: Option<Text<HubStoreConfig>>,
    /// Maximum number of updates in the history.
    pub history: usize,
    /// Maximum size of the history.
    pub history_bytes: Size,
    /// Maximum age of an update in the history.
    pub history_age: Time,
    /// What to do if updates leave the history before a slow subscriber has received them.
    pub slow: SlowSubscribers,
    /// Maximum number of topics and patterns of one subscriber.
    pub max_topics: usize,
    /// Maximum number of subscribers with the same client address; 0 is no limit.
    pub max_per_address: u32,
    /// Maximum size of an update.
    pub max_update: Size,
    /// Maximum number of updates per second; 0 is no limit.
    pub max_rate: u32,
}

impl Default for HubSection {
    fn default() -> Self {
        let HubConfig { heartbeat, max_lifetime, limits, key_interval, .. } =
            HubConfig::new(WELL_KNOWN);
        Self {
            path: WELL_KNOWN.to_owned(),
            url: None,
            jwt_key: None,
            jwks: None,
            jwks_interval: Time(key_interval),
            jwks_ca: None,
            publisher_key: None,
            issuer: Vec::new(),
            anonymous: false,
            publish_anonymous: false,
            dialect: None,
            cors: Vec::new(),
            subscriptions: false,
            heartbeat: Time(heartbeat),
            max_lifetime: Time(max_lifetime),
            store: None,
            history: limits.history_updates,
            history_bytes: Size(limits.history_bytes as u64),
            history_age: Time(limits.history_age),
            slow: SlowSubscribers::default(),
            max_topics: limits.matchers,
            max_per_address: limits.subscribers_per_address,
            max_update: Size(limits.update_bytes as u64),
            max_rate: limits.updates_per_second,
        }
    }
}

impl HubSection {
    /// Returns the configuration of the hub.
    pub(crate) fn config(&self) -> HubConfig {
        let size = |size: Size| usize::try_from(size.0).unwrap_or(usize::MAX);
        HubConfig {
            origin: self.url.clone(),
            subscriber_keys: self.jwt_key.clone(),
            key_source: self.jwks.as_ref().map(|source| source.value.clone()),
            key_interval: self.jwks_interval.0,
            key_authorities: self.jwks_ca.clone(),
            publisher_keys: self.publisher_key.clone(),
            anonymous: self.anonymous,
            publish_anonymous: self.publish_anonymous,
            dialect: self.dialect.as_ref().map_or(Dialect::Both, |dialect| dialect.value),
            issuers: self.issuer.clone(),
            cors: self.cors.clone(),
            subscriptions: self.subscriptions,
            on_loss: match self.slow {
                SlowSubscribers::Skip => OnLoss::Skip,
                SlowSubscribers::Close => OnLoss::Disconnect,
            },
            heartbeat: self.heartbeat.0,
            max_lifetime: self.max_lifetime.0,
            store: self.store.as_ref().map(|store| store.value.clone()).unwrap_or_default(),
            limits: Limits {
                history_updates: self.history,
                history_bytes: size(self.history_bytes),
                history_age: self.history_age.0,
                matchers: self.max_topics,
                update_bytes: size(self.max_update),
                updates_per_second: self.max_rate,
                subscribers_per_address: self.max_per_address,
            },
            ..HubConfig::new(&self.path)
        }
    }
}
