//! A change of the configuration of a running server: the differences, and the forbidden changes.

use super::{Config, Key, SiteSection, Sources, without_password};
use anyhow::bail;
use toml::{Table, Value};

/// The keys of the server that workers can change between two iterations of their loop. All other
/// keys configure objects that are created at the start: listeners, threads, files.
const CHANGEABLE: [&str; 18] = [
    "accept-limit",
    "cache-size",
    "drain",
    "grace",
    "header-timeout",
    "hsts",
    "idle-eviction",
    "include",
    "keep-alive",
    "large-file",
    "max-connections",
    "max-header",
    "max-requests",
    "no-server-header",
    "send-timeout",
    "site",
    "tls-cert",
    "tls-key",
];

/// The keys of a site that configure its guestbook, which stays open.
const GUESTBOOK: [&str; 5] =
    ["guestbook", "guestbook-template", "guestbook-shown", "store", "store-connections"];

impl Config {
    /// Returns the differences from `former`, a line for each key: `KEY: FORMER -> PRESENT`.
    /// `sources` belong to this configuration.
    ///
    /// # Errors
    /// A key has changed that a running server cannot change; the message names the key and its
    /// location.
    pub fn changes_from(&self, former: &Self, sources: &Sources) -> anyhow::Result<Vec<String>> {
        let (now, before) = (self.to_table(), former.to_table());
        let mut changes = Vec::new();
        for (name, was, is) in differences(&before, &now) {
            if !CHANGEABLE.contains(&name) {
                let location = sources.location(&[Key::Name(name)]);
                let location = location.map(|location| format!("{location}: ")).unwrap_or_default();
                bail!(
                    "{location}{name}: {} -> {}: a running server cannot change this; undo the change, have a \
                     new process take over (pollux ctl upgrade, no connection is lost), or restart the server",
                    shown(name, was),
                    shown(name, is)
                );
            }
            if name != "site" {
                changes.push(format!("{name}: {} -> {}", shown(name, was), shown(name, is)));
            }
        }
        self.keep_tls(former, sources)?;
        self.keep_acme(former, sources)?;
        self.keep_guestbooks(former, sources)?;
        let (now, before) = (sites(&now), sites(&before));
        for index in 0..now.len().max(before.len()) {
            let names =
                |sites: &[Table]| sites.get(index).and_then(|site| site.get("names").cloned());
            match (before.get(index), now.get(index)) {
                (Some(before), Some(now)) => {
                    changes.extend(differences(before, now).map(|(name, was, is)| {
                        format!("site[{index}].{name}: {} -> {}", shown(name, was), shown(name, is))
                    }));
                }
                (None, _) => changes
                    .push(format!("site[{index}]: new {}", shown("names", names(&now).as_ref()))),
                (_, None) => {
                    changes.push(format!(
                        "site[{index}]: gone {}",
                        shown("names", names(&before).as_ref())
                    ));
                }
            }
        }
        Ok(changes)
    }

    /// Checks that the guestbook is unchanged, in the site of the same number.
    fn keep_guestbooks(&self, former: &Self, sources: &Sources) -> anyhow::Result<()> {
        let count = self.site.len().max(former.site.len());
        let has = |site: Option<&SiteSection>| site.is_some_and(|site| site.guestbook.is_some());
        let table = |site: Option<&SiteSection>| site.and_then(|site| Table::try_from(site).ok());
        for index in 0..count {
            let (was, is) = (former.site.get(index), self.site.get(index));
            if !has(was) && !has(is) {
                continue;
            }
            let is_moved = (former.default_site() == index) != (self.default_site() == index)
                || self.default_site() != former.default_site();
            let (before, now) = (table(was).unwrap_or_default(), table(is).unwrap_or_default());
            let differs = differences(&before, &now).find(|(name, ..)| GUESTBOOK.contains(name));
            if let Some((name, ..)) = differs {
                let location =
                    sources.location(&[Key::Name("site"), Key::Index(index), Key::Name(name)]);
                let location = location.map(|location| format!("{location}: ")).unwrap_or_default();
                bail!(
                    "{location}site[{index}].{name}: a running server cannot change its guestbook; undo the \
                     change, or restart the server"
                );
            }
            if is_moved {
                bail!(
                    "site[{index}] has a guestbook, and another site would become the default: a running \
                     server cannot change that; restart the server"
                );
            }
        }
        Ok(())
    }
}

fn sites(table: &Table) -> Vec<Table> {
    let sites = table.get("site").and_then(Value::as_array).into_iter().flatten();
    sites.filter_map(Value::as_table).cloned().collect()
}

/// Returns the keys whose values differ, with the former and the present value.
fn differences<'t>(
    before: &'t Table,
    now: &'t Table,
) -> impl Iterator<Item = (&'t str, Option<&'t Value>, Option<&'t Value>)> {
    let gone = before.keys().filter(|name| !now.contains_key(*name));
    let all = now.keys().chain(gone);
    all.map(|name| (name.as_str(), before.get(name), now.get(name)))
        .filter(|(_, was, is)| was != is)
}

fn shown(key: &str, value: Option<&Value>) -> String {
    value.map_or_else(|| "(not set)".into(), |value| without_password(key, value).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Config {
        Config::parse("test", text).unwrap()
    }

    fn changes(before: &str, now: &str) -> anyhow::Result<Vec<String>> {
        parse(now).changes_from(&parse(before), &Sources::default())
    }

    #[test]
    fn each_key_that_differs_is_named_with_both_values() {
        let before = "keep-alive = \"75s\"\n[[site]]\nroot = \"/a\"\n";
        assert!(changes(before, before).unwrap().is_empty());
        let now = "keep-alive = \"5s\"\n[[site]]\nroot = \"/b\"\nlisting = true\n[[site]]\nroot = \"/c\"\nnames = [\"c.example\"]\n";
        let all = changes(before, now).unwrap();
        assert!(all[0].starts_with("keep-alive: ") && all[0].contains("->"), "{all:?}");
        assert!(all.contains(&"site[0].root: \"/a\" -> \"/b\"".to_owned()), "{all:?}");
        assert!(all.contains(&"site[0].listing: false -> true".to_owned()), "{all:?}");
        assert!(all.contains(&"site[1]: new [\"c.example\"]".to_owned()), "{all:?}");
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn what_is_made_at_the_start_is_refused() {
        for now in ["workers = 2", "listen = [\"127.0.0.1:1\"]", "mechanism = \"poll\""] {
            let message = changes("", now).unwrap_err().to_string();
            let key = now.split(' ').next().unwrap();
            assert!(message.contains(key) && message.contains("restart"), "{message}");
        }
        let guestbook = "[[site]]\nguestbook = \"/g\"\n";
        assert!(changes(guestbook, guestbook).unwrap().is_empty());
        let message = changes(guestbook, "[[site]]\nguestbook = \"/h\"\n").unwrap_err().to_string();
        assert!(message.contains("site[0].guestbook"), "{message}");
    }
}
