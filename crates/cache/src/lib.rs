//! A shared HTTP cache (RFC 9111) without network I/O: requests and responses in, decisions out.
//!
//! # Guide
//!
//! All workers share one [`Store`]; each worker has its own [`Handle`]. The cache has no clock: the
//! caller passes the current time, in Unix seconds, with every call.
//!
//! ```
//! use pollux_cache::{Lookup, Config, Decision, Store};
//! use pollux_http::{Limits, reply::{RequestInfo, Event, Reader}, request::{self, ParseStatus}};
//!
//! let mut cache = Store::new(Config::default()).handle();
//! let head = b"GET /a HTTP/1.1\r\nHost: example.org\r\n\r\n";
//! let ParseStatus::Complete { request, .. } = request::parse(head, &Limits::DEFAULT)? else { panic!() };
//! let lookup = Lookup { request: &request, site: b"http://", waiter: Some(1), has_waited: false };
//!
//! // Nothing is stored: forward the request, and report its outcome with the ticket.
//! let Decision::Fetch(fetch) = cache.lookup(&lookup, 1000) else { panic!() };
//! // A second request for the same resource waits for that fetch.
//! assert!(matches!(cache.lookup(&Lookup { waiter: Some(2), ..lookup }, 1000), Decision::Wait));
//!
//! let reply = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nhi";
//! let mut reader = Reader::new(Reader::LIMITS);
//! reader.begin(RequestInfo::default());
//! let Event::Head(reply) = reader.read(reply)?.event else { panic!() };
//! let decision = cache.head(fetch.ticket, &request, &reply, 1000, 1001);
//! assert!(decision.should_store);
//! cache.append(fetch.ticket, b"hi");
//! cache.finish(fetch.ticket);
//! assert_eq!(cache.next_wakeup(), Some(2));
//!
//! // The next request is served from the store.
//! let Decision::Serve(hit) = cache.lookup(&lookup, 1010) else { panic!() };
//! let reply = hit.response(&request, 1010);
//! let mut out = Vec::new();
//! reply.put_fields(&mut out);
//! assert!(out.ends_with(b"Age: 10\r\nCache-Status: Pollux; hit; ttl=50\r\n"));
//! assert_eq!((reply.status(), reply.announced_length()), (200, Some(2)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - Every forwarded request has a [`Fetch`], whether its response is cacheable or not. Each fetch
//!   must end in exactly one of these calls: a [`Handle::head`] whose decision stores nothing,
//!   [`Handle::finish`], [`Handle::abort`] or [`Handle::fail`]. If the caller loses a fetch, other
//!   requests stop waiting for it after [`Config::coalescing_timeout_s`].
//! - Content is never copied on its way to a client: [`HitResponse::content`] yields the store's
//!   own memory.
//! - A disk tier ([`Store::with_directory`]) keeps stored responses across restarts.
//! - Where the RFC leaves a choice, the module that makes the choice documents it and its reason.
//! - Partial responses (206) are stored too. A stored part grows when an adjacent part arrives, and
//!   becomes a complete response when it has all bytes (RFC 9111 §3.4). A range request that misses
//!   is forwarded as a range request, because the complete representation may be a thousand times
//!   as long.
//!
//! Section numbers are those of RFC 9111 unless another document is named.

mod batch;
mod browse;
mod cache_status;
mod config;
mod content_range;
mod directives;
mod disk;
mod field_lines;
mod freshen;
mod history;
mod hit;
mod key;
mod lookup;
mod memory_tier;
mod object_builder;
mod part;
mod pending_fetches;
mod purge;
mod receive;
mod record;
mod response_metadata;
mod rules;
mod shard;
mod statistics;
mod store;
mod tags;
mod targeted;
mod vary;

pub use browse::{Entry, StoredResponse, Tier, Walk};
pub use cache_status::{CacheStatus, Forward};
pub use config::{Config, FIELDS_MAX, KEY_MAX, VARIANTS_MAX, WAITERS_MAX};
pub use disk::{Directory, FsDirectory};
pub use hit::{Hit, HitResponse};
pub use key::{from_url as key_from_url, host_of_key, site};
pub use lookup::{Conditions, Decision, Fetch, Lookup, is_condition};
pub use pending_fetches::Ticket;
pub use purge::Purge;
pub use receive::{ResponseDecision, ResponseSource, put_not_modified_fields_of};
pub use record::ContentPieces;
pub use statistics::Statistics;
pub use store::{Handle, Store};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
