//! The guestbook of ZeroHTTPd ("Linux Applications Performance"), without I/O on the network.
//!
//! # Guide
//!
//! A guestbook shows the remarks of its guests and the number of its visitors, and takes further
//! remarks through a form. Here is what that means; who receives the requests and waits for the
//! store is somebody else's work, so that every server architecture drives the same guestbook.
//!
//! 1. [`Template`]: the page, with the paper's variables `$GUEST_REMARKS$` and `$VISITOR_COUNT$`.
//! 2. [`form`]: what a browser posts, to a remark.
//! 3. [`Request`] and [`Answer`]: what a store is asked, and what it says. [`StoreError`] is what
//!    kept it from that, and for how long a client should wait.
//! 4. [`redis`]: the store on a Redis server. A [`redis::Session`] is bytes in, bytes out.
//! 5. [`file`](mod@file): the store in a file of this host, safe for several processes at once.
//!
//! Nothing here trusts a remark: it is escaped where it is shown, not where it is stored, so that
//! what another program has put into the store cannot become markup either.

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
