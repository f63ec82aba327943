//! The guestbook on a Redis server, with the keys of ZeroHTTPd: the list `guestbook_remarks` and
//! the counter `visitor_count`.
//!
//! [`Session`] is the protocol of one connection, without I/O. The caller owns the connection: it
//! sends the session's output, passes received bytes to the session, and takes its answers. Whether
//! a connection is made per request, kept open, or pooled is the caller's decision.

mod command;
mod reply;
mod scanner;
mod session;
mod url;

pub use command::put as put_command;
pub use session::Session;
pub use url::{Address, Url, UrlError};
