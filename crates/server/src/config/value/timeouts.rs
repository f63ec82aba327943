//! The time limits of a connection.

use std::time::Duration;

/// The time limits of a connection. All are rounded up to 100 ms, the resolution of the timers.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The time to receive a request's head, from the start of the connection or from the first
    /// byte of the head. The same time applies to each [`RECEIVE_PROGRESS_BYTES`] of the request's
    /// body.
    pub header: Duration,
    /// The time between two requests.
    pub keep_alive: Duration,
    /// The time in which the peer must take each [`SEND_PROGRESS_BYTES`] of a response.
    pub send: Duration,
}

/// A client that sends less than this of a body within the header timeout is too slow.
pub const RECEIVE_PROGRESS_BYTES: u64 = 16 << 10;

/// A client that receives less than this within the send timeout is too slow, and its connection is
/// closed. The slowest client that is served to the end therefore has a rate of
/// `SEND_PROGRESS_BYTES / timeout`: 546 B/s with 30 s. When the timeout expires, the kernel reports
/// how many bytes were taken, so a client that has stopped is noticed after one to two timeouts.
pub const SEND_PROGRESS_BYTES: u64 = 16 << 10;
