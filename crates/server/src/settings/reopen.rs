//! The settings for a server that runs: what the former settings have open is kept, if it can be.

use super::Settings;
use crate::config::{Config, ForwardedPolicy, SiteSection};
use anyhow::bail;
use std::path::PathBuf;
use toml::Table;

impl Config {
    /// Does the same as [`Config::open`], for a server that runs with `current`, which was
    /// opened from `former`. A cache whose settings are unchanged is kept together with its
    /// content.
    ///
    /// # Errors
    /// The errors of [`Config::open`]; also if a directory is in use by a cache with other
    /// settings.
    pub fn open_again(
        &self,
        store: impl Fn() -> anyhow::Result<PathBuf>,
        former: &Self,
        current: &Settings,
    ) -> anyhow::Result<Settings> {
        for site in &self.site {
            let Some(folder) = site.cache.and(site.cache_dir.as_ref()) else { continue };
            let is_same = |other: &&SiteSection| {
                other.cache.is_some() && other.cache_dir.as_ref() == Some(folder)
            };
            if let Some(other) = former.site.iter().find(is_same)
                && !has_same_cache(site, other)
            {
                bail!(
                    "cache-dir {}: the settings of a cache with a folder cannot change while a server \
                     runs; undo the change, name another folder, or restart the server",
                    folder.display()
                );
            }
        }
        self.open_with(store, |index| {
            let site = self.site.get(index)?;
            let is_same = |other: &SiteSection| {
                other.cache.is_some() && site.names == other.names && has_same_cache(site, other)
            };
            let position = former.site.iter().position(is_same)?;
            let default = former.default_site();
            let frontend = if position == default {
                current.frontend.as_ref()
            } else {
                let host = position - usize::from(position > default);
                current.hosts.get(host)?.frontend.as_ref()
            };
            frontend?.cache.clone()
        })
    }
}

/// Returns whether a cache that was created for one site can be used for the other.
fn has_same_cache(a: &SiteSection, b: &SiteSection) -> bool {
    let forwards = |site: &SiteSection| {
        matches!(site.forwarded.value, ForwardedPolicy::Keep | ForwardedPolicy::Remove)
    };
    let keys = |site: &SiteSection| {
        let table = Table::try_from(site).unwrap_or_default();
        table.into_iter().filter(|(name, _)| name.starts_with("cache")).collect::<Table>()
    };
    forwards(a) == forwards(b) && keys(a) == keys(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Config {
        Config::parse("test", text).unwrap()
    }

    #[test]
    fn a_cache_is_kept_if_its_settings_are_the_same() {
        let text = |size, keep: &str| {
            parse(&format!(
                "[[site]]\norigin = [\"http://127.0.0.1:9\"]\ncache = \"{size}\"\norigin-timeout = \"{keep}\"\n"
            ))
        };
        let store = || anyhow::bail!("no guestbook");
        let former = text("1M", "60s");
        let current = former.open(store).unwrap();
        let name = |config: &Settings| {
            let cache = config.frontend.as_ref().unwrap().cache.as_ref().unwrap();
            cache.config().limit_bytes
        };
        let again = text("1M", "5s").open_again(store, &former, &current).unwrap();
        assert_eq!(name(&again), name(&current));
        let larger = text("2M", "5s").open_again(store, &former, &current).unwrap();
        assert_ne!(name(&larger), name(&current));
    }
}
