//! The conformance corpus: requests as test suites, scanners and attackers send them, stored as data,
//! and a reader of replies that shares no code with the server.
//!
//! One more request follows each case. It shows whether the server still finds the boundary between
//! requests: after a case with the outcome `open` the server must answer that request, after `closed`
//! it must not, however the server has interpreted the bytes of the case. This detects request
//! smuggling.
//!
//! The corpus is in this crate because two test programs use it: the tests of the server as a library
//! (`tests/suite/conformance` of `pollux-server`), and those of the program `pollux` with the
//! architectures that fork, which a process with several threads must not do
//! (`tests/suite/architectures` of `pollux`).

mod case;
mod corpus;
mod replies;
mod runner;
mod site;

pub use runner::{Segmentation, check, check_over_tls};
pub use site::Site;
