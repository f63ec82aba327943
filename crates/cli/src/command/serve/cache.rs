//! Flags about the cache of origins' responses.

use super::value;
use pollux_server::config::{Config, Size, Time};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(next_help_heading = "Cache of origins' responses (RFC 9111)")]
pub(super) struct CacheArgs {
    /// Store responses of origins in this much memory, shared by all workers [default: no cache]
    #[arg(long, value_name = "SIZE")]
    cache: Option<Size>,

    /// Time that a stale response may replace that of an origin that fails, unless the response says
    /// otherwise (stale-if-error) [default: 0s]
    #[arg(long, value_name = "TIME")]
    cache_stale: Option<Time>,

    /// Maximum size of a stored response. It also has to fit into its part of --cache: an eighth of
    /// less than 32M, at least 4M from there on, 1/128 from 512M on [default: 8M]
    #[arg(long, value_name = "SIZE")]
    cache_object: Option<Size>,

    /// Time to store responses such as 404 and 301 that state no lifetime (negative caching); 0s
    /// stores none [default: 0s]
    #[arg(long, value_name = "TIME")]
    cache_negative: Option<Time>,

    /// Also store responses with Set-Cookie that do not say `public`: only where every client may get
    /// the same cookie
    #[arg(long)]
    cache_set_cookie: Option<bool>,

    /// Store responses in this directory too, so that they survive a restart. The directory is for one
    /// server alone
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,

    /// Maximum size of the files in --cache-dir [default: 1G]
    #[arg(long, value_name = "SIZE")]
    cache_dir_size: Option<Size>,
}

impl CacheArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        // A site without an origin has nothing to cache. If no site has one, the flags are a fault of all.
        let has_origin = config.site.iter().any(|site| !site.origin.is_empty());
        for site in config.site.iter_mut().filter(|site| !has_origin || !site.origin.is_empty()) {
            value::set_some(&mut site.cache, self.cache);
            value::set(&mut site.cache_stale, self.cache_stale);
            value::set(&mut site.cache_object, self.cache_object);
            value::set(&mut site.cache_negative, self.cache_negative);
            value::set(&mut site.cache_set_cookie, self.cache_set_cookie);
            value::set_some(&mut site.cache_dir, self.cache_dir.clone());
            value::set(&mut site.cache_dir_size, self.cache_dir_size);
        }
    }
}
