//! What an operator decides, and the limits that nobody crosses.

use std::sync::Arc;

/// The most representations of one URL that are kept; with one more the oldest goes.
pub const VARIANTS_MAX: usize = 16;
/// The most exchanges that wait for one fetch; further ones ask for themselves.
pub const WAITERS_MAX: usize = 65_536;
/// The longest field section that is kept.
pub const FIELDS_MAX: usize = 64 << 10;
/// The longest key; what has a longer one is not kept.
pub const KEY_MAX: usize = 16 << 10;

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Octets of memory for all that is stored, metadata included.
    pub limit: u64,
    /// The longest content that is stored, in octets. A small store takes less, an eighth of a shard: an eighth
    /// of a `limit` below 32 MiB, at least 4 MiB from there on, 1/128 of it from 512 MiB on
    /// ([`Store::max_object`](crate::Store::max_object)).
    pub max_object: u64,
    /// The name in `Cache-Status`, a token (RFC 9211 §2).
    pub name: Arc<str>,
    /// Whether `Cache-Status` tells the key (RFC 9211 §2.7).
    pub reports_key: bool,
    /// The targeted fields that count here, the first one before the others (RFC 9213 §2.2).
    pub targeted: Vec<Box<str>>,
    /// Fields of requests that reach origins with other values than clients sent: what is known of a
    /// client, and what is about one hop. A response that varies by one of them answers no other
    /// request, as with `Vary: *`, for its value is not known here. In lower case.
    pub rewritten_fields: Vec<Box<str>>,
    /// The fields whose members are keys to purge by.
    pub tag_fields: Vec<Box<str>>,
    /// Seconds for which the statuses that are cacheable by heuristics, other than 200, 203 and 206,
    /// are kept when nothing tells how long; 0 for none (negative caching).
    pub negative: u32,
    /// The longest lifetime that heuristics give, in seconds (RFC 9111 §4.2.2).
    pub heuristic_max: u32,
    /// Seconds for which a stale response may stand in for a failing origin where it does not say
    /// (RFC 5861 §4 for where it does).
    pub stale_if_error: u32,
    /// Whether what clients say in `Cache-Control` counts (RFC 9111 §5.2.1: they are wishes).
    pub honors_client_directives: bool,
    /// Seconds after which a fetch that has not ended is nobody's hope any more: the next request
    /// asks anew.
    pub coalescing_timeout_s: u32,
    /// The longest time, in seconds, for which an origin that fails is not asked while there is
    /// something stale to answer with. The first one is a second; each failure doubles it.
    pub back_off_max: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: 64 << 20,
            max_object: 8 << 20,
            name: "Pollux".into(),
            reports_key: false,
            targeted: vec!["pollux-cache-control".into(), "cdn-cache-control".into()],
            rewritten_fields: ["forwarded", "x-forwarded-for", "via", "te"].map(Into::into).into(),
            tag_fields: vec!["surrogate-key".into(), "cache-tag".into(), "xkey".into()],
            negative: 0,
            heuristic_max: 86_400,
            stale_if_error: 0,
            honors_client_directives: true,
            coalescing_timeout_s: 60,
            back_off_max: 30,
        }
    }
}
