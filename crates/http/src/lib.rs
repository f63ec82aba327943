//! Sans-I/O HTTP/1.1 and 1.0: parses requests from bytes and writes responses to bytes.
//!
//! # Guide
//!
//! Nothing in this crate reads, writes, waits or has a clock, and handling a request does not
//! allocate. A server passes the received bytes to [`request::parse`]:
//!
//! ```
//! use pollux_http::{Limits, request::{self, Framing, Method, ParseStatus, Target}};
//!
//! let received = b"GET /a?b=1 HTTP/1.1\r\nHost: example.org\r\n\r\nGET /next";
//! let ParseStatus::Complete { request, len } = request::parse(received, &Limits::DEFAULT)? else {
//!     panic!("the head is complete");
//! };
//! assert_eq!(request.method, Method::Get);
//! assert_eq!(request.target, Target::Path { path: b"/a", query: Some(b"b=1") });
//! assert_eq!(request.framing, Framing::None);
//! assert!(request.keep_alive);
//! assert_eq!(&received[len..], b"GET /next");
//! # Ok::<(), pollux_http::Reject>(())
//! ```
//!
//! - If the head is incomplete, [`request::HeadParser`] continues later without parsing the start
//!   again.
//! - [`body::Decoder`] finds the end of a body.
//! - [`path`] makes the path of the target safe. [`conditional`], [`range`], [`accept`] and
//!   [`accept_encoding`] determine which representation, or which part of it, the client requests.
//! - [`response::Head`] writes the response, with [`multipart`] for several ranges.
//! - [`text`] skips the byte order mark of a text.
//! - [`upgrade`] says which protocols a proxy never switches to.
//! - A client writes its request with a [`request::Writer`]. It reads the reply with a
//!   [`reply::Reader`] if it forwards the reply, or with a [`reply::Decoder`] if it only measures
//!   it.
//!
//! Section numbers are those of RFC 9112 unless another document is named.

pub mod accept;
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
pub mod proxy_protocol;
pub mod range;
pub mod reject;
pub mod reply;
pub mod request;
pub mod response;
pub mod status;
mod syntax;
pub mod text;
pub mod upgrade;

pub use limits::Limits;
pub use reject::Reject;
pub use status::Status;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
