//! All bounds of the hub. Each of them prevents one client from using up a resource that all share.

use std::time::Duration;

/// Bytes of one topic, of one matcher and of an update's id: longer ones are rejected.
pub const TEXT_BYTES: usize = 4096;
/// Bytes of the `type` of an update.
pub const EVENT_TYPE_BYTES: usize = 256;
/// Digits of the `retry` of an update: more would not fit a 64-bit number of milliseconds.
pub const RETRY_DIGITS: usize = 18;
/// Topics of one update in dialect 0: the canonical one, and alternates.
pub const TOPICS_OF_AN_UPDATE: usize = 32;
/// Fields of one form or one query. Forms have seven; the rest is padding.
pub const FIELDS: usize = 1024;
/// Bytes of an access token. Larger ones are rejected before their signature is verified.
pub const TOKEN_BYTES: usize = 16 * 1024;
/// `mercure` authorization details of one token, and topic matchers of each.
pub const TOKEN_DETAILS: usize = 64;
/// Topic matchers of one token, over all of its details.
pub const TOKEN_MATCHERS: usize = 256;
/// Keys of a JWK set.
pub const KEYS: usize = 64;
/// Bytes of the compiled form of one component of a pattern.
pub const COMPONENT_BYTES: usize = 64 * 1024;
/// Variables of a URI template. More would make a match slow, and no real template has more.
pub const TEMPLATE_EXPRESSIONS: usize = 32;
/// Distinct compiled patterns that the subscribers of one hub may have at a time.
pub const PATTERNS: usize = 10_000;
/// The memory of these patterns, in bytes.
pub const PATTERN_BYTES: usize = 256 * 1024 * 1024;
/// Those of them that one client address (or IPv6 network) has brought, and their memory: no client can use up the room of
/// all. Patterns that others brought before cost it nothing.
pub const CLIENT_PATTERNS: usize = 1000;
/// The memory of these patterns, in bytes.
pub const CLIENT_PATTERN_BYTES: usize = 32 * 1024 * 1024;
/// Distinct compiled patterns of the tokens in use. They have room of their own, so that no subscriber can take it from
/// them; there is more of it, because a token often has a pattern of its user alone.
pub const TOKEN_PATTERNS: usize = 100_000;
/// The memory of these patterns, in bytes.
pub const TOKEN_PATTERN_BYTES: usize = 512 * 1024 * 1024;
/// The number of earlier updates that are examined to find the value of the response's `Last-Event-ID`, and the number
/// of updates with the same identifier that are examined to find where a subscriber begins.
pub const BACKWARD_SCAN: usize = 1000;
/// Sequence numbers that a topic set remembers. A subscriber further behind searches the history.
pub const RECENT_UPDATES: usize = 4;

/// Subscriptions in one document of the subscription API. The document names the URL of the next ones.
pub const PAGE_SUBSCRIPTIONS: usize = 1000;
/// Bytes of the payloads in such a document after which it gets no further subscription.
pub const PAGE_BYTES: usize = 1024 * 1024;

/// Bytes of the content of a QUERY request at most. Anybody may send one to a hub that needs no token, so it is less than
/// an update may have.
pub const QUERY_BYTES: usize = 256 * 1024;

/// The bounds that an operator can set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Updates that the history holds.
    pub history_updates: usize,
    /// Bytes that the history holds, framing included.
    pub history_bytes: usize,
    /// How long the history holds an update.
    pub history_age: Duration,
    /// Topic matchers of one subscriber.
    pub matchers: usize,
    /// Bytes of the body of a publish request.
    pub update_bytes: usize,
    /// Updates that one hub accepts in a second; 0 is no limit.
    pub updates_per_second: u32,
    /// Subscribers of one client address; 0 is no limit.
    pub subscribers_per_address: u32,
}

impl Limits {
    /// Bytes of the content of a QUERY request: as many topics as one subscriber may have, a token and an identifier, all
    /// of them with escapes, but not more than [`QUERY_BYTES`].
    #[must_use]
    pub fn query_bytes(&self) -> usize {
        // An escaped byte has three, and no name of a field is longer than the rest.
        let field = 3 * TEXT_BYTES + 32;
        let others = field + 3 * TOKEN_BYTES;
        self.matchers.saturating_mul(field).saturating_add(others).min(QUERY_BYTES)
    }
}

impl Default for Limits {
    /// Bounds for a busy site: 10,000 updates or 64 MiB, for a day.
    fn default() -> Self {
        Self {
            history_updates: 10_000,
            history_bytes: 64 * 1024 * 1024,
            history_age: Duration::from_secs(24 * 3600),
            matchers: 100,
            update_bytes: 1024 * 1024,
            updates_per_second: 0,
            subscribers_per_address: 0,
        }
    }
}
