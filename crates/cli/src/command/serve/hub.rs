//! Flags about the hub.

use crate::{bytes, duration};
use clap::ArgAction;
use pollux_hub::{dialect::Dialect, limits::Limits, subscribers::OnLoss, topic::WELL_KNOWN};
use pollux_server::{
    Config,
    config::{HubConfig, HubStoreConfig},
};
use std::{path::PathBuf, sync::Arc, time::Duration};

#[derive(Clone, clap::Args)]
#[command(next_help_heading = "Hub")]
pub(crate) struct HubArgs {
    /// Serve a Mercure hub at this path: updates that publishers post reach subscribers as
    /// server-sent events. DIR stands before this flag [default path: /.well-known/mercure]
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = WELL_KNOWN)]
    pub(super) hub: Option<String>,

    /// The public URL of the server, without a path: tokens name it, relative topics begin with it
    /// [default: the first address of --listen]
    #[arg(long, value_name = "URL", requires = "hub")]
    hub_url: Option<String>,

    /// The file with the key of subscribers' and publishers' tokens: a secret of 32 bytes or more
    /// (HS256), a public key in PEM (RS256, ES256, EdDSA), or a JWK set
    #[arg(long, value_name = "FILE", requires = "hub")]
    hub_jwt_key: Option<PathBuf>,

    /// The file with the key of publishers' tokens, if it is another one
    #[arg(long, value_name = "FILE", requires = "hub")]
    hub_publisher_key: Option<PathBuf>,

    /// Issuer (claim iss) whose tokens are accepted; may be repeated [default: every issuer that
    /// has a key]
    #[arg(long, value_name = "URL", requires = "hub", action = ArgAction::Append)]
    hub_issuer: Vec<String>,

    /// Subscribers need no token, and get what is not private
    #[arg(long, requires = "hub")]
    hub_anonymous: bool,

    /// Publishers need no token. Only for trials: refused where other hosts can connect
    #[arg(long, requires = "hub")]
    hub_publish_anonymous: bool,

    /// Which Mercure is spoken: 0 (0.x, of clients in use), 1 (1.0) or both
    #[arg(long, value_name = "WHICH", requires = "hub", default_value = "both")]
    hub_dialect: Dialect,

    /// Origins of web pages elsewhere that may use the hub, or * for every page, without cookies;
    /// may be repeated
    #[arg(long, value_name = "ORIGIN", requires = "hub", action = ArgAction::Append)]
    hub_cors: Vec<String>,

    /// Tell of subscriptions, and list them at PATH/subscriptions
    #[arg(long, requires = "hub")]
    hub_subscriptions: bool,

    /// How often an idle subscriber gets a comment; 0 is never
    #[arg(long, value_name = "TIME", requires = "hub", default_value = "40s", value_parser = duration::parse)]
    hub_heartbeat: Duration,

    /// Where updates are kept: memory; file:PATH, where an update that was acknowledged survives a
    /// restart; or redis://HOST:PORT[/DB] or unix:///PATH, which makes all hubs of one Redis one hub
    #[arg(long, value_name = "STORE", requires = "hub", default_value = "memory")]
    hub_store: HubStoreConfig,

    /// Updates that are kept for subscribers that reconnect or are slow
    #[arg(long, value_name = "N", requires = "hub", default_value_t = 10_000)]
    hub_history: usize,

    /// The most bytes of these updates
    #[arg(long, value_name = "BYTES", requires = "hub", default_value = "64M", value_parser = bytes::parse)]
    hub_history_bytes: u64,

    /// How long they are kept
    #[arg(long, value_name = "TIME", requires = "hub", default_value = "1day", value_parser = duration::parse)]
    hub_history_age: Duration,

    /// What becomes of a subscriber that is too slow: skip (it learns that it missed
    /// updates, and gets those that are left) or close (its stream ends)
    #[arg(long, value_name = "WHAT", requires = "hub", default_value = "skip", value_parser = slow)]
    hub_slow: OnLoss,

    /// Topics and patterns that one subscriber may name
    #[arg(long, value_name = "N", requires = "hub", default_value_t = 100)]
    hub_max_topics: usize,

    /// Subscribers that one client address may have; 0 is no limit
    #[arg(long, value_name = "N", requires = "hub", default_value_t = 0)]
    hub_max_per_address: u32,

    /// The most bytes of one update
    #[arg(long, value_name = "BYTES", requires = "hub", default_value = "1M", value_parser = bytes::parse)]
    hub_max_update: u64,

    /// The most updates in a second; 0 is no limit
    #[arg(long, value_name = "N", requires = "hub", default_value_t = 0)]
    hub_max_rate: u32,
}

impl HubArgs {
    /// Replaces the hub of a file by that of the flags, if they name one.
    pub(super) fn apply(self, config: &mut Config) {
        if let Some(hub) = self.config() {
            config.hub = Some(Arc::new(hub));
        }
    }

    fn config(&self) -> Option<HubConfig> {
        let mut config = HubConfig::new(self.hub.clone()?);
        config.origin.clone_from(&self.hub_url);
        config.subscriber_keys.clone_from(&self.hub_jwt_key);
        config.publisher_keys.clone_from(&self.hub_publisher_key);
        config.anonymous = self.hub_anonymous;
        config.publish_anonymous = self.hub_publish_anonymous;
        config.dialect = self.hub_dialect;
        config.issuers.clone_from(&self.hub_issuer);
        config.cors.clone_from(&self.hub_cors);
        config.subscriptions = self.hub_subscriptions;
        config.on_loss = self.hub_slow;
        config.heartbeat = self.hub_heartbeat;
        config.store.clone_from(&self.hub_store);
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        config.limits = Limits {
            history_updates: self.hub_history,
            history_bytes: size(self.hub_history_bytes),
            history_age: self.hub_history_age,
            matchers: self.hub_max_topics,
            update_bytes: size(self.hub_max_update),
            updates_per_second: self.hub_max_rate,
            subscribers_per_address: self.hub_max_per_address,
        };
        Some(config)
    }
}

fn slow(text: &str) -> Result<OnLoss, String> {
    match text {
        "skip" => Ok(OnLoss::Skip),
        "close" => Ok(OnLoss::Disconnect),
        _ => Err("give skip or close".into()),
    }
}
