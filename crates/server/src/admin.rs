//! The control socket: the requests of an operator to a running server, and the server's answers.
//!
//! The control socket is a UNIX socket (`--control PATH`) that only its owner may open (mode 0600).
//! A client sends requests, each as a line of JSON ([`ControlRequest`]). The answer to each request is
//! lines of JSON ([`ControlEvent`]), of which the last is `end` or `error`:
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
//! Texts from requests and responses are bytes and need not be UTF-8: each byte is one character,
//! U+0000 to U+00FF ([`text_of`], [`bytes_of`]).
//!
//! One thread accepts clients, and each client has its own thread, so that clients do not delay a
//! worker. The store is read some hundred URLs at a time, and results are not accumulated, so a
//! client that does not read its results delays only itself.

mod answer;
mod protocol;
mod socket;
mod stores;
mod tasks;
pub mod web;

pub use protocol::{
    CacheEntry, ControlEvent, ControlRequest, ErrorKind, REQUEST_MAX, Response, Tier, What,
    bytes_of, text_of,
};
pub(crate) use socket::Operator;
pub(crate) use stores::{SharedStores, Stores};
pub(crate) use tasks::{OperatorTask, PendingTask, Tasks};
