//! Sans-I/O HTTP/1.1 and 1.0: bytes in, requests out; responses in, bytes out.
//!
//! # Guide
//!
//! Nothing here reads, writes, waits or knows the time; nothing on the way of a request allocates.
//! A server feeds what it received to [`request::parse`]:
//!
//! ```
//! use pollux_http::{Limits, request::{self, Framing, Method, ParseStatus, Target}};
//!
//! let received = b"GET /a?b=1 HTTP/1.1\r\nHost: example.org\r\n\r\nGET /next";
//! let ParseStatus::Complete { request, len } = request::parse(received, &Limits::DEFAULT)? else {
//!     panic!("the head is whole");
//! };
//! assert_eq!(request.method, Method::Get);
//! assert_eq!(request.target, Target::Path { path: b"/a", query: Some(b"b=1") });
//! assert_eq!(request.framing, Framing::None);
//! assert!(request.keep_alive);
//! assert_eq!(&received[len..], b"GET /next");
//! # Ok::<(), pollux_http::Reject>(())
//! ```
//!
//! - Not whole yet? [`request::HeadParser`] waits for the rest without reading the start again.
//! - A body? [`body::Decoder`] finds its end.
//! - What is asked for: [`path`] makes the target's path safe, [`conditional`], [`range`] and
//!   [`accept_encoding`] say which representation of it, or none, is wanted.
//! - The answer: [`response::Head`], with [`multipart`] for several ranges.
//! - A client writes its request with a [`request::Writer`] and reads what comes back with a
//!   [`reply::Reader`], to pass it on, or counts it with a [`reply::Decoder`].
//!
//! Section numbers are those of RFC 9112 where no other document is named.

pub mod accept_encoding;
pub mod body;
pub mod conditional;
pub mod date;
pub mod etag;
pub mod fields;
pub mod host;
pub mod limits;
mod message_framing;
pub mod multipart;
pub mod output;
pub mod path;
pub mod range;
pub mod reject;
pub mod reply;
pub mod request;
pub mod response;
pub mod status;
mod syntax;

pub use limits::Limits;
pub use reject::Reject;
pub use status::Status;
