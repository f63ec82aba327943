//! A shared HTTP cache (RFC 9111) without I/O: requests and responses in, decisions out.
//!
//! # Guide
//!
//! A [`Store`] is shared by all workers; each has a [`Handle`]. Time is told with every call, in Unix
//! seconds.
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
//! // Nothing is there: the request is sent on, with the ticket to tell its outcome with.
//! let Decision::Fetch(fetch) = cache.lookup(&lookup, 1000) else { panic!() };
//! // Who asks for the same meanwhile waits.
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
//! // From now on the store answers.
//! let Decision::Serve(hit) = cache.lookup(&lookup, 1010) else { panic!() };
//! let reply = hit.response(&request, 1010);
//! let mut out = Vec::new();
//! reply.put_head(&mut out);
//! assert!(out.ends_with(b"Age: 10\r\nContent-Length: 2\r\nCache-Status: Pollux; hit; ttl=50\r\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - Every request that goes on has a [`Fetch`], cacheable or not, and each fetch ends in one of: a
//!   [`Handle::head`] whose verdict keeps nothing, [`Handle::finish`], [`Handle::abort`],
//!   [`Handle::fail`]. One that is lost keeps nobody waiting for longer than [`Config::coalescing_timeout_s`].
//! - Content is never copied to be sent: [`HitResponse::content`] yields the store's own memory.
//! - A second tier in a folder ([`Store::with_directory`]) survives a restart.
//! - Where the RFC leaves a choice, the module that makes it says which and why.
//! - A part (206) is stored too, grows when the next one touches it, and is a whole when it has all
//!   octets (RFC 9111 §3.4). One that is missed is fetched as it is asked for: the whole may be a
//!   thousand times as long.
//!
//! Section numbers are those of RFC 9111 where no other document is named.

mod browse;
mod cache_status;
mod config;
mod directives;
mod disk;
mod engine;
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
mod statistics;
mod store;
mod targeted;
mod vary;

pub use browse::{Entry, StoredResponse, Tier, Walk};
pub use cache_status::{CacheStatus, Forward};
pub use config::{Config, FIELDS_MAX, KEY_MAX, VARIANTS_MAX, WAITERS_MAX};
pub use disk::{Directory, FsDirectory};
pub use hit::{Hit, HitResponse, put_status_line};
pub use key::from_url as key_from_url;
pub use lookup::{Conditions, Decision, Fetch, Lookup, is_condition};
pub use pending_fetches::Ticket;
pub use purge::Purge;
pub use receive::{ResponseDecision, ResponseSource, put_not_modified_fields_of};
pub use record::ContentPieces;
pub use statistics::Statistics;
pub use store::{Handle, Store};
