//! A closed loop: each connection gets its next request when it has its reply.

use super::*;

/// The state of a closed loop: requests begun, and connections missing.
pub(super) struct ClosedLoop {
    /// The number of connections to open, and the earliest time.
    pub(super) missing: usize,
    pub(super) reconnect_ns: u64,
    /// The number of requests begun, the number of those in the measured part, and its maximum.
    pub(super) begun: u64,
    pub(super) begun_measured: u64,
    quota: u64,
}

impl ClosedLoop {
    pub(super) fn new(plan: &Plan, index: usize) -> Self {
        let quota =
            plan.closed_requests.map_or(u64::MAX, |total| plan.part(index, total as usize) as u64);
        Self { missing: 0, reconnect_ns: 0, begun: 0, begun_measured: 0, quota }
    }
}

impl Worker<'_> {
    /// Whether the closed loop may begin one more request.
    #[inline]
    pub(super) fn may_begin(&self, now_ns: u64) -> bool {
        self.closed.begun_measured < self.closed.quota && now_ns < self.end_ns()
    }

    #[inline]
    pub(super) fn begin_closed(&mut self, fd: Option<RawFd>, now_ns: u64) {
        let number = self.lane.global(self.closed.begun);
        self.closed.begun += 1;
        self.closed.begun_measured += u64::from(now_ns >= self.measured_ns);
        self.begin(fd, now_ns, number, now_ns);
    }

    /// Gives every standing connection of a closed loop its first request.
    pub(super) fn fill_closed_loop(&mut self) {
        if self.plan.schedule.is_some() {
            return;
        }
        // Bounded: each iteration takes one connection out of the queue, and a reply can put it back
        // only when its event is read.
        for _ in 0..self.pool.open() {
            let now_ns = self.plan.now_ns();
            if !self.may_begin(now_ns) {
                break;
            }
            let Some(fd) = self.pool.pop_free() else { break };
            self.begin_closed(Some(fd), now_ns);
        }
    }

    /// Records that a closed loop has lost a connection; `at_once` unless it could not even be opened.
    #[inline]
    pub(crate) fn record_lost_connection(&mut self, now_ns: u64, at_once: bool) {
        if self.plan.schedule.is_none() && !self.opening.is_setup {
            self.closed.missing += 1;
            if !at_once {
                self.closed.reconnect_ns = now_ns + RECONNECT_PAUSE_NS;
            }
        }
    }

    /// Opens the missing connections of a closed loop.
    #[inline]
    pub(super) fn reconnect(&mut self, now_ns: u64) {
        if self.closed.missing == 0 || now_ns < self.closed.reconnect_ns {
            return;
        }
        for _ in 0..self.closed.missing.min(MAX_BURST) {
            if !self.may_begin(now_ns) || now_ns < self.closed.reconnect_ns {
                return;
            }
            self.closed.missing -= 1;
            self.begin_closed(None, now_ns);
        }
    }
}
