//! The guestbook on a Redis server: the list `guestbook_remarks` and the counter `visitor_count`,
//! the keys of ZeroHTTPd.
//!
//! [`Session`] is one connection's protocol without I/O. Who owns the connection sends what it has
//! to send, gives it what came, and takes its answers; whether a connection is made for each
//! request, kept, or one of a pool is his decision.

mod command;
mod reply;
mod scanner;
mod session;
mod url;

pub use session::Session;
pub use url::{Address, Url, UrlError};
