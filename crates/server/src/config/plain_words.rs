//! Plain words for values of a wrong type. The parser names types of Rust, and does not know which values a key
//! permits; the schema does.

use serde_json::Value;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// The value that `--compress` stands for without one.
pub const COMPRESS_ALONE: &str = "zstd,br,gzip";
/// The value that `--guestbook` stands for without one.
pub const GUESTBOOK_ALONE: &str = "/guestbook";
/// The value that `--hsts` stands for without one.
pub const HSTS_ALONE: &str = "365d";
/// The value that `--request-id` stands for without one.
pub const REQUEST_ID_ALONE: &str = "generate";

/// Keys that need a value although their flags do not, and the value that such a flag stands for.
const VALUES_OF_FLAGS: [(&str, &str); 4] = [
    ("compress", COMPRESS_ALONE),
    ("guestbook", GUESTBOOK_ALONE),
    ("hsts", HSTS_ALONE),
    ("request-id", REQUEST_ID_ALONE),
];

/// Returns the message and the advice for the value at `offset` in `text`, in place of the message of the parser;
/// `None` if that is about something other than the type of a value. `schema` returns the schema of the table to which
/// the line after a text belongs.
pub(super) fn of(
    message: &str,
    text: &str,
    offset: usize,
    schema: impl Fn(&str) -> Value,
) -> Option<(String, Option<String>)> {
    let (found, wanted) = found_and_wanted(message)?;
    let (before, key) = key_at(text, offset)?;
    let schema = schema(before);
    let permitted = resolve(&schema["properties"][key], &schema);
    let expected = in_words(wanted, permitted);
    Some((format!("expected {expected}"), advice(key, found, wanted)))
}

/// Returns the message and the advice for a text without quotes at `offset`; `None` if the message of the parser is
/// about something else.
pub(super) fn of_bare_text(
    message: &str,
    text: &str,
    offset: usize,
) -> Option<(String, Option<String>)> {
    message.strip_prefix("string values must be quoted")?;
    let line = text.get(offset..)?.lines().next().unwrap_or_default();
    let value = line.split(['#', ',', ']']).next().unwrap_or_default().trim();
    Some(match value {
        "" => ("a value is missing".into(), None),
        _ => ("a text must be in quotes".into(), Some(format!("write `\"{value}\"`"))),
    })
}

/// Returns what the message of the parser says: the value that it has found, and what it wanted.
fn found_and_wanted(message: &str) -> Option<(&str, &str)> {
    if message == "wanted string or table" || message.starts_with("unknown variant `") {
        return Some(("", "a name"));
    }
    let rest = message.strip_prefix("invalid type: ");
    rest.or_else(|| message.strip_prefix("invalid value: "))?.rsplit_once(", expected ")
}

/// Returns the text before the key whose value is at `offset`, and the key's name.
fn key_at(text: &str, offset: usize) -> Option<(&str, &str)> {
    let table = DeTable::parse(text).ok()?.into_inner();
    // A table is found at its header.
    let brackets = text.get(offset..)?.bytes().take_while(|byte| *byte == b'[').count();
    let entry = innermost(&table, offset).or_else(|| innermost(&table, offset + brackets))?;
    let name = text.get(entry.start..)?.trim_start_matches(['"', '\'']);
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let end = name.find(|c| !is_part(c)).unwrap_or(name.len());
    Some((text.get(..entry.start)?, &name[..end]))
}

/// Returns the innermost key at this position together with its value.
pub(super) fn innermost(table: &DeTable<'_>, position: usize) -> Option<Range<usize>> {
    table.iter().find_map(|(key, value)| {
        let inner = match value.get_ref() {
            DeValue::Table(table) => innermost(table, position),
            DeValue::Array(items) => items.iter().find_map(|item| match item.get_ref() {
                DeValue::Table(table) => innermost(table, position),
                _ => None,
            }),
            _ => None,
        };
        let entry = key.span().start..value.span().end;
        inner.or_else(|| entry.contains(&position).then_some(entry))
    })
}

/// Returns the schema that stands for `property`: the definition that it refers to, or that of the elements of a list.
fn resolve<'a>(property: &'a Value, whole: &'a Value) -> &'a Value {
    let inner = property.get("items").or_else(|| property["anyOf"].get(0)).unwrap_or(property);
    let name = inner["$ref"].as_str().and_then(|path| path.rsplit('/').next());
    name.map_or(inner, |name| &whole["$defs"][name])
}

/// Returns the kind of value that the parser wanted. `permitted` is the schema of the value.
fn in_words(wanted: &str, permitted: &Value) -> String {
    match wanted {
        "u16" | "u32" | "u64" | "usize" | "a nonzero usize" => {
            let least = permitted["minimum"].as_u64().unwrap_or(0);
            let of_type = (wanted == "u32").then_some(u64::from(u32::MAX));
            match permitted["maximum"].as_u64().or(of_type) {
                Some(most) => format!("a whole number from {least} to {most}"),
                None => format!("a whole number from {least}"),
            }
        }
        "a boolean" => "true or false".into(),
        "a string" | "path string" => "a text in quotes".into(),
        "a sequence" => "a list in brackets".into(),
        "a name" => match &names(permitted)[..] {
            [] => "a text in quotes".into(),
            [one] => one.clone(),
            [others @ .., last] => format!("{} or {last}", others.join(", ")),
        },
        _ if wanted.starts_with("struct ") => "a table".into(),
        _ => wanted.into(),
    }
}

/// Returns the texts that a value can be, in quotes.
fn names(permitted: &Value) -> Vec<String> {
    let of = |value: &Value| value.as_str().map(|name| format!("{name:?}"));
    let variants = permitted["oneOf"].as_array().into_iter().flatten();
    let all = variants.chain([permitted]);
    all.flat_map(|one| {
        let listed = one["enum"].as_array().into_iter().flatten();
        listed.chain(one.get("const")).filter_map(of).collect::<Vec<_>>()
    })
    .collect()
}

/// Returns how to write what was probably meant.
fn advice(key: &str, found: &str, wanted: &str) -> Option<String> {
    let of_flag = VALUES_OF_FLAGS.iter().find(|(name, _)| *name == key);
    match (found, of_flag) {
        ("boolean `true`", Some((_, value))) => {
            Some(format!("`{key} = \"{value}\"` is what the flag stands for without a value"))
        }
        ("boolean `false`", Some(_)) => Some(format!("leave out `{key}`")),
        _ if wanted != "a sequence" => None,
        _ if key == "site" => Some("each site begins with a line [[site]]".into()),
        _ => found.strip_prefix("string ").map(|text| format!("write `{key} = [{text}]`")),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn a_wrong_value_is_answered_with_the_values_that_are_permitted() {
        for (text, words, help) in [
            ("workers = 70000", "expected a whole number from 1 to 1024", ""),
            ("workers = \"2\"", "expected a whole number from 1 to 1024", ""),
            ("workers.x = 2", "expected a whole number from 1 to 1024", ""),
            ("pool = -1", "expected a whole number from 1 to 16384", ""),
            ("backlog = -1", "expected a whole number from 0 to 4294967295", ""),
            ("max-connections = -1", "expected a whole number from 1", ""),
            ("signal-queue = 99999999999999999999", "expected a whole number from 0", ""),
            ("pin = [0, -1]", "expected a whole number from 0", ""),
            ("no-server-header = 1", "expected true or false", ""),
            ("control = true", "expected a text in quotes", ""),
            ("access-log = true", "expected a text in quotes", ""),
            ("keep-alive = true", "expected a time such as \"10s\", or a number of seconds", ""),
            ("interest = 4", "expected \"eager\" or \"per-state\"", ""),
            ("sandbox = \"x\"", "expected \"auto\", \"off\", \"log\" or \"kill\"", ""),
            ("tls = true", "expected \"self-signed\"", ""),
            ("listen = \":80\"", "expected a list in brackets", "write `listen = [\":80\"]`"),
            ("[site]\nroot = \"x\"", "expected a list in brackets", "begins with a line [[site]]"),
            ("hub = 3", "expected a table", ""),
            (
                "[[site]]\nroot = /srv/www # here",
                "a text must be in quotes",
                "write `\"/srv/www\"`",
            ),
            ("listen = [:80]", "a text must be in quotes", "write `\":80\"`"),
            ("keep-alive = 10s", "a text must be in quotes", "write `\"10s\"`"),
            ("[hub]\nslow = true", "expected \"skip\" or \"close\"", ""),
            ("[hub]\nmax-rate = -1", "expected a whole number from 0 to 4294967295", ""),
            ("[[site]]\norigin-connections = 0", "expected a whole number from 1", ""),
            ("[[site]]\nguestbook-shown = -1", "expected a whole number from 1 to 10000", ""),
            ("hsts = true", "expected a time", "`hsts = \"365d\"`"),
            ("[[site]]\nhsts = false", "expected a time", "leave out `hsts`"),
            ("[[site]]\ncompress = true", "expected a text", "`compress = \"zstd,br,gzip\"`"),
            ("request-id = true", "expected a text", "`request-id = \"generate\"`"),
            ("[[site]]\n\"guestbook\" = true", "expected a text", "`guestbook = \"/guestbook\"`"),
        ] {
            let fault = Config::parse("p", text).unwrap_err();
            assert!(fault.message.starts_with(words), "{text:?}: {fault}");
            let found = fault.help.as_deref().unwrap_or_default();
            assert!(
                found.contains(help) && found.is_empty() == help.is_empty(),
                "{text:?}: {fault}"
            );
        }
    }

    /// The values in the advice are those that can be written.
    #[test]
    fn the_values_of_flags_are_values_of_their_keys() {
        for (key, value) in super::VALUES_OF_FLAGS {
            let table = if key == "request-id" { "" } else { "[[site]]\n" };
            Config::parse("p", &format!("{table}{key} = \"{value}\"\n")).unwrap();
        }
    }
}
