//! The mechanisms to which real-time signals tell of descriptors (fcntl(2): F_SETSIG).
//!
//! Both stand on a `signalled_set`: the signals' `queue`, what must be asked about
//! again (`recheck`), and where a signal cannot be relied upon for `writability`.

mod event_rate;
mod handoff;
mod hybrid;
mod latecomers;
mod polling_side;
mod queue;
mod recheck;
mod rtsig;
mod signalled_set;
mod writability;

pub use hybrid::{Hybrid, HybridOptions};
pub use polling_side::Partner;
pub use queue::Dequeue;
pub use rtsig::{Overflow, RtSignals, RtSignalsOptions};
