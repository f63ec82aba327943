//! The mechanisms that get readiness from real-time signals (fcntl(2): F_SETSIG).
//!
//! Both use a `signalled_set`: the signal `queue`, the descriptors that must be polled again
//! (`rescan`), and `writability` for sockets whose signal is not reliable.
//!
//! # Effects on the process
//!
//! A set takes one real-time signal, the first free one unless the option `signal` names one, and
//! SIGIO, which reports that the queue is full. Both are ignored (SIG_IGN) from then on: also after
//! the set is dropped, because a descriptor that is still open may send them, and in programs that are
//! started later. The thread that opened the set blocks both until the set is dropped. A descriptor that
//! was not removed before that keeps O_ASYNC and its owner (fcntl(2)).
//!
//! # Without a signal
//!
//! The kernel sends no signal in these cases. `rtsig` does not report them, and `hybrid` only while it
//! waits for its partner; use another mechanism for such descriptors.
//!
//! - The other side of a terminal is closed (a pty's master or slave). Data is signalled.
//! - The peer of a UNIX socket shuts down one direction after the other: the end of the stream is
//!   reported, the hang-up that follows is not.
//! - The program itself shuts down a connection (shutdown(2)), for example in another thread. The
//!   shutdown of a listener is signalled.
//! - The set has two descriptors of one open file description: see
//!   [`Capabilities::ONE_OWNER`](crate::Capabilities::ONE_OWNER).

mod event_rate;
mod handoff;
mod hybrid;
mod new_registrations;
mod polling;
mod queue;
mod rescan;
mod rtsig;
mod signalled_set;
mod writability;

pub use hybrid::{Hybrid, HybridOptions};
pub use polling::Partner;
pub use queue::Dequeue;
pub use rtsig::{Overflow, RtSignals, RtSignalsOptions};
