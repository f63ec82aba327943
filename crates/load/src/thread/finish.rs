//! The result of a thread, at the end of its run.

use super::*;
use crate::config::Closing;
use std::os::fd::AsFd as _;

impl Worker<'_> {
    pub(super) fn finish(mut self, now_ns: u64, interrupted: bool) -> ThreadResult {
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
