//! Hides passwords in values that are shown: other people may see the terminal or read the log.

use pollux_guestbook::redis::Url;
use toml::Value;

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
