//! Performs one iteration for a client: bytes are received, the service answers, the response is sent.

use super::*;

/// The value of [`Slot::armed_at`](table::Slot::armed_at) with which [`Engine::rearm`] sets a new deadline.
const ARM_ANEW: u16 = u16::MAX;

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Receives and answers until the socket is drained, or until other connections must be served.
    #[inline]
    pub(super) fn receive(&mut self, fd: RawFd) {
        for _ in 0..READS_PER_EVENT {
            let Some(slot) = self.table.get_mut(fd) else { return };
            let is_first = slot.armed_at == 0;
            let Some(transport) = slot.transport() else { return };
            let outcome = transport.receive(&mut self.input);
            // No mechanism reports input that is in the transport's buffer and no longer in the socket.
            let room = self.input.len();
            let has_more =
                outcome.as_ref().is_ok_and(|count| transport.may_have_more(*count, room));
            let is_held = has_more && transport.keeps_input();
            if is_first && transport.has_just_shaken_hands() {
                // The timeout was that of the handshake; the first request gets one of its own.
                slot.armed_at = ARM_ANEW;
            }
            let received = match outcome {
                Ok(0) => return self.end_of_input(fd),
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    slot.marks -= Marks::INPUT_WAITS;
                    return if is_first { self.await_first(fd) } else { self.rearm(fd) };
                }
                // Others are served first, for example because handshakes have used up their time.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
                Err(_) => return self.close(fd),
            };
            // Common case: one comparison. A level-triggered mechanism reports unread input again.
            let may_have_more = slot.marks.intersects(Marks::INPUT_ENDS | Marks::INPUT_WAITS)
                && (self.is_edge || slot.marks.contains(Marks::INPUT_ENDS));
            let is_drained = !has_more && !may_have_more;
            slot.marks.set(Marks::INPUT_WAITS, !is_drained);
            if !self.iterate(fd, |iteration, rules, adapter, input| {
                iteration.receive(rules, adapter, &input[..received]);
            }) {
                return;
            }
            if is_drained || !self.is_edge && !is_held {
                return self.rearm(fd);
            }
        }
        self.requeue(fd);
        self.rearm(fd);
    }

    /// Waits for the first request, or for what its handshake needs: input, or room in the socket.
    #[cold]
    fn await_first(&mut self, fd: RawFd) {
        if self.awaits_room(fd) {
            self.wait_to_write(fd);
        } else {
            self.rearm(fd);
        }
    }

    /// Continues a handshake that has waited for room in the socket.
    #[cold]
    pub(super) fn on_room(&mut self, fd: RawFd) {
        if self.awaits_room(fd) {
            self.wait_to_read(fd);
            self.receive(fd);
        }
    }

    fn awaits_room(&mut self, fd: RawFd) -> bool {
        let transport = self.table.get_mut(fd).and_then(|slot| slot.transport());
        transport.is_some_and(|transport| transport.awaits_room())
    }

    /// Reads while a response is pending. The input is buffered up to a maximum, so that the end of the
    /// stream is noticed.
    #[cold]
    pub(super) fn receive_meanwhile(&mut self, fd: RawFd) {
        let Some(client) = self.client(fd) else { return };
        if client.takes_input() {
            self.receive(fd);
        } else {
            self.disable_read(fd);
        }
    }

    #[cold]
    pub(super) fn end_of_input(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        slot.marks -= Marks::INPUT_WAITS;
        let Some(client) = slot.client() else { return };
        let is_first = !client.has_ended();
        client.end_of_input();
        if client.need() == Need::Service {
            self.disable_read(fd);
            if is_first {
                self.wake(fd, Event::ClientEnded);
            }
        } else {
            self.rearm(fd);
        }
    }

    /// Calls the service for an exchange that waits.
    pub(super) fn wake(&mut self, fd: RawFd, event: Event<'_>) {
        let may_receive = self.iterate(fd, |iteration, rules, adapter, _| {
            iteration.resume(rules, adapter, |adapter, terms, exchange, outbox| {
                adapter.wake(terms, exchange, event, outbox)
            });
        });
        if may_receive {
            self.rearm(fd);
        }
    }

    /// Performs one iteration of a connection: calls `act`, then sends the output. Returns whether the
    /// connection may receive more; if not, this function has already done everything necessary.
    #[inline]
    pub(super) fn iterate(
        &mut self,
        fd: RawFd,
        act: impl FnOnce(&mut Iteration<'_, A::Exchange>, &Rules, &mut Adapter<'_, A>, &[u8]),
    ) -> bool {
        let Some(slot) = self.table.get_mut(fd) else { return false };
        let client = ClientId { fd, generation: slot.generation() };
        let Some((transport, Peer::Client(connection))) = slot.parts() else { return false };
        self.worker.begin_iteration();
        let mut adapter = Adapter {
            service: &mut self.service,
            rules: &self.rules,
            worker: &mut self.worker,
            reactor: &mut self.reactor,
            client,
            socket: Some(transport.as_fd()),
        };
        let mut iteration = connection.iteration(&mut self.outbox);
        act(&mut iteration, &self.rules, &mut adapter, &self.input);
        let output = iteration.output();
        if !output.is_empty() {
            if self.discipline == Discipline::PerState {
                drop(iteration);
                self.wait_to_write(fd);
                return false;
            }
            let (outcome, sent) = transmit(transport, output, self.large_file);
            self.worker.counters.add(Counter::BytesSent, sent);
            match outcome {
                Ok(SendOutcome::All) => {}
                outcome => {
                    drop(iteration);
                    self.send_rest_later(fd, outcome);
                    return false;
                }
            }
        }
        drop(iteration);
        // `connection` still belongs to the slot from above: a table lookup for each step would cost more
        // than most steps do.
        match connection.need() {
            Need::Receive(_) => true,
            need => self.do_what_is_needed(fd, need),
        }
    }

    /// Continues after an iteration whose output was sent. Like [`Engine::iterate`], returns whether the
    /// connection may receive more.
    #[cold]
    pub(super) fn do_what_is_needed(&mut self, fd: RawFd, need: Need) -> bool {
        let Some(client) = self.table.get_mut(fd).and_then(|slot| slot.client()) else {
            return false;
        };
        if need == Need::Service {
            let has_room = client.iteration(&mut self.outbox).takes_owed_room();
            if has_room {
                self.wake(fd, Event::Room);
                return false;
            }
            if client.takes_input() {
                return true;
            }
            self.disable_read(fd);
        }
        self.rearm(fd);
        false
    }

    /// Arranges that unsent output is sent later.
    #[cold]
    pub(super) fn send_rest_later(&mut self, fd: RawFd, outcome: io::Result<SendOutcome>) {
        match outcome {
            Err(_) => self.close(fd),
            // With per-state interest a connection writes only when the mechanism reports it
            // writable.
            Ok(SendOutcome::Paused) if self.discipline == Discipline::Eager => {
                self.requeue(fd);
                self.rearm(fd);
            }
            Ok(_) => self.wait_to_write(fd),
        }
    }

    /// Sends stored output. When all of it was sent, continues with the input.
    #[cold]
    pub(super) fn send_parked(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let Some((transport, Peer::Client(connection))) = slot.parts() else { return };
        let mut iteration = connection.iteration(&mut self.outbox);
        let (outcome, sent) = transmit(transport, iteration.output(), self.large_file);
        self.worker.counters.add(Counter::BytesSent, sent);
        let has_progressed = iteration.record_sent(sent, SEND_PROGRESS_BYTES);
        let has_room = iteration.takes_owed_room();
        drop(iteration);
        if !matches!(outcome, Ok(SendOutcome::All)) {
            if has_progressed {
                let deadline = self.worker.clock.after(self.rules.timeouts.send);
                self.arm(fd as u32, deadline);
            }
            self.send_rest_later(fd, outcome);
            if has_room {
                self.wake(fd, Event::Room);
            }
            return;
        }
        if has_room {
            return self.wake(fd, Event::Room);
        }
        // First process the input that was received already, then read the socket.
        if self.iterate(fd, |iteration, rules, adapter, _| iteration.go_on(rules, adapter)) {
            self.requeue_for_input(fd);
            self.rearm(fd);
        }
    }
}
