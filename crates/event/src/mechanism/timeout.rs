//! Timeouts in milliseconds, as some system calls take them.

use std::time::Duration;

/// A timeout for epoll_wait(2) and /dev/poll. It is rounded up, so that a wait below 1 ms does not
/// become a busy loop.
#[inline]
pub(super) fn timeout_ms(timeout: Option<Duration>) -> i32 {
    match timeout {
        None => -1,
        Some(time) => {
            // Calculated with 64 bits, because as_nanos() would divide 128 bits at each wait.
            let ms = u64::from(time.subsec_nanos().div_ceil(1_000_000));
            time.as_secs().saturating_mul(1000).saturating_add(ms).min(i32::MAX as u64) as i32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_below_the_grain_is_not_a_busy_loop() {
        assert_eq!(timeout_ms(None), -1);
        assert_eq!(timeout_ms(Some(Duration::ZERO)), 0);
        assert_eq!(timeout_ms(Some(Duration::from_nanos(1))), 1);
        assert_eq!(timeout_ms(Some(Duration::from_micros(1_001))), 2);
        assert_eq!(timeout_ms(Some(Duration::MAX)), i32::MAX);
    }
}
