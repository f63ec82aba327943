//! Flags about the hub.

use super::value;
use crate::{bytes, duration, usage::UsageError};
use clap::ArgAction;
use pollux_hub::{dialect::Dialect, topic::WELL_KNOWN};
use pollux_server::config::{Config, HubStoreConfig, KeySource, Size, SlowSubscribers, Text, Time};
use std::{path::PathBuf, time::Duration};

#[derive(clap::Args)]
#[command(next_help_heading = "Hub")]
pub(crate) struct HubArgs {
    /// Serve a Mercure hub at this path: it sends the updates that publishers post to subscribers, as
    /// server-sent events. Write DIR before this flag [default path: /.well-known/mercure]
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = WELL_KNOWN)]
    pub(super) hub: Option<String>,

    /// The public URL of the server, without a path. Tokens name it, and relative topics are resolved against it
    /// [default: the first address of --listen]
    #[arg(long, value_name = "URL")]
    hub_url: Option<String>,

    /// File with the key that verifies the tokens of subscribers and publishers: a secret of 32 bytes or more
    /// (HS256), a public key in PEM (RS256, ES256, EdDSA), or a JWK set
    #[arg(long, value_name = "FILE")]
    hub_jwt_key: Option<PathBuf>,

    /// JWK set (RFC 7517) with the keys of all tokens, in place of --hub-jwt-key: a file, which is read
    /// again when it changes, or a URL, which is fetched at the start and then at intervals
    #[arg(long, value_name = "FILE|URL", conflicts_with = "hub_jwt_key")]
    hub_jwks: Option<Text<KeySource>>,

    /// How often to fetch the URL of --hub-jwks again [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    hub_jwks_interval: Option<Duration>,

    /// Trust the authorities in this PEM file for the URL of --hub-jwks, instead of the system's
    #[arg(long, value_name = "FILE")]
    hub_jwks_ca: Option<PathBuf>,

    /// File with the key that verifies the tokens of publishers, if they have another one than subscribers
    #[arg(long, value_name = "FILE")]
    hub_publisher_key: Option<PathBuf>,

    /// Accept only tokens of this issuer (claim iss); may be repeated [default: every issuer that has a
    /// key]
    #[arg(long, value_name = "URL", action = ArgAction::Append)]
    hub_issuer: Vec<String>,

    /// Subscribers need no token. Those without one get only updates that are not private
    #[arg(long)]
    hub_anonymous: Option<bool>,

    /// Publishers need no token. For trials: the server refuses it if other hosts can connect
    #[arg(long)]
    hub_publish_anonymous: Option<bool>,

    /// The version of Mercure: 0 (0.x, which existing clients use), 1 (1.0) or both [default: both]
    #[arg(long, value_name = "WHICH")]
    hub_dialect: Option<Text<Dialect>>,

    /// Let pages of another origin (https://HOST) use the hub, or all pages (*), then without cookies;
    /// may be repeated
    #[arg(long, value_name = "ORIGIN", action = ArgAction::Append)]
    hub_cors: Vec<String>,

    /// Publish an update when a subscription begins or ends, and list the active ones at PATH/subscriptions
    #[arg(long)]
    hub_subscriptions: Option<bool>,

    /// Send a comment to a subscriber that has received nothing else for this time, so that proxies keep
    /// its connection open; 0 is never [default: 40s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    hub_heartbeat: Option<Duration>,

    /// End a stream after this time at the latest: the subscriber connects again, goes on after its last
    /// update, and its token is verified anew; 0 is no limit [default: 1day]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    hub_max_lifetime: Option<Duration>,

    /// Where to keep the history: memory; file:PATH, in which an acknowledged update survives a restart; or
    /// redis://HOST:PORT[/DB] or unix:///PATH, so that all hubs with the same Redis are one hub [default: memory]
    #[arg(long, value_name = "STORE")]
    hub_store: Option<Text<HubStoreConfig>>,

    /// Maximum number of updates in the history, for subscribers that reconnect or are slow [default: 10000]
    #[arg(long, value_name = "N")]
    hub_history: Option<usize>,

    /// Maximum size of the history [default: 64M]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    hub_history_bytes: Option<u64>,

    /// Maximum age of an update in the history [default: 1day]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    hub_history_age: Option<Duration>,

    /// What to do if updates leave the history before a slow subscriber has received them: skip (a comment
    /// tells it, and it gets those that are left) or close (its stream ends) [default: skip]
    #[arg(long, value_name = "WHAT", value_parser = slow)]
    hub_slow: Option<SlowSubscribers>,

    /// Maximum number of topics and patterns of one subscriber [default: 100]
    #[arg(long, value_name = "N")]
    hub_max_topics: Option<usize>,

    /// Maximum number of subscribers with the same client address; 0 is no limit [default: 0]
    #[arg(long, value_name = "N")]
    hub_max_per_address: Option<u32>,

    /// Maximum size of an update [default: 1M]
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    hub_max_update: Option<u64>,

    /// Maximum number of updates per second; 0 is no limit [default: 0]
    #[arg(long, value_name = "N")]
    hub_max_rate: Option<u32>,
}

impl HubArgs {
    /// Applies the flags that were given to the hub of `config`. `--hub` adds a hub if there is
    /// none.
    ///
    /// # Errors
    /// A flag about a hub was given, but there is no hub.
    pub(super) fn apply(self, config: &mut Config) -> Result<(), UsageError> {
        if self.hub.is_none() && config.hub.is_none() {
            return match self.first_given() {
                Some(flag) => Err(UsageError::new(format!(
                    "{flag}: there is no hub; add --hub, or a [hub] to the configuration file"
                ))),
                None => Ok(()),
            };
        }
        let hub = config.hub.get_or_insert_default();
        value::set(&mut hub.path, self.hub);
        value::set_some(&mut hub.url, self.hub_url);
        value::set_some(&mut hub.jwt_key, self.hub_jwt_key);
        value::set_some(&mut hub.jwks, self.hub_jwks);
        value::set_some(&mut hub.jwks_ca, self.hub_jwks_ca);
        value::set(&mut hub.jwks_interval, self.hub_jwks_interval.map(Time));
        value::set_some(&mut hub.publisher_key, self.hub_publisher_key);
        value::replace(&mut hub.issuer, self.hub_issuer);
        value::set(&mut hub.anonymous, self.hub_anonymous);
        value::set(&mut hub.publish_anonymous, self.hub_publish_anonymous);
        value::set_some(&mut hub.dialect, self.hub_dialect);
        value::replace(&mut hub.cors, self.hub_cors);
        value::set(&mut hub.subscriptions, self.hub_subscriptions);
        value::set(&mut hub.heartbeat, self.hub_heartbeat.map(Time));
        value::set(&mut hub.max_lifetime, self.hub_max_lifetime.map(Time));
        value::set_some(&mut hub.store, self.hub_store);
        value::set(&mut hub.history, self.hub_history);
        value::set(&mut hub.history_bytes, self.hub_history_bytes.map(Size));
        value::set(&mut hub.history_age, self.hub_history_age.map(Time));
        value::set(&mut hub.slow, self.hub_slow);
        value::set(&mut hub.max_topics, self.hub_max_topics);
        value::set(&mut hub.max_per_address, self.hub_max_per_address);
        value::set(&mut hub.max_update, self.hub_max_update.map(Size));
        value::set(&mut hub.max_rate, self.hub_max_rate);
        Ok(())
    }

    /// Returns the first flag that was given, except `--hub`.
    fn first_given(&self) -> Option<&'static str> {
        let flags = [
            ("--hub-url", self.hub_url.is_some()),
            ("--hub-jwt-key", self.hub_jwt_key.is_some()),
            ("--hub-jwks", self.hub_jwks.is_some()),
            ("--hub-jwks-ca", self.hub_jwks_ca.is_some()),
            ("--hub-jwks-interval", self.hub_jwks_interval.is_some()),
            ("--hub-publisher-key", self.hub_publisher_key.is_some()),
            ("--hub-issuer", !self.hub_issuer.is_empty()),
            ("--hub-anonymous", self.hub_anonymous.is_some()),
            ("--hub-publish-anonymous", self.hub_publish_anonymous.is_some()),
            ("--hub-dialect", self.hub_dialect.is_some()),
            ("--hub-cors", !self.hub_cors.is_empty()),
            ("--hub-subscriptions", self.hub_subscriptions.is_some()),
            ("--hub-heartbeat", self.hub_heartbeat.is_some()),
            ("--hub-max-lifetime", self.hub_max_lifetime.is_some()),
            ("--hub-store", self.hub_store.is_some()),
            ("--hub-history", self.hub_history.is_some()),
            ("--hub-history-bytes", self.hub_history_bytes.is_some()),
            ("--hub-history-age", self.hub_history_age.is_some()),
            ("--hub-slow", self.hub_slow.is_some()),
            ("--hub-max-topics", self.hub_max_topics.is_some()),
            ("--hub-max-per-address", self.hub_max_per_address.is_some()),
            ("--hub-max-update", self.hub_max_update.is_some()),
            ("--hub-max-rate", self.hub_max_rate.is_some()),
        ];
        flags.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }
}

fn slow(text: &str) -> Result<SlowSubscribers, String> {
    match text {
        "skip" => Ok(SlowSubscribers::Skip),
        "close" => Ok(SlowSubscribers::Close),
        _ => Err("give skip or close".into()),
    }
}
