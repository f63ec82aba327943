//! The time: a clock that is read once for each wait, and the wheel of all timers.

pub(crate) mod clock;
pub(crate) mod timers;
