//! The alarm for what a worker's part of a hub must do from time to time: heartbeats, the ends of streams, updates that
//! have become too old.

use crate::{config::HubConfig, reactor::AlarmId};
use std::time::Duration;

/// The time between two checks of a worker with heartbeats, tokens that expire, or many streams that end.
pub(super) const CARE_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum time between two checks of a worker that needs them seldom. With very many workers, an alarm per second in
/// each costs more than an update to few subscribers.
const QUIET_INTERVAL: Duration = Duration::from_secs(30);
/// The least number of checks in the maximum duration of a stream. `MaxLifetime` allows for the time between two checks.
const LIFETIME_CHECKS: u32 = 64;
/// How many streams may reach their maximum duration between two checks that are seldom: they end together.
const ENDS: u128 = 64;

/// An alarm that is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Care {
    pub(super) alarm: AlarmId,
    pub(super) interval: Duration,
}

/// Returns the time between two checks of a worker without tokens that expire.
pub(super) fn interval(config: &HubConfig) -> Duration {
    if !config.heartbeat.is_zero() || config.subscriptions {
        return CARE_INTERVAL;
    }
    let age = config.limits.history_age;
    let least = match config.max_lifetime {
        Duration::ZERO => age,
        lifetime => age.min(lifetime / LIFETIME_CHECKS),
    };
    least.clamp(CARE_INTERVAL, QUIET_INTERVAL)
}

/// Returns whether so many of a worker's streams reach their maximum duration in an interval that they should not end
/// together. They end after a random time between half of the maximum and all of it.
pub(super) fn has_many_ends(config: &HubConfig, streams: usize, interval: Duration) -> bool {
    let half = config.max_lifetime.as_nanos() / 2;
    half > 0 && streams as u128 * interval.as_nanos() / half > ENDS
}
