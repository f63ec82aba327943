//! Handles the timeouts of connections, and the alarms of services.

use super::*;

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Handles all deadlines that have passed.
    pub(super) fn expire(&mut self) {
        let now = self.worker.clock.tick();
        if self.timers.is_done_until(now) {
            return;
        }
        let mut due = std::mem::take(&mut self.due);
        let nodes = &mut Timers { table: &mut self.table, reactor: &mut self.reactor };
        self.timers.expire(nodes, now, &mut due);
        for node in due.drain(..) {
            if node & timers::ALARM == 0 {
                self.on_timeout(node as RawFd);
            } else if let Some((id, to)) = self.reactor.alarms.take(node & !timers::ALARM) {
                self.deliver(to, Event::Time(id));
            }
        }
        self.due = due;
    }

    #[cold]
    fn on_timeout(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        if let Peer::Preamble(_) = slot.peer {
            return self.close_preamble(fd, Some(Counter::TimedOut));
        }
        match slot.class {
            Class::Linger => return self.close(fd),
            Class::Parked => return self.wake_parked(fd),
            Class::Dial => {
                if let Peer::Upstream(index) = slot.peer
                    && let Some(id) = self.reactor.upstreams.at(index)
                {
                    self.fail_upstream(id, io::ErrorKind::TimedOut.into());
                }
                return;
            }
            _ => {}
        }
        if slot.class == Class::Send && self.has_taken_enough(fd) {
            let deadline = self.worker.clock.after(self.rules.timeouts.send);
            return self.arm(fd as u32, deadline);
        }
        let Some(slot) = self.table.get_mut(fd) else { return };
        self.worker.counters.add(Counter::TimedOut, 1);
        match slot.class {
            Class::KeepAlive | Class::Linger => self.close(fd),
            Class::Send => self.close_slow_reader(fd),
            Class::Header => {
                if self.iterate(fd, |iteration, _, adapter, _| iteration.on_timeout(adapter)) {
                    self.rearm(fd);
                }
            }
            // These classes have no deadline, or were handled above.
            Class::Service
            | Class::Dial
            | Class::Upstream
            | Class::Tunnel
            | Class::Stream
            | Class::Parked => {}
        }
    }

    /// Returns whether the peer has acknowledged [`SEND_PROGRESS_BYTES`] since the last check. Bytes that
    /// the kernel has accepted do not count as progress: the kernel reports a buffer as writable only when
    /// a third of it is free.
    #[cold]
    fn has_taken_enough(&mut self, fd: RawFd) -> bool {
        let Some(slot) = self.table.get_mut(fd) else { return false };
        let Some((transport, Peer::Client(connection))) = slot.parts() else { return false };
        let Ok(unsent) = transport.unacknowledged() else { return false };
        connection.has_taken(unsent, SEND_PROGRESS_BYTES)
    }

    /// Closes a connection whose peer does not read. The kernel may continue to send its buffer, but for
    /// no longer than the send timeout: otherwise the buffer would occupy memory for minutes.
    #[cold]
    fn close_slow_reader(&mut self, fd: RawFd) {
        let timeout = crate::time::clock::TICK * self.rules.timeouts.send;
        if let Some(transport) = self.table.get_mut(fd).and_then(|slot| slot.transport()) {
            transport.limit_unsent_time(timeout);
        }
        self.close(fd);
    }
}
