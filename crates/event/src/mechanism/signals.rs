//! The mechanisms that get readiness from real-time signals (fcntl(2): F_SETSIG).
//!
//! Both use a `signalled_set`: the signal `queue`, the descriptors that must be polled again
//! (`rescan`), and `writability` for sockets whose signal is not reliable.

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
