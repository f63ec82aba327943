//! The result of a thread, at the end of its run.

use super::*;
use crate::config::Closing;
use pollux_event::{Event, Readiness};
use std::os::fd::AsFd as _;

impl Worker<'_> {
    pub(super) fn finish(
        mut self,
        now_ns: u64,
        interrupted: bool,
        stop: &AtomicBool,
    ) -> ThreadResult {
        let elapsed_ns = now_ns.saturating_sub(self.measured_ns);
        self.recorder.close_interval(elapsed_ns);
        let cpu =
            self.waiting.cpu_before.map(|before| OwnCpu::now().since(before)).unwrap_or_default();
        // Counted from the schedule itself, not from the requests that were begun.
        let (scheduled, unsent) = match &self.plan.schedule {
            Some(schedule) => {
                let until_ns = if interrupted { now_ns } else { u64::MAX };
                let total = self.lane.share(schedule.len());
                let first = self.first_at(total, self.measured_ns);
                let last = self.first_at(total, until_ns).max(first);
                (last - first + self.followed, last.saturating_sub(self.arrivals.due.max(first)))
            }
            None => (self.closed.begun_measured, 0),
        };
        let recorder = &self.recorder;
        let ended = recorder.completed + recorder.failures.total() + unsent;
        let unfinished = scheduled.saturating_sub(ended);
        self.wait_for_closes(stop);
        for connection in self.pool.drain() {
            if let Some(tls) = &mut self.tls {
                tls.end(connection.socket.as_fd(), self.plan.closing != Closing::Reset);
            }
            let _ = self.set.close(connection.token, connection.socket);
        }
        ThreadResult {
            scheduled,
            unsent,
            unfinished,
            measured_ns: self.measured_ns,
            elapsed_ns,
            cpu,
            spare_ns: self.waiting.spare_ns,
            recorder: self.recorder,
        }
    }

    /// With `--close wait`, waits until the server has closed the connections whose last reply has arrived,
    /// each at most as long as during the run. No figure includes this time.
    fn wait_for_closes(&mut self, stop: &AtomicBool) {
        const ENDS: Readiness =
            Readiness::READ_CLOSED.union(Readiness::HANGUP).union(Readiness::ERROR);
        while self.plan.closing == Closing::Wait
            && self.lists.handshakes.len() > 0
            && !stop.load(Relaxed)
        {
            if self.set.wait(Some(Duration::from_nanos(LONGEST_WAIT_NS))).is_err() {
                return;
            }
            while let Some(Event { token, readiness }) = self.set.next_event() {
                let connection = self.pool.get(token.fd);
                let is_closing =
                    connection.is_some_and(|one| one.state == ConnectionState::Closing);
                if is_closing && readiness.intersects(ENDS) {
                    self.drop_connection(token.fd);
                }
            }
            self.expire(self.plan.now_ns());
        }
    }

    /// The first of the lane's `total` arrivals that is at or after `time_ns`.
    pub(super) fn first_at(&self, total: u64, time_ns: u64) -> u64 {
        let (mut low, mut high) = (0, total);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.arrival_ns(middle) < time_ns {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}
