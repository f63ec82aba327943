//! One client's turn: octets come in, the application answers, what it said leaves.

use super::*;

impl<M: Mechanism, A: Application> Engine<M, A> {
    /// Receives and answers until the socket is drained, or this connection has had its turn.
    #[inline]
    pub(super) fn receive(&mut self, fd: RawFd) {
        for _ in 0..READS_PER_EVENT {
            let Some(slot) = self.table.get_mut(fd) else { return };
            let Some(transport) = slot.transport() else { return };
            let received = match transport.receive(&mut self.input) {
                Ok(0) => return self.end_of_input(fd),
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    slot.marks -= Marks::INPUT_WAITS;
                    return self.settle(fd);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return self.close(fd),
            };
            // One test for nearly all; a level-triggered mechanism tells again of what waits.
            let may_have_more = slot.marks.intersects(Marks::INPUT_ENDS | Marks::INPUT_WAITS)
                && (self.is_edge || slot.marks.contains(Marks::INPUT_ENDS));
            let is_drained = received < self.input.len() && !may_have_more;
            slot.marks.set(Marks::INPUT_WAITS, !is_drained);
            if !self.turn(fd, |round, rules, stage, input| {
                round.receive(rules, stage, &input[..received]);
            }) {
                return;
            }
            if is_drained || !self.is_edge {
                return self.settle(fd);
            }
        }
        self.come_back_to(fd);
        self.settle(fd);
    }

    /// Receives where the application is waited for: what comes is kept, up to a bound, so that the
    /// end of the stream is noticed.
    #[cold]
    pub(super) fn receive_meanwhile(&mut self, fd: RawFd) {
        let Some(client) = self.client(fd) else { return };
        if client.takes_input() {
            self.receive(fd);
        } else {
            self.look_away(fd);
        }
    }

    #[cold]
    pub(super) fn end_of_input(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        slot.marks -= Marks::INPUT_WAITS;
        let Some(client) = slot.client() else { return };
        let is_first = !client.has_ended();
        client.end_of_input();
        if client.need() == Need::Application {
            self.look_away(fd);
            if is_first {
                self.wake(fd, Wake::ClientEnded);
            }
        } else {
            self.settle(fd);
        }
    }

    /// Calls the application for an exchange that waits.
    pub(super) fn wake(&mut self, fd: RawFd, wake: Wake<'_>) {
        let may_receive = self.turn(fd, |round, rules, stage, _| {
            round.resume(rules, stage, |stage, terms, exchange, outbox| {
                stage.wake(terms, exchange, wake, outbox)
            });
        });
        if may_receive {
            self.settle(fd);
        }
    }

    /// One turn of a connection: `act`, then what is to be sent is sent. Returns whether the
    /// connection may receive more; if not, all that is to be done has been done.
    #[inline]
    pub(super) fn turn(
        &mut self,
        fd: RawFd,
        act: impl FnOnce(&mut Round<'_, A::Exchange>, &Rules, &mut Stage<'_, A>, &[u8]),
    ) -> bool {
        let Some(slot) = self.table.get_mut(fd) else { return false };
        let client = ClientId { fd, generation: slot.generation() };
        let Some((transport, Peer::Client(connection))) = slot.parts() else { return false };
        self.local.begin_turn();
        let mut stage = Stage {
            application: &mut self.application,
            rules: &self.rules,
            local: &mut self.local,
            outside: &mut self.outside,
            client,
            socket: Some(transport.as_fd()),
        };
        let mut round = connection.round(&mut self.outbox);
        act(&mut round, &self.rules, &mut stage, &self.input);
        let output = round.output();
        if !output.is_empty() {
            if self.discipline == Discipline::PerState {
                drop(round);
                self.wait_to_write(fd);
                return false;
            }
            let (outcome, sent) = transmit(transport, output, self.large_file);
            self.bytes_sent += sent;
            match outcome {
                Ok(Sent::All) => {}
                outcome => {
                    drop(round);
                    self.send_rest_later(fd, outcome);
                    return false;
                }
            }
        }
        drop(round);
        // The slot is the one from above: a look into the table for each step would cost more than
        // most steps do.
        match connection.need() {
            Need::Receive(_) => true,
            need => self.do_what_is_needed(fd, need),
        }
    }

    /// Goes on after a turn whose output has left. As [`Engine::turn`], returns whether the
    /// connection may receive more.
    #[cold]
    pub(super) fn do_what_is_needed(&mut self, fd: RawFd, need: Need) -> bool {
        let Some(client) = self.table.get_mut(fd).and_then(|slot| slot.client()) else {
            return false;
        };
        if need == Need::Application {
            let has_room = client.round(&mut self.outbox).takes_owed_room();
            if has_room {
                self.wake(fd, Wake::Room);
                return false;
            }
            if client.takes_input() {
                return true;
            }
            self.look_away(fd);
        }
        self.settle(fd);
        false
    }

    /// Output is kept: sees to it that somebody comes back to it.
    #[cold]
    pub(super) fn send_rest_later(&mut self, fd: RawFd, outcome: io::Result<Sent>) {
        match outcome {
            Err(_) => self.close(fd),
            // By its state a connection writes only when it is told to.
            Ok(Sent::Paused) if self.discipline == Discipline::Eager => {
                self.come_back_to(fd);
                self.settle(fd);
            }
            Ok(_) => self.wait_to_write(fd),
        }
    }

    /// Sends what was kept, and when all of it has left goes on with the input.
    #[cold]
    pub(super) fn send_parked(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let Some((transport, Peer::Client(connection))) = slot.parts() else { return };
        let mut round = connection.round(&mut self.outbox);
        let (outcome, sent) = transmit(transport, round.output(), self.large_file);
        self.bytes_sent += sent;
        let has_progressed = round.record_sent(sent, SEND_PROGRESS_BYTES);
        let has_room = round.takes_owed_room();
        drop(round);
        if !matches!(outcome, Ok(Sent::All)) {
            if has_progressed {
                let deadline = self.local.clock.after(self.rules.timeouts.send);
                self.arm(fd as u32, deadline);
            }
            self.send_rest_later(fd, outcome);
            if has_room {
                self.wake(fd, Wake::Room);
            }
            return;
        }
        if has_room {
            return self.wake(fd, Wake::Room);
        }
        // First what was received already, then what waits in the socket.
        if self.turn(fd, |round, rules, stage, _| round.go_on(rules, stage)) {
            self.come_back_for_input(fd);
            self.settle(fd);
        }
    }
}
