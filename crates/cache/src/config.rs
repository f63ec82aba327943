//! The settings of a store, and its fixed limits.

use std::sync::Arc;

/// The maximum number of stored variants per URL. A further variant replaces the oldest one.
pub const VARIANTS_MAX: usize = 16;
/// The maximum number of requests that wait for one fetch. Further requests are forwarded
/// themselves.
pub const WAITERS_MAX: usize = 65_536;
/// The maximum size in bytes of a stored field section.
pub const FIELDS_MAX: usize = 64 << 10;
/// The maximum length in bytes of a key. Responses with a longer key are not stored.
pub const KEY_MAX: usize = 16 << 10;

/// The settings of a store.
///
/// ```
/// use pollux_cache::{Config, Store};
///
/// // 256 MiB of memory; serve stale responses for up to a day if the origin fails.
/// let config = Config { limit_bytes: 256 << 20, stale_if_error_s: 86_400, ..Config::default() };
/// assert_eq!(Store::new(config).max_object(), 4 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// The memory for everything that is stored, metadata included, in bytes.
    pub limit_bytes: u64,
    /// The maximum length of stored content, in bytes. A small store may accept less, namely an
    /// eighth of a shard: an eighth of a `limit_bytes` below 32 MiB, at least 4 MiB from there on, and
    /// 1/128 of the limit from 512 MiB on ([`Store::max_object`](crate::Store::max_object)).
    pub max_object_bytes: u64,
    /// The name of this cache in `Cache-Status`, a token (RFC 9211 §2).
    pub name: Arc<str>,
    /// Whether `Cache-Status` contains the key (RFC 9211 §2.7).
    pub reports_key: bool,
    /// The targeted cache-control fields that this cache obeys, the most specific first (RFC 9213
    /// §2.2).
    pub targeted_fields: Vec<Box<str>>,
    /// Request fields, in lower case, whose values the proxy changes before it forwards a request.
    /// The cache does not know the value that the origin sees. A response that varies by one of
    /// them therefore matches no other request, as with `Vary: *`.
    pub rewritten_fields: Vec<Box<str>>,
    /// Request fields, in lower case, by which every response varies, whatever its `Vary` says: the
    /// proxy forwards them, and an origin may take another host or scheme from them.
    pub implied_vary: Vec<Box<str>>,
    /// The response fields whose members are tags to purge by.
    pub tag_fields: Vec<Box<str>>,
    /// The lifetime in seconds of responses that state none and whose status is cacheable by
    /// heuristics, other than 200, 203 and 206 (negative caching). 0 disables it.
    pub negative_lifetime_s: u32,
    /// The maximum heuristic lifetime, in seconds (RFC 9111 §4.2.2).
    pub heuristic_max_s: u32,
    /// Seconds during which a stale response is served if the origin fails, for responses that do
    /// not state it themselves (RFC 5861 §4).
    pub stale_if_error_s: u32,
    /// Whether `Cache-Control` in requests is obeyed, which RFC 9111 §5.2.1 leaves to the cache.
    /// `no-store` and `only-if-cached` are always obeyed.
    pub honors_client_directives: bool,
    /// Whether responses with `Set-Cookie` are stored without `public`, and their cookies sent to
    /// all clients. RFC 9111 §7.3 permits it, but a cookie usually belongs to one client.
    pub cache_set_cookie: bool,
    /// Seconds after which requests stop waiting for a fetch of another request that has not ended.
    /// The next request starts a new fetch.
    pub coalescing_timeout_s: u32,
    /// The maximum back-off time in seconds: during the back-off a failing origin receives no request
    /// while a stale response can be served instead. The back-off starts at one second and doubles with
    /// each failure.
    pub back_off_max_s: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit_bytes: 64 << 20,
            max_object_bytes: 8 << 20,
            name: "Pollux".into(),
            reports_key: false,
            targeted_fields: vec!["pollux-cache-control".into(), "cdn-cache-control".into()],
            rewritten_fields: ["client-cert", "forwarded", "x-forwarded-for", "via", "te"]
                .map(Into::into)
                .into(),
            implied_vary: Vec::new(),
            tag_fields: vec!["surrogate-key".into(), "cache-tag".into(), "xkey".into()],
            negative_lifetime_s: 0,
            heuristic_max_s: 86_400,
            stale_if_error_s: 0,
            honors_client_directives: true,
            cache_set_cookie: false,
            coalescing_timeout_s: 60,
            back_off_max_s: 30,
        }
    }
}
