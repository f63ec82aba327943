//! Requests as suites, scanners and attackers send them, as data, and a reader of replies that shares
//! no code with the server.
//!
//! Each case is sent with one more request behind it, which shows whether the server is in step:
//! after `kept` it must be answered, after `closed` it must not, whatever the case made of the
//! bytes in between. That is how smuggled requests show.
//!
//! It stands here for the two that are held to it: the server as a library (`tests/suite/conformance` of
//! `pollux-server`), and the program where it forks, which nothing with threads may do
//! (`tests/suite/architectures` of `pollux`).

mod corpus;
mod replies;
mod runner;
mod site;

pub use runner::{Segmentation, check};
pub use site::Site;
