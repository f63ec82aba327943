//! The requests on connections in the order in which they time out.

use super::*;

/// The requests on connections, by their scheduled instant.
///
/// All have the same time limit. Arrivals are begun in the order of the schedule, and the follow-up
/// requests of sessions in the order of their instants; but an arrival that waited for a connection is
/// begun after follow-ups that were scheduled later. So each kind has a list of its own, which is
/// always in order.
#[derive(Default)]
pub(crate) struct Replies {
    arrivals: Deadlines,
    follow_ups: Deadlines,
}

impl Replies {
    /// Adds the request on `fd`, which is the first of its connection or follows the schedule.
    #[inline]
    pub(crate) fn push(&mut self, fd: RawFd) {
        self.arrivals.push(fd);
    }

    /// Adds the request on `fd`, which follows another in its session.
    #[inline]
    pub(crate) fn push_follow_up(&mut self, fd: RawFd) {
        self.follow_ups.push(fd);
    }

    /// Removes the request on `fd`, if there is one.
    #[inline]
    pub(crate) fn remove(&mut self, fd: RawFd) {
        self.arrivals.remove(fd);
        self.follow_ups.remove(fd);
    }

    /// The number of requests.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.arrivals.len() + self.follow_ups.len()
    }
}

impl Worker<'_> {
    /// The connection whose request times out next, and the instant.
    #[inline]
    pub(super) fn next_reply_due(&mut self) -> Option<(RawFd, u64)> {
        let arrival = self.lists.replies.arrivals.first();
        let follow_up = self.lists.replies.follow_ups.first();
        let arrival = arrival.map(|fd| (fd, self.reply_deadline_ns(fd)));
        let follow_up = follow_up.map(|fd| (fd, self.reply_deadline_ns(fd)));
        match (arrival, follow_up) {
            (Some(arrival), Some(follow_up)) if follow_up.1 < arrival.1 => Some(follow_up),
            (arrival, follow_up) => arrival.or(follow_up),
        }
    }

    #[inline]
    fn reply_deadline_ns(&mut self, fd: RawFd) -> u64 {
        let connection = self.pool.get(fd).expect("a listed descriptor has its connection");
        let request = connection.request.expect("a connection in these lists has a request");
        request.scheduled_ns.saturating_add(self.plan.timeout_ns)
    }
}
