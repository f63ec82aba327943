//! A Mercure hub without I/O: publish and subscribe over server-sent events
//! (draft-dunglas-mercure), for very many subscribers that are mostly idle.
//!
//! # Guide
//!
//! 1. [`form::parse`] turns the body of a publish request into a [`update::Publication`].
//! 2. [`update::Update`] encodes it, once for all subscribers.
//! 3. [`history::History`] is the log that updates are appended to, bounded by number, bytes and
//!    age. A subscriber owns a position in it, not a queue.
//! 4. [`query::parse`] reads the topics that a subscriber requests, [`token::Verifier`] the topics that
//!    it may read. Both use [`matcher::Matcher`]s, and together they are its [`subscribers::Audience`].
//! 5. [`subscribers::Subscribers`] holds the subscribers of one worker in 32 bytes each, and delivers
//!    new updates to them, a bounded number at a time.
//! 6. [`subscriptions::Registry`] lists the present subscriptions, if the hub has this feature turned
//!    on.
//!
//! [`event_reader::EventReader`] is for the other side: it reads a stream, as a subscriber does.
//!
//! [`dialect::Dialect`] selects the supported revisions of the protocol, [`limits`] contains all
//! bounds, and [`reject::Reject`] is the answer to a request that the hub refuses.

/// The README's example is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod dialect;
pub mod event_reader;
pub mod fields;
pub mod form;
pub mod history;
pub mod limits;
pub mod matcher;
pub mod query;
pub mod rate;
pub mod reject;
pub mod subscribers;
pub mod subscriptions;
pub mod token;
pub mod topic;
pub mod update;
