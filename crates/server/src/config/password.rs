//! Hides passwords in values that are shown: other people may see the terminal or read the log. Checks that no file
//! that needs a password is a fallback.

use super::{BasicAuth, Key, SiteSection, validate::Faults};
use pollux_guestbook::redis::Url;
use toml::Value;

impl SiteSection {
    /// Checks that the fallback is not in an area with passwords of its own: it is sent for paths outside of the area.
    pub(super) fn check_password_of_fallback(&self, index: usize, faults: &mut Faults) {
        let key = [Key::Name("site"), Key::Index(index), Key::Name("fallback")];
        let areas = || self.basic_auth.iter().map(|area| &area.value);
        let area = self.fallback.as_deref().and_then(|path| BasicAuth::of_path(areas(), path));
        faults.check(
            area.is_none_or(BasicAuth::is_whole_site),
            &key,
            "this file needs a password, and the fallback is sent without it for paths that need none",
            "use a file outside of the prefixes of `basic-auth` (--basic-auth), or require the password at all paths \
             (`FILE` without a prefix)",
        );
    }
}

/// Returns the value of a key without the login of a Redis server. In a table, this applies to all keys.
pub fn without_password(key: &str, value: &Value) -> Value {
    match value {
        Value::String(text) if key == "store" && text.contains("://") => {
            Value::String(without_login(text))
        }
        Value::Table(table) => Value::Table(
            table.iter().map(|(key, value)| (key.clone(), without_password(key, value))).collect(),
        ),
        other => other.clone(),
    }
}

fn without_login(text: &str) -> String {
    match text.parse::<Url>() {
        // The URL's text has no login.
        Ok(url) if url.user.is_none() && url.password.is_none() => url.to_string(),
        Ok(url) => url.to_string().replacen("://", "://…@", 1),
        Err(_) => "…".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_a_login_is_shown() {
        for (text, shown) in [
            ("redis://:secret@h:7000/1", "redis://…@h:7000/1"),
            ("redis://user:secret@h", "redis://…@h:6379"),
            ("unix:///run/r?password=secret", "unix://…@/run/r"),
            ("redis://:secret@", "…"),
            ("redis://h", "redis://h:6379"),
            ("file:/var/lib/store", "file:/var/lib/store"),
            ("memory", "memory"),
        ] {
            let shown_here = without_password("store", &Value::String(text.into()));
            assert_eq!(shown_here, Value::String(shown.into()), "{text}");
        }
        let hub: Value =
            "store = \"redis://:secret@h\"\nhistory = 5\n".parse::<toml::Table>().unwrap().into();
        let shown = without_password("hub", &hub).to_string();
        assert!(!shown.contains("secret") && shown.contains("history = 5"), "{shown}");
        let other = Value::String("redis://:secret@h".into());
        assert_eq!(without_password("origin", &other), other);
    }
}
