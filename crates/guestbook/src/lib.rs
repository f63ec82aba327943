//! The guestbook of ZeroHTTPd ("Linux Applications Performance"), without network I/O.
//!
//! # Guide
//!
//! A guestbook shows the remarks of its guests and the number of its visitors, and accepts new
//! remarks through a form. This crate implements its logic. Receiving requests and waiting for the
//! store is the server's task, so that every server architecture runs the same guestbook.
//!
//! 1. [`Template`]: the page, with the paper's variables `$GUEST_REMARKS$` and `$VISITOR_COUNT$`.
//! 2. [`form`]: converts a posted form into a remark.
//! 3. [`Request`] and [`Answer`]: requests to a store, and its answers. [`StoreError`] is the reason
//!    why a store did not answer, with the time that a client should wait.
//! 4. [`redis`]: the store on a Redis server. A [`redis::Session`] is bytes in, bytes out.
//! 5. [`file`](mod@file): the store in a local file, which several processes can use at once.
//!
//! Remarks are never trusted. They are escaped when they are shown, not when they are stored, so
//! that a remark from another program cannot become markup either.

/// The README's example is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod error;
mod escape;
pub mod file;
pub mod form;
pub mod limits;
pub mod redis;
mod request;
mod template;

pub use error::StoreError;
pub use request::{Answer, Request};
pub use template::{Template, TemplateError};
