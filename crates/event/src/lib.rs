//! Every way Linux offers to wait for I/O, behind one trait.
//!
//! # Guide
//!
//! A [`Mechanism`] has an *interest set* of file descriptors and reports which of them are ready. Each
//! mechanism is a file under `mechanism/`; [`registry`] lists them once.
//!
//! ```
//! use pollux_event::{Interest, Mechanism, Options, mechanism::epoll::EpollEdge};
//! use std::{io::Write, os::fd::AsFd, os::unix::net::UnixStream, time::Duration};
//!
//! let (mut near, far) = UnixStream::pair()?;
//! let mut set = EpollEdge::open(&Options::default())?;
//! let token = set.add(far.as_fd(), Interest::READ)?;
//! near.write_all(b"x")?;
//! set.wait(Some(Duration::from_secs(1)))?;
//! let event = set.next_event().expect("the far end is readable");
//! assert_eq!(event.token, token);
//! assert!(event.readiness.is_readable());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The mechanism is chosen once, at start ([`registry::with_mechanism`]); the loop that uses it is
//! monomorphised, so that nothing is dispatched dynamically per event.
//!
//! The options of a mechanism are typed ([`OwnOptions`]); a [`MechanismSpec`] is their text form,
//! as on a command line.
//!
//! [`Mechanism`] documents the possible meanings of an event and the duties of a caller; the contract
//! tests quote it. Two complete programs are in `examples/`: `echo`, a server for any mechanism, and
//! `timer_and_waker`.
//!
//! # Choosing a mechanism
//!
//! | your case | mechanism |
//! |---|---|
//! | a server with many quiet connections | [`EpollEdge`], or [`EpollLevel`] if the loop does not drain |
//! | few descriptors, or a portable baseline | [`poll`](mechanism::poll) |
//! | very many interest changes | `epoll-ctlv` or `uring-poll`, which gather them into one call |
//! | events that are to be taken without a system call while they arrive | `uring-poll` |
//! | software written for Solaris | [`devpoll`](mechanism::devpoll), with Pollux' kernel module |
//! | the papers' measurements to repeat | [`signals`](mechanism::signals), `epoll2`, [`select`](mechanism::select) |
//!
//! [`EpollEdge`]: mechanism::epoll::EpollEdge
//! [`EpollLevel`]: mechanism::epoll::EpollLevel
//!
//! # Features
//!
//! `io_uring`, on by default: the mechanisms `epoll-ctlv` and `uring-poll`, and with them the
//! dependency on the crate `io-uring`.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "pollux-event is every way *Linux* offers to wait for I/O and builds for Linux alone; mio waits \
     on other systems"
);

/// The README's example is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod error;
pub mod event;
pub mod mechanism;
pub mod options;
pub mod registration;
pub mod registry;
pub mod waker;

pub use error::Error;
pub use event::{Event, Interest, Readiness, Token};
pub use mechanism::{Capabilities, Description, Mechanism};
pub use options::{MechanismSpec, Options, OwnOptions};
pub use registry::AnyMechanism;
pub use waker::Waker;
