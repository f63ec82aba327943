//! Flags about the cache of origins' responses.

use super::value;
use crate::{bytes, duration, usage::UsageError};
use anyhow::Context;
use pollux_server::config::{Architecture, ForwardedPolicy, FrontendConfig};
use std::{path::PathBuf, time::Duration};

/// Default of --cache-dir-size.
const DIRECTORY_BYTES: u64 = 1 << 30;

#[derive(clap::Args)]
#[command(next_help_heading = "Cache of origins' responses (RFC 9111)")]
pub(super) struct CacheArgs {
    /// Store responses of origins in this much memory, shared by all workers [default: no cache]
    #[arg(long, value_name = "SIZE", requires = "origin", value_parser = value::cache_size)]
    cache: Option<u64>,

    /// Time that a stale response may replace that of an origin that fails, unless the response says
    /// otherwise (stale-if-error) [default: 0s]
    #[arg(long, value_name = "TIME", requires = "cache", value_parser = duration::parse)]
    cache_stale: Option<Duration>,

    /// Maximum size of a stored response. It also has to fit into its part of --cache: an eighth of
    /// less than 32M, at least 4M from there on, 1/128 from 512M on [default: 8M]
    #[arg(long, value_name = "SIZE", requires = "cache", value_parser = bytes::parse)]
    cache_object: Option<u64>,

    /// Time to store responses such as 404 and 301 that state no lifetime (negative caching); 0s
    /// stores none [default: 0s]
    #[arg(long, value_name = "TIME", requires = "cache", value_parser = duration::parse)]
    cache_negative: Option<Duration>,

    /// Also store responses with Set-Cookie that do not say `public`: only where every client may get
    /// the same cookie
    #[arg(long, requires = "cache")]
    cache_set_cookie: bool,

    /// Store responses in this folder too, so that they survive a restart. The folder is for one
    /// server alone
    #[arg(long, value_name = "DIR", requires = "cache")]
    cache_dir: Option<PathBuf>,

    /// Maximum size of the files in --cache-dir [default: 1G]
    #[arg(long, value_name = "SIZE", requires = "cache_dir", value_parser = bytes::parse)]
    cache_dir_size: Option<u64>,

    /// Socket, for this user alone, on which `pollux cache` lists what is stored and purges it
    #[arg(long, value_name = "PATH", requires = "cache")]
    control: Option<PathBuf>,
}

impl CacheArgs {
    /// Adds the cache that the flags ask for to `frontend`.
    ///
    /// # Errors
    /// The folder cannot be used, or processes would have to share the cache.
    pub(super) fn apply(
        self,
        frontend: &mut FrontendConfig,
        architecture: Architecture,
    ) -> anyhow::Result<()> {
        let Some(limit) = self.cache else { return Ok(()) };
        if matches!(architecture, Architecture::Forking | Architecture::Preforked) {
            return Err(UsageError::new(
                "--cache is one for all workers, and processes share no memory: use \
                 --architecture event, iterative, threaded or prethreaded with it",
            )
            .into());
        }
        frontend.control.clone_from(&self.control);
        frontend.cache = Some(self.store(limit, frontend.forwarded)?);
        Ok(())
    }

    fn store(self, limit: u64, forwarded: ForwardedPolicy) -> anyhow::Result<pollux_cache::Store> {
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        let mut config = pollux_cache::Config {
            limit_bytes: limit,
            cache_set_cookie: self.cache_set_cookie,
            ..Default::default()
        };
        value::set(&mut config.max_object_bytes, self.cache_object);
        value::set(&mut config.negative_lifetime_s, self.cache_negative.map(seconds));
        value::set(&mut config.stale_if_error_s, self.cache_stale.map(seconds));
        if matches!(forwarded, ForwardedPolicy::Keep | ForwardedPolicy::Remove) {
            // An origin sees the client's own fields or none: they may decide what it answers.
            config.rewritten_fields.retain(|name| !name.contains("forwarded"));
        }
        let Some(path) = self.cache_dir else { return Ok(pollux_cache::Store::new(config)) };
        let size = self.cache_dir_size.unwrap_or(DIRECTORY_BYTES);
        pollux_cache::FsDirectory::open(path.clone())
            .and_then(|folder| pollux_cache::Store::with_directory(config, folder, size))
            .with_context(|| format!("--cache-dir {}", path.display()))
    }
}
