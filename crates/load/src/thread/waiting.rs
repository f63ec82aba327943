//! Waiting until the next deadline, and the measurement of the spare time in it.

use super::*;

/// The state of this thread's waiting: how it waits, and how long it has waited.
pub(super) struct WaitState {
    /// Whether the kernel has epoll_pwait2, as far as is known.
    is_precise: bool,
    /// The thread's CPU time at the start of the measured part.
    pub(super) cpu_before: Option<OwnCpu>,
    /// The time since then in which the thread waited without work.
    pub(super) spare_ns: u64,
}

impl Default for WaitState {
    fn default() -> Self {
        Self { is_precise: true, cpu_before: None, spare_ns: 0 }
    }
}

impl Worker<'_> {
    /// Waits for events, at most until the next deadline.
    ///
    /// Waiting without work counts as spare time. When a long wait ends with an event, the time of its
    /// arrival is not known; the CPU time shows that the thread slept. In a short wait, falling asleep
    /// and waking up may take the whole time. So a short wait first checks for events without sleeping,
    /// which costs a system call only when there is no work.
    #[inline]
    pub(super) fn wait(&mut self, now_ns: u64) -> Result<()> {
        let until_ns = self.next_instant_ns(now_ns);
        let begun_ns = self.plan.now_ns();
        let left_ns = until_ns.saturating_sub(begun_ns);
        let is_short = left_ns < SHORT_WAIT_NS;
        if is_short {
            let ready = self.set.wait(Some(Duration::ZERO)).context("looking for replies")?;
            if ready > 0 || left_ns == 0 {
                return Ok(());
            }
        }
        let waited = if self.waiting.is_precise {
            self.set.wait_precisely(Duration::from_nanos(left_ns))
        } else {
            // Whole milliseconds in this wait, and the rest in waits that return at once.
            self.set.wait(Some(Duration::from_millis(left_ns / 1_000_000)))
        };
        match waited {
            Err(error) if self.waiting.is_precise && error.raw_os_error() == Some(libc::ENOSYS) => {
                self.waiting.is_precise = false;
                tracing::warn!(
                    "no epoll_pwait2 here (Linux 5.11 has it): the generator polls during the \
                     last millisecond before each request, which its CPU time shows"
                );
            }
            waited => {
                let ready = waited.context("waiting for replies")?;
                if is_short || ready == 0 {
                    self.waiting.spare_ns += self.plan.now_ns() - begun_ns;
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn next_instant_ns(&mut self, now_ns: u64) -> u64 {
        if !self.lists.unread.is_empty() {
            return now_ns;
        }
        let mut until_ns = self.arrivals.next_due_ns.min(now_ns + LONGEST_WAIT_NS);
        if let Some((_, deadline_ns)) = self.next_reply_due() {
            until_ns = until_ns.min(deadline_ns);
        }
        if let Some(fd) = self.lists.handshakes.first() {
            until_ns = until_ns.min(self.handshake_deadline_ns(fd));
        }
        if self.arrivals.started < self.arrivals.due {
            if self.plan.at_limit == AtLimit::Fail {
                return now_ns;
            }
            let deadline_ns =
                self.arrival_ns(self.arrivals.started).saturating_add(self.plan.timeout_ns);
            until_ns = until_ns.min(deadline_ns);
        }
        if let Some(thought_ns) = self.next_thought_ns() {
            until_ns = until_ns.min(thought_ns);
        }
        // At the end connections stay missing, and the instant to open them is past.
        if self.closed.missing > 0 && self.may_begin(now_ns) {
            until_ns = until_ns.min(self.closed.reconnect_ns);
        }
        if self.plan.schedule.is_none() && self.end_ns() > now_ns {
            until_ns = until_ns.min(self.end_ns());
        }
        until_ns
    }
}
