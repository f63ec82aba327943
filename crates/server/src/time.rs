//! The time: a clock that is read once per wait, and the wheel of all timers.

pub(crate) mod clock;
pub(crate) mod timers;
