//! The mechanisms to which real-time signals tell of descriptors (fcntl(2): F_SETSIG).
//!
//! Both stand on a `signalled_set`: the signals' `queue`, what must be asked about
//! again (`rescan`), and where a signal cannot be relied upon for `writability`.

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
