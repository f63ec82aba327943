//! The messages on the control socket.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The longest request, in bytes of its line.
pub const REQUEST_MAX: u64 = 64 << 10;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// What the cache has: an [`Event::Entry`] for each URL, in no order.
    List {
        /// Only of URLs that begin like this.
        #[serde(default)]
        prefix: String,
        /// So many and no more.
        #[serde(default)]
        limit: Option<u64>,
    },
    /// All that the cache has for a URL: an [`Event::Response`] for each representation.
    Show {
        /// The URL.
        url: String,
    },
    /// Remove from the cache, from memory and disk: [`Event::Purged`].
    Purge {
        /// What.
        what: What,
    },
    /// The cache's counters: [`Event::Statistics`].
    Statistics,
    /// Read the configuration, certificates and logs again: [`Event::Change`] for each key that has
    /// changed.
    Reload,
    /// Start the program anew and leave the service to it: [`Event::Change`] for each thing that was
    /// handed over. Connections to this socket then lead to the new process.
    Upgrade,
}

/// What is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A URL, in all its representations.
    Url(String),
    /// All URLs that begin like this.
    Prefix(String),
    /// All responses with this among the members of `Surrogate-Key`, `Cache-Tag` or `xkey`.
    SurrogateKey(String),
    /// Everything.
    All,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// One URL.
    Entry(Entry),
    /// One representation.
    Response(Response),
    /// So many responses were removed.
    Purged {
        /// From that tier that had more of them.
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
    /// That was all.
    End {
        /// So many events came before.
        count: u64,
    },
    /// It could not be done.
    Error {
        /// Why, for programs.
        kind: ErrorKind,
        /// Why, for people.
        message: String,
    },
}

/// Why something could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// Nothing is stored for the URL.
    NotStored,
    /// The request is none.
    BadRequest,
    /// Too many clients at once.
    Busy,
    /// The server cannot do it, and has changed nothing.
    Rejected,
}

/// Where something is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// In memory alone.
    Memory,
    /// On disk only.
    Disk,
    /// In both.
    Both,
}

/// What is stored for a URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The URL.
    pub url: String,
    /// Representations.
    pub variants: u64,
    /// The status code of the latest one.
    pub status: u16,
    /// Bytes of all variants: in memory, metadata included, or else on disk.
    pub bytes: u64,
    /// The age of the latest one, in seconds.
    pub age: u64,
    /// For how many seconds that is fresh yet; negative when it is stale.
    pub ttl: i64,
    /// Requests that found it in memory since it was stored there.
    pub hits: u64,
    /// Where it is.
    pub tier: Tier,
}

/// A stored response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// Its URL.
    pub url: String,
    /// Where it is.
    pub tier: Tier,
    /// Its status code.
    pub status: u16,
    /// Its fields, in their order.
    pub fields: Vec<(String, String)>,
    /// The fields of requests by which it was chosen, and their values; no value where a request
    /// had none.
    pub vary: Vec<(String, Option<String>)>,
    /// The Unix second at which it came, or was last validated.
    pub came_at: u64,
    /// Its age at that time, in seconds.
    pub initial_age: u64,
    /// Its age, in seconds.
    pub age: u64,
    /// How old it may become and be fresh, in seconds.
    pub lifetime: u64,
    /// That is a guess: it does not say so itself.
    pub is_heuristic: bool,
    /// For how many seconds it is fresh yet; negative when it is stale.
    pub ttl: i64,
    /// It is validated before each use.
    pub no_cache: bool,
    /// A client that takes stale responses does not get it stale.
    pub forbids_stale: bool,
    /// For so many seconds after that it is used while it is refreshed.
    pub stale_while_revalidate: u64,
    /// For so many seconds after that it is used when the origin fails.
    pub stale_if_error: u64,
    /// Bytes of content.
    pub content_length: u64,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Requests that found its URL in memory since it was stored there.
    pub hits: u64,
}

/// Bytes as a text of a character each.
pub fn text_of(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// The bytes that such a text stands for; nothing if it is none.
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
            (r#"{"command":"list"}"#, Request::List { prefix: String::new(), limit: None }),
            (
                r#"{"command":"list","prefix":"http://a/","limit":7}"#,
                Request::List { prefix: "http://a/".into(), limit: Some(7) },
            ),
            (r#"{"command":"show","url":"u"}"#, Request::Show { url: "u".into() }),
            (
                r#"{"command":"purge","what":{"surrogate_key":"k"}}"#,
                Request::Purge { what: What::SurrogateKey("k".into()) },
            ),
            (r#"{"command":"purge","what":"all"}"#, Request::Purge { what: What::All }),
            (r#"{"command":"statistics"}"#, Request::Statistics),
            (r#"{"command":"reload"}"#, Request::Reload),
        ] {
            assert_eq!(serde_json::from_str::<Request>(line).unwrap(), request, "{line}");
            let again = serde_json::to_string(&request).unwrap();
            assert_eq!(serde_json::from_str::<Request>(&again).unwrap(), request, "{again}");
        }
        for line in [
            "",
            "{}",
            r#"{"command":"purge"}"#,
            r#"{"command":"list","prefx":"a"}"#,
            r#"{"command":"purge","what":{"url":"a","prefix":"b"}}"#,
        ] {
            assert!(serde_json::from_str::<Request>(line).is_err(), "{line}");
        }
    }
}
