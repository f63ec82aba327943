//! Prints the replies of a server as text for people.

use pollux_server::admin::{CacheEntry, ControlEvent, Response, Tier, bytes_of};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// The counters in the order of the output: name and meaning.
const COUNTERS: [(&str, &str); 23] = [
    ("hits", "answered from the store, fresh"),
    ("stale_hits", "answered from the store though stale"),
    ("stale_if_error", "answered from the store because the origin failed"),
    ("misses", "forwarded: nothing was stored"),
    ("validations", "forwarded to be validated"),
    ("revalidated", "of these, found unchanged (304)"),
    ("refreshes", "fetched in the background"),
    ("bypasses", "forwarded without the cache"),
    ("collapsed", "waited for the fetch of another request"),
    ("only_if_cached", "answered 504: only-if-cached, and nothing was stored"),
    ("fetching", "fetches in progress"),
    ("failures", "fetches that failed"),
    ("stored", "responses stored"),
    ("not_stored", "responses to GET not stored"),
    ("loaded", "responses loaded from disk"),
    ("evicted", "URLs removed to make room"),
    ("invalidated", "responses removed because of an unsafe method"),
    ("purged", "responses purged"),
    ("entries", "URLs in memory"),
    ("bytes", "bytes of these URLs, metadata included"),
    ("disk_files", "files on disk"),
    ("disk_bytes", "bytes of these files"),
    ("disk_failures", "files that could not be read or written"),
];

/// Prints `event`, after `shown` other events were printed.
pub(super) fn put(event: &ControlEvent, shown: u64, out: &mut impl Write) -> io::Result<()> {
    match event {
        ControlEvent::Entry(entry) => {
            if shown == 0 {
                writeln!(
                    out,
                    "{:>8} {:>8} {:>8} {:>4} {:>8} TIER   URL",
                    "AGE", "LEFT", "HITS", "VAR", "SIZE"
                )?;
            }
            put_entry(entry, out)
        }
        ControlEvent::Response(response) => {
            if shown > 0 {
                writeln!(out)?;
            }
            put_response(response, out)
        }
        ControlEvent::Purged { responses: 1 } => writeln!(out, "1 response purged"),
        ControlEvent::Purged { responses } => writeln!(out, "{responses} responses purged"),
        ControlEvent::Statistics { counters } => put_counters(counters, out),
        // Only `pollux ctl` prints this event.
        ControlEvent::Change { .. } => Ok(()),
        ControlEvent::End { .. } | ControlEvent::Error { .. } => Ok(()),
    }
}

fn put_entry(entry: &CacheEntry, out: &mut impl Write) -> io::Result<()> {
    let CacheEntry { url, variants, bytes, age, ttl, hits, tier, .. } = entry;
    let (age, left, size) = (span(*age as i64), span(*ttl), size(*bytes));
    let (tier, url) = (name(*tier), printable(url));
    writeln!(out, "{age:>8} {left:>8} {hits:>8} {variants:>4} {size:>8} {tier:<6} {url}")
}

fn put_response(response: &Response, out: &mut impl Write) -> io::Result<()> {
    let Response { status, age, lifetime, ttl, initial_age, .. } = response;
    writeln!(out, "{}", printable(&response.url))?;
    writeln!(out, "  status {status}, {} bytes of content", response.content_length)?;
    let hits = response.hits;
    let (tier, takes) = (name(response.tier), size(response.bytes));
    writeln!(out, "  in {tier}, takes {takes}, its URL was found by {hits} requests")?;
    let guess =
        if response.is_heuristic { " (heuristic: the response has no lifetime)" } else { "" };
    writeln!(out, "  fresh up to an age of {}{guess}", span(*lifetime as i64))?;
    let since = age - initial_age;
    let left = if *ttl > 0 { "fresh for" } else { "stale since" };
    writeln!(
        out,
        "  age {} = {} when received + {} stored here: {left} {}",
        span(*age as i64),
        span(*initial_age as i64),
        span(since as i64),
        span(ttl.abs())
    )?;
    if response.no_cache {
        writeln!(out, "  validated before each use")?;
    }
    if response.forbids_stale {
        writeln!(out, "  not used stale, even if a client sends max-stale")?;
    }
    for (seconds, when) in [
        (response.stale_while_revalidate, "while it is refreshed"),
        (response.stale_if_error, "when the origin fails"),
    ] {
        if seconds > 0 {
            writeln!(out, "  used stale for {} {when}", span(seconds as i64))?;
        }
    }
    for (field, value) in &response.vary {
        match value {
            Some(value) => {
                writeln!(out, "  for {}: {}", printable(field), printable(value))?;
            }
            None => writeln!(out, "  for requests without {}", printable(field))?,
        }
    }
    for (field, value) in &response.fields {
        writeln!(out, "    {}: {}", printable(field), printable(value))?;
    }
    Ok(())
}

fn put_counters(counters: &BTreeMap<String, u64>, out: &mut impl Write) -> io::Result<()> {
    let known =
        COUNTERS.iter().filter_map(|(name, what)| Some((*name, *counters.get(*name)?, *what)));
    let is_known = |name: &str| COUNTERS.iter().any(|(known, _)| *known == name);
    // A server of a newer version may have counters that this program does not know.
    let others = counters.iter().filter(|(name, _)| !is_known(name));
    let others = others.map(|(name, value)| (name.as_str(), *value, ""));
    for (name, value, what) in known.chain(others) {
        writeln!(out, "{}", format!("{name:<16} {value:>14}  {what}").trim_end())?;
    }
    Ok(())
}

const fn name(tier: Tier) -> &'static str {
    match tier {
        Tier::Memory => "memory",
        Tier::Disk => "disk",
        Tier::Both => "both",
    }
}

/// Formats seconds in the two largest units.
fn span(seconds: i64) -> String {
    let sign = if seconds < 0 { "-" } else { "" };
    let all = seconds.unsigned_abs();
    let (days, hours, minutes, rest) = (all / 86400, all / 3600 % 24, all / 60 % 60, all % 60);
    let text = match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest}s"),
        (0, 0, _) => format!("{minutes}m{rest:02}s"),
        (0, ..) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    };
    format!("{sign}{text}")
}

/// Formats a number of bytes with two or three significant digits.
fn size(bytes: u64) -> String {
    let units = ["", "K", "M", "G", "T"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match (unit, value < 10.0) {
        (0, _) => bytes.to_string(),
        (_, true) => format!("{value:.1}{}", units[unit]),
        (_, false) => format!("{value:.0}{}", units[unit]),
    }
}

/// Makes a text safe for a terminal: control characters and invalid UTF-8 are escaped.
pub(super) fn printable(text: &str) -> String {
    // Text that the server has generated itself is not encoded.
    let bytes = bytes_of(text).unwrap_or_else(|| text.as_bytes().to_vec());
    let mut printable = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() {
                printable.extend(character.escape_default());
            } else {
                printable.push(character);
            }
        }
        chunk.invalid().iter().for_each(|byte| printable.push_str(&format!("\\x{byte:02x}")));
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_server::admin::text_of;

    #[test]
    fn spans_and_sizes_are_short() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (-75, "-1m15s"),
            (3661, "1h01m"),
            (90_000, "1d01h"),
            (i64::MAX, "106751991167300d15h"),
        ] {
            assert_eq!(span(seconds), text);
        }
        for (bytes, text) in [
            (0, "0"),
            (999, "999"),
            (1024, "1.0K"),
            (1000, "1.0K"),
            (150_000, "146K"),
            (5 << 30, "5.0G"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn nothing_that_is_stored_writes_on_the_terminal_by_itself() {
        assert_eq!(printable(&text_of("http://a/ä".as_bytes())), "http://a/ä");
        assert_eq!(printable(&text_of(b"a\x1b[2J\xff\r")), "a\\u{1b}[2J\\xff\\r");
    }

    /// Returns the output for these events of a server.
    fn printed(events: &[&str]) -> String {
        let mut out = Vec::new();
        for (shown, line) in events.iter().enumerate() {
            let event = serde_json::from_str(line).expect("an event");
            put(&event, shown as u64, &mut out).expect("a vector takes all");
        }
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn a_list_is_as_reviewed() {
        insta::assert_snapshot!(printed(&[
            r#"{"event":"entry","url":"http://example.org/","variants":2,"status":200,"bytes":1234,
                "age":75,"ttl":3525,"hits":17,"tier":"both"}"#,
            r#"{"event":"entry","url":"http://example.org/img/a.png","variants":1,"status":404,
                "bytes":524288000,"age":86405,"ttl":-5,"hits":0,"tier":"disk"}"#,
        ]));
    }

    #[test]
    fn a_response_is_as_reviewed() {
        let first = r#"{"event":"response","url":"http://example.org/","tier":"memory","status":200,
            "fields":[["Content-Type","text/html"],["ETag","\"a\""]],
            "vary":[["accept-encoding","br"],["accept-language",null]],
            "came_at":1700000000,"initial_age":5,"age":75,"lifetime":60,"is_heuristic":false,
            "ttl":-15,"no_cache":false,"forbids_stale":true,"stale_while_revalidate":30,
            "stale_if_error":3600,"content_length":1000,"bytes":1234,"hits":17}"#;
        let second = first.replace(
            "false,\n            \"ttl\":-15,\"no_cache\":false",
            "true,\n            \"ttl\":15,\"no_cache\":true",
        );
        assert_ne!(first, second);
        insta::assert_snapshot!(printed(&[first, &second]));
    }

    #[test]
    fn counters_are_as_reviewed_and_all_are_explained() {
        let counters = pollux_cache::Statistics::default();
        let all: BTreeMap<String, u64> =
            counters.iter().zip(1..).map(|((name, _), value)| (name.to_owned(), value)).collect();
        for name in all.keys() {
            assert!(COUNTERS.iter().any(|(known, _)| known == name), "{name} is not explained");
        }
        let event = ControlEvent::Statistics { counters: all };
        let line = serde_json::to_string(&event).expect("JSON");
        insta::assert_snapshot!(printed(&[&line, r#"{"event":"purged","responses":1}"#]));
    }
}
