//! The sessions of this thread: think times, the requests that follow them, and how sessions end.

use super::*;
use crate::session::Sessions;

impl Worker<'_> {
    /// The end of the think time on `fd`.
    #[inline]
    fn thought_ns(&mut self, fd: RawFd, think_ns: u64) -> u64 {
        let connection = self.pool.get(fd).expect("a listed descriptor has its connection");
        connection.since_ns.saturating_add(think_ns)
    }

    /// The first instant at which a session continues.
    #[inline]
    pub(super) fn next_thought_ns(&mut self) -> Option<u64> {
        let session = self.plan.session?;
        let fd = self.lists.thinking.first()?;
        Some(self.thought_ns(fd, session.think_ns))
    }

    /// Starts the think time of the session on `fd`, which has its reply. Returns false if the session
    /// is over because its next request would be after the end.
    #[inline]
    pub(crate) fn think(&mut self, fd: RawFd, now_ns: u64) -> bool {
        let Some(session) = self.plan.session else { return false };
        if session.is_cut && now_ns.saturating_add(session.think_ns) >= self.end_ns() {
            self.end_session(now_ns, |sessions| &mut sessions.cut);
            return false;
        }
        let connection = self.pool.get(fd).expect("the caller has found it");
        connection.state = ConnectionState::Thinking;
        connection.since_ns = now_ns;
        self.lists.thinking.push(fd);
        true
    }

    /// Sends the next requests of the sessions whose think time is over, as many as one burst holds.
    #[inline]
    pub(crate) fn continue_sessions(&mut self, mut now_ns: u64) {
        let Some(session) = self.plan.session else { return };
        for _ in 0..MAX_BURST {
            let Some(fd) = self.lists.thinking.first() else { return };
            let scheduled_ns = self.thought_ns(fd, session.think_ns);
            if scheduled_ns > now_ns {
                return;
            }
            self.lists.thinking.remove(fd);
            if scheduled_ns >= self.measured_ns {
                self.recorder.lag.saturating_record(now_ns - scheduled_ns);
                self.followed += 1;
            }
            let connection = self.pool.get(fd).expect("a listed descriptor has its connection");
            let number = connection.number + 1;
            self.begin(Some(fd), scheduled_ns, number, now_ns);
            now_ns = self.plan.now_ns();
        }
    }

    /// Counts a session that ended during the measured part.
    #[inline]
    pub(crate) fn end_session(&mut self, now_ns: u64, how: fn(&mut Sessions) -> &mut u64) {
        if self.plan.session.is_some() && now_ns >= self.measured_ns {
            *how(&mut self.recorder.sessions) += 1;
        }
    }
}
