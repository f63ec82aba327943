//! The control socket: the requests of an operator to a running server, and the server's answers.
//!
//! A UNIX socket (`--control PATH`) that its owner alone may open (mode 0600). A client sends
//! requests, a line of JSON each ([`Request`]), and gets lines of JSON for each ([`Event`]), of which the
//! last one is `end` or `error`:
//!
//! ```text
//! → {"command":"list","prefix":"http://example.org/img/","limit":100}
//! ← {"event":"entry","url":"http://example.org/img/a","variants":1,"status":200,…}
//! ← {"event":"end","count":1}
//! → {"command":"purge","what":{"surrogate_key":"article-7"}}
//! ← {"event":"purged","responses":12}
//! ← {"event":"end","count":1}
//! → {"command":"show","url":"http://example.org/none"}
//! ← {"event":"error","kind":"not-stored","message":"http://example.org/none is not stored"}
//! ```
//!
//! Texts that come from requests and replies are bytes and may be no UTF-8: each byte is one character,
//! U+0000 to U+00FF ([`text_of`], [`bytes_of`]).
//!
//! One thread accepts clients, and each client has a thread of its own, so that no worker is
//! delayed by them. The store is read some hundred URLs at a time and results are not accumulated:
//! a client that does not read its results delays only itself.

mod answer;
mod protocol;
mod socket;
mod tasks;
pub mod web;

pub use protocol::{
    Entry, ErrorKind, Event, REQUEST_MAX, Request, Response, Tier, What, bytes_of, text_of,
};
pub(crate) use socket::{Operator, SharedStore};
pub(crate) use tasks::{PendingTask, Task, Tasks};
