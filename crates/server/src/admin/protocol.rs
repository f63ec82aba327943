//! The messages on the control socket.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The longest request, in bytes of its line.
pub const REQUEST_MAX: u64 = 64 << 10;

/// A request. Variants without values have braces, because serde otherwise takes any members for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlRequest {
    /// List the content of the caches of all sites: a [`ControlEvent::Entry`] for each URL, in no particular order.
    List {
        /// Only URLs that begin with this.
        #[serde(default)]
        prefix: String,
        /// The maximum number of entries.
        #[serde(default)]
        limit: Option<u64>,
    },
    /// Show everything that is stored for a URL: a [`ControlEvent::Response`] for each representation.
    Show {
        /// The URL.
        url: String,
    },
    /// Remove from the caches of all sites, from memory and disk: [`ControlEvent::Purged`].
    Purge {
        /// The responses to remove.
        what: What,
    },
    /// The counters of all caches, added up: [`ControlEvent::Statistics`].
    Statistics {},
    /// Read the configuration, certificates and logs again: [`ControlEvent::Change`] for each key that has
    /// changed.
    Reload {},
    /// Start the program again and hand the service over to it: [`ControlEvent::Change`] for each kind of
    /// object that was handed over. Connections to this socket then lead to the new process.
    Upgrade {},
}

/// The responses that are removed from the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A URL, in all its representations.
    Url(String),
    /// All URLs that begin with this.
    Prefix(String),
    /// All responses with this among the members of `Surrogate-Key`, `Cache-Tag` or `xkey`.
    SurrogateKey(String),
    /// Everything.
    All,
}

/// One line of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ControlEvent {
    /// One URL.
    Entry(CacheEntry),
    /// One representation.
    Response(Response),
    /// Responses were removed.
    Purged {
        /// The number of responses in the tier that had more of them.
        responses: u64,
    },
    /// The counters, by their names.
    Statistics {
        /// The meaning of each is documented at `pollux_cache::Statistics`.
        counters: BTreeMap<String, u64>,
    },
    /// The value of a key has changed.
    Change {
        /// The key, the former and the present value.
        change: String,
    },
    /// The last line of an answer.
    End {
        /// The number of events before this one.
        count: u64,
    },
    /// The request failed.
    Error {
        /// The reason, for programs.
        kind: ErrorKind,
        /// The reason, for people.
        message: String,
    },
}

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// Nothing is stored for the URL.
    NotStored,
    /// The request is malformed.
    BadRequest,
    /// Too many clients are connected.
    Busy,
    /// The server cannot do this; it has changed nothing.
    Rejected,
}

/// The place where a response is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// In memory only.
    Memory,
    /// On disk only.
    Disk,
    /// In both.
    Both,
}

/// The stored responses for a URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheEntry {
    /// The URL.
    pub url: String,
    /// The number of representations.
    pub variants: u64,
    /// The status code of the latest representation.
    pub status: u16,
    /// The size of all representations in bytes: in memory, with metadata, or else on disk.
    pub bytes: u64,
    /// The age of the latest representation in seconds.
    pub age: u64,
    /// The seconds for which it stays fresh; negative if it is stale.
    pub ttl: i64,
    /// The number of requests that found it in memory since it was stored there.
    pub hits: u64,
    /// The place where it is stored.
    pub tier: Tier,
}

/// A stored response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// Its URL.
    pub url: String,
    /// The place where it is stored.
    pub tier: Tier,
    /// Its status code.
    pub status: u16,
    /// Its fields, in their order.
    pub fields: Vec<(String, String)>,
    /// The fields of a request that selected it, with their values; `None` if the request had no
    /// such field.
    pub vary: Vec<(String, Option<String>)>,
    /// The UNIX second at which it was received or last validated.
    pub came_at: u64,
    /// Its age at that time, in seconds.
    pub initial_age: u64,
    /// Its age, in seconds.
    pub age: u64,
    /// The age in seconds up to which it is fresh.
    pub lifetime: u64,
    /// Whether `lifetime` is a guess, because the response does not state it.
    pub is_heuristic: bool,
    /// The seconds for which it stays fresh; negative if it is stale.
    pub ttl: i64,
    /// Whether it is validated before each use.
    pub no_cache: bool,
    /// Whether it is never served stale, even to a client that accepts stale responses.
    pub forbids_stale: bool,
    /// The seconds after that for which it is used while it is refreshed.
    pub stale_while_revalidate: u64,
    /// The seconds after that for which it is used if the origin fails.
    pub stale_if_error: u64,
    /// The size of its content in bytes.
    pub content_length: u64,
    /// The number of bytes that it occupies.
    pub bytes: u64,
    /// The number of requests that found its URL in memory since it was stored there.
    pub hits: u64,
}

/// Converts bytes to a text with one character for each byte.
pub fn text_of(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// Converts such a text back to bytes; returns `None` if a character stands for no byte.
pub fn bytes_of(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|character| u8::try_from(u32::from(character)).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive() {
        let all: Vec<u8> = (0..=255).collect();
        let json = serde_json::to_string(&text_of(&all)).unwrap();
        let text: String = serde_json::from_str(&json).unwrap();
        assert_eq!(bytes_of(&text), Some(all));
        assert_eq!(bytes_of("€"), None);
    }

    #[test]
    fn requests_are_as_documented() {
        for (line, request) in [
            (r#"{"command":"list"}"#, ControlRequest::List { prefix: String::new(), limit: None }),
            (
                r#"{"command":"list","prefix":"http://a/","limit":7}"#,
                ControlRequest::List { prefix: "http://a/".into(), limit: Some(7) },
            ),
            (r#"{"command":"show","url":"u"}"#, ControlRequest::Show { url: "u".into() }),
            (
                r#"{"command":"purge","what":{"surrogate_key":"k"}}"#,
                ControlRequest::Purge { what: What::SurrogateKey("k".into()) },
            ),
            (r#"{"command":"purge","what":"all"}"#, ControlRequest::Purge { what: What::All }),
            (r#"{"command":"statistics"}"#, ControlRequest::Statistics {}),
            (r#"{"command":"reload"}"#, ControlRequest::Reload {}),
        ] {
            assert_eq!(serde_json::from_str::<ControlRequest>(line).unwrap(), request, "{line}");
            let again = serde_json::to_string(&request).unwrap();
            assert_eq!(serde_json::from_str::<ControlRequest>(&again).unwrap(), request, "{again}");
        }
        for line in [
            "",
            "{}",
            r#"{"command":"purge"}"#,
            r#"{"command":"list","prefx":"a"}"#,
            // Regression: this upgraded the server.
            r#"{"command":"upgrade","only_check":true}"#,
            r#"{"command":"purge","what":{"url":"a","prefix":"b"}}"#,
        ] {
            assert!(serde_json::from_str::<ControlRequest>(line).is_err(), "{line}");
        }
    }
}
