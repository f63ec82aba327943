//! A shared HTTP cache (RFC 9111) without I/O: requests and responses in, decisions out.
//!
//! # Guide
//!
//! A [`Store`] is shared by all workers; each has a [`Handle`]. Time is told with every call, in Unix
//! seconds.
//!
//! ```
//! use pollux_cache::{Ask, Config, Decision, Store};
//! use pollux_http::{Limits, reply::{Asked, Event, Reader}, request::{self, Parsed}};
//!
//! let mut cache = Store::new(Config::default()).handle();
//! let head = b"GET /a HTTP/1.1\r\nHost: example.org\r\n\r\n";
//! let Parsed::Complete { request, .. } = request::parse(head, &Limits::DEFAULT)? else { panic!() };
//! let ask = Ask { request: &request, site: b"http://", waiter: Some(1), has_waited: false };
//!
//! // Nothing is there: the request is sent on, with the ticket to tell its outcome with.
//! let Decision::Fetch(fetch) = cache.lookup(&ask, 1000) else { panic!() };
//! // Who asks for the same meanwhile waits.
//! assert!(matches!(cache.lookup(&Ask { waiter: Some(2), ..ask }, 1000), Decision::Wait));
//!
//! let reply = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nhi";
//! let mut reader = Reader::new(Reader::LIMITS);
//! reader.begin(Asked::default());
//! let Event::Head(reply) = reader.read(reply)?.event else { panic!() };
//! let verdict = cache.head(fetch.ticket, &request, &reply, 1000, 1001);
//! assert!(verdict.keep);
//! cache.append(fetch.ticket, b"hi");
//! cache.finish(fetch.ticket);
//! assert_eq!(cache.next_woken(), Some(2));
//!
//! // From now on the store answers.
//! let Decision::Answer(hit) = cache.lookup(&ask, 1010) else { panic!() };
//! let reply = hit.reply(&request, 1010);
//! let mut out = Vec::new();
//! reply.put_head(&mut out);
//! assert!(out.ends_with(b"Age: 10\r\nContent-Length: 2\r\nCache-Status: Pollux; hit; ttl=50\r\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - Every request that goes on has a [`Fetch`], cacheable or not, and each fetch ends in one of: a
//!   [`Handle::head`] whose verdict keeps nothing, [`Handle::finish`], [`Handle::abort`],
//!   [`Handle::fail`]. One that is lost keeps nobody waiting for longer than [`Config::flight_limit`].
//! - Content is never copied to be sent: [`Reply::content`] yields the store's own memory.
//! - A second tier in a folder ([`Store::with_folder`]) survives a restart.
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
mod facts;
mod flights;
mod gather;
mod hit;
mod key;
mod lookup;
mod notes;
mod part;
mod purge;
mod receive;
mod record;
mod rules;
mod shelf;
mod statistics;
mod store;
mod targeted;
mod vary;

pub use browse::{Entry, Shown, Tier, Walk};
pub use cache_status::{CacheStatus, Forward};
pub use config::{Config, FIELDS_MAX, KEY_MAX, VARIANTS_MAX, WAITERS_MAX};
pub use disk::{Folder, RealFolder};
pub use flights::Ticket;
pub use hit::{Hit, Reply, put_status_line};
pub use key::of_url as key_of_url;
pub use lookup::{Ask, Conditions, Decision, Fetch, is_condition};
pub use purge::Purge;
pub use receive::{Answer, Verdict, put_304_fields};
pub use record::ContentPieces;
pub use statistics::Statistics;
pub use store::{Handle, Store};
