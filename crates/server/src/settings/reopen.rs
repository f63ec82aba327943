//! The settings for a server that runs: what the former settings have open is kept, if it can be.

use super::Settings;
use crate::config::{Config, SiteSection};
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
            let position = self.former_cache(index, former)?;
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

    /// Returns the number of the site in `former` whose cache the site with the number `index` uses: that with the
    /// same settings, and with the same folder or a name in common. No two sites use the same cache.
    fn former_cache(&self, index: usize, former: &Self) -> Option<usize> {
        let site = self.site.get(index)?;
        let position = former.site.iter().position(|other| continues(site, other))?;
        let other = &former.site[position];
        (!self.site[..index].iter().any(|earlier| continues(earlier, other))).then_some(position)
    }
}

/// Returns whether a site can use the cache of a former site. A name that is added must not cost a site its cache; and
/// a folder can only be used by the cache that has it.
fn continues(site: &SiteSection, former: &SiteSection) -> bool {
    let has_name =
        |name: &String| former.names.iter().any(|other| other.eq_ignore_ascii_case(name));
    let is_default = site.names.is_empty() && former.names.is_empty();
    former.cache.is_some()
        && has_same_cache(site, former)
        && (site.cache_dir.is_some() || is_default || site.names.iter().any(has_name))
}

/// Returns whether a cache that was created for one site can be used for the other.
fn has_same_cache(a: &SiteSection, b: &SiteSection) -> bool {
    let keys = |site: &SiteSection| {
        let table = Table::try_from(site).unwrap_or_default();
        table.into_iter().filter(|(name, _)| name.starts_with("cache")).collect::<Table>()
    };
    // Which requests a stored response answers depends on the fields that origins receive.
    a.forwarded.value == b.forwarded.value && keys(a) == keys(b)
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

    #[test]
    fn a_cache_is_not_kept_if_origins_receive_other_fields() {
        let text = |how: &str| {
            parse(&format!(
                "[[site]]\norigin = [\"http://127.0.0.1:9\"]\ncache = \"1M\"\nforwarded = \"{how}\"\n"
            ))
        };
        for (how, count) in [("replace", 0), ("append", 2), ("keep", 6), ("remove", 0)] {
            let settings = text(how).open(|| anyhow::bail!("no guestbook")).unwrap();
            let cache = settings.frontend.as_ref().unwrap().cache.as_ref().unwrap();
            assert_eq!(cache.config().implied_vary.len(), count, "{how}");
            for other in ["replace", "append", "keep", "remove"] {
                let is_kept = text(how).former_cache(0, &text(other)).is_some();
                assert_eq!(is_kept, how == other, "{how} {other}");
            }
        }
    }

    /// Regression: a site that got another name lost its cache; with a folder, the reload was refused.
    #[test]
    fn a_cache_is_kept_if_the_names_of_its_site_change() {
        let site = |names: &str, folder: &str| {
            format!(
                "[[site]]\nnames = [{names}]\norigin = [\"http://127.0.0.1:9\"]\ncache = \"1M\"\n{folder}\n"
            )
        };
        let position = |now: &str, former: &str, index| {
            let (now, former) = (parse(now), parse(former));
            now.former_cache(index, &former)
        };
        let former = [site("\"a\", \"b\"", ""), site("\"c\"", "")].concat();
        assert_eq!(position(&site("\"x\", \"B\"", ""), &former, 0), Some(0));
        assert_eq!(position(&site("\"x\"", ""), &former, 0), None);
        assert_eq!(position(&site("", ""), &former, 0), None);
        assert_eq!(position(&site("", ""), &site("", ""), 0), Some(0));
        // A site that is split: one part gets the cache.
        let split = [site("\"c\"", ""), site("\"b\"", ""), site("\"a\"", "")].concat();
        let positions = [0, 1, 2].map(|index| position(&split, &former, index));
        assert_eq!(positions, [Some(1), Some(0), None]);
        // A folder belongs to one cache, whatever the names are.
        let (folder, other) = ("cache-dir = \"/f\"", "cache-dir = \"/g\"");
        assert_eq!(position(&site("\"x\"", folder), &site("\"a\"", folder), 0), Some(0));
        assert_eq!(position(&site("\"a\"", folder), &site("\"a\"", other), 0), None);
    }
}
