//! An open loop's arrivals: dispatched at their instants, begun when a connection is available.

use super::*;

/// The arrivals of this thread's lane. Those below `started` were begun or failed; those from `started`
/// to `due` wait for a connection. Two numbers are enough for a queue of any length, because its order
/// is the schedule's.
pub(super) struct ArrivalQueue {
    pub(super) started: u64,
    pub(super) due: u64,
    pub(super) total: u64,
    /// The instant at which arrival `due` must be dispatched; `u64::MAX` after the last.
    pub(super) next_due_ns: u64,
}

impl ArrivalQueue {
    pub(super) fn new(plan: &Plan, lane: Lane) -> Self {
        let total = plan.schedule.as_ref().map_or(0, |schedule| lane.share(schedule.len()));
        Self { started: 0, due: 0, total, next_due_ns: u64::MAX }
    }
}

impl Worker<'_> {
    /// The instant of arrival `index` of this lane; after the last, an instant that is never reached.
    #[inline]
    pub(super) fn arrival_ns(&self, index: u64) -> u64 {
        let Some(schedule) = &self.plan.schedule else { return u64::MAX };
        match schedule.at(self.lane.global(index)) {
            Some(offset_ns) => self.start_ns + offset_ns,
            None => u64::MAX,
        }
    }

    /// Dispatches the requests whose instant is reached, as many as one burst holds.
    #[inline]
    pub(crate) fn dispatch_due(&mut self, mut now_ns: u64) {
        let mut burst = 0;
        while self.arrivals.next_due_ns <= now_ns && burst < MAX_BURST {
            if now_ns > self.end_ns() + GRACE_NS {
                // The schedule ended too long ago: the rest counts as unsent.
                self.arrivals.total = self.arrivals.due;
                self.arrivals.next_due_ns = u64::MAX;
                return;
            }
            let scheduled_ns = self.arrivals.next_due_ns;
            if scheduled_ns >= self.measured_ns {
                self.recorder.lag.saturating_record(now_ns - scheduled_ns);
            }
            self.arrivals.due += 1;
            self.arrivals.next_due_ns = self.arrival_ns(self.arrivals.due);
            self.start_waiting(now_ns);
            burst += 1;
            now_ns = self.plan.now_ns();
        }
    }

    /// Begins the waiting requests as long as connections are available.
    #[inline]
    pub(crate) fn start_waiting(&mut self, now_ns: u64) {
        while self.arrivals.started < self.arrivals.due {
            let free = self.pool.pop_free();
            if free.is_none() && !self.pool.has_room() {
                return;
            }
            let scheduled_ns = self.arrival_ns(self.arrivals.started);
            let number = self.first_number(self.arrivals.started);
            self.arrivals.started += 1;
            self.begin(free, scheduled_ns, number, now_ns);
        }
    }

    /// Fails the waiting requests, if they may not wait. The replies that have arrived were read before, so
    /// no connection is free.
    #[inline]
    pub(super) fn refuse_waiting(&mut self, now_ns: u64) {
        if self.plan.at_limit == AtLimit::Wait {
            return;
        }
        self.start_waiting(now_ns);
        while self.arrivals.started < self.arrivals.due {
            self.fail_waiting(Failure::NoConnection, now_ns);
        }
    }

    /// Fails the request that has waited longest for a connection.
    pub(super) fn fail_waiting(&mut self, kind: Failure, now_ns: u64) {
        let scheduled_ns = self.arrival_ns(self.arrivals.started);
        self.arrivals.started += 1;
        self.record_failure(kind, scheduled_ns, now_ns);
        self.end_session(now_ns, |sessions| &mut sessions.broken);
    }

    /// The number, among all requests of the run, of the first request of arrival `index` of this lane.
    #[inline]
    pub(super) fn first_number(&self, index: u64) -> u64 {
        self.lane.global(index) * self.plan.session.map_or(1, |session| session.requests)
    }
}
