//! The readiness engine: one loop, monomorphised for each mechanism.
//!
//! # Edge-triggered mechanisms
//!
//! They tell of an arrival once, so nothing may be left unread without a note. Reading until
//! `WouldBlock` would cost a second recv(2) a request; instead a recv that returns less than the
//! buffer holds has drained the socket (epoll(7), "edge-triggered", Q9), with one exception: the
//! end of the stream may stand behind the data. The mechanism says so in the same event
//! ([`Readiness::READ_CLOSED`]), or in a further one if it comes later. A signal says only that
//! something has come, and for the end there is a signal more; so where events were only noted
//! ([`Marks::INPUT_WAITS`]) one of them may have been the end, and the socket is read until
//! `WouldBlock`.
//!
//! What is left deliberately (a full buffer, output that must leave first, an accept limit) is
//! noted in [`Marks`] or in the list `again`.

mod accept;
mod stop;

use super::transmit::{Sent, transmit};
use crate::{
    clock::ticks,
    config::{Config, Discipline, LargeFile, SEND_PROGRESS_BYTES},
    connection::Step,
    outbox::Outbox,
    service::Service,
    statistics::{ConnectionCounts, Statistics},
    table::{Class, Marks, Table},
    timers::Wheel,
    worker::{Command, Inbox},
};
use accept::Acceptor;
use pollux_event::{Capabilities, Event, Interest, Mechanism, Options, Readiness, Token, sys};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    time::Duration,
};

/// The receive buffer, one a worker. Most requests are far shorter.
const INPUT_BYTES: usize = 16 << 10;
/// How often one connection is read for one event before the others have their turn.
const READS_PER_EVENT: usize = 4;
/// How long a connection may take to close after we have closed our side.
const LINGER: Duration = Duration::from_secs(5);

/// One worker's loop.
pub(crate) struct Engine<M> {
    mechanism: M,
    table: Table,
    timers: Wheel,
    service: Service,
    acceptor: Acceptor,
    inbox: Inbox,
    inbox_token: Token,
    input: Box<[u8]>,
    outbox: Outbox,
    /// Connections with something left that no event will tell of, each marked `QUEUED`.
    again: VecDeque<RawFd>,
    /// Connections whose time is over; kept for its memory.
    due: Vec<RawFd>,
    /// The mechanism tells of an arrival once.
    is_edge: bool,
    discipline: Discipline,
    large_file: LargeFile,
    connections: ConnectionCounts,
    bytes_sent: u64,
    waits: u64,
    events: u64,
    /// The tick at which a stop no longer waits for connections.
    stop_at: Option<u32>,
}

impl<M: Mechanism> Engine<M> {
    /// Opens the mechanism and takes in the listeners and the inbox.
    pub(crate) fn new(
        config: &Config,
        options: &Options,
        service: Service,
        listeners: Vec<OwnedFd>,
        max_connections: usize,
        inbox: Inbox,
    ) -> anyhow::Result<Self> {
        let mut mechanism = M::open(options)?;
        let inbox_token = mechanism.add(inbox.as_fd(), Interest::READ)?;
        let acceptor =
            Acceptor::new(&mut mechanism, listeners, config.accept_limit, max_connections)?;
        Ok(Self {
            mechanism,
            table: Table::default(),
            timers: Wheel::default(),
            service,
            acceptor,
            inbox,
            inbox_token,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            outbox: Outbox::default(),
            again: VecDeque::new(),
            due: Vec::new(),
            is_edge: M::capabilities(options).contains(Capabilities::EDGE),
            discipline: config.interest,
            large_file: config.large_file,
            connections: ConnectionCounts::default(),
            bytes_sent: 0,
            waits: 0,
            events: 0,
            stop_at: None,
        })
    }

    /// Runs until a stop has been asked for and is done. Returns the last figures.
    pub(crate) fn run(mut self) -> anyhow::Result<Statistics> {
        loop {
            let timeout = self.timeout();
            self.mechanism.wait(timeout)?;
            self.waits += 1;
            self.service.clock.update();
            while let Some(event) = self.mechanism.next_event() {
                self.events += 1;
                self.dispatch(event);
            }
            self.come_back();
            self.expire();
            if let Some(log) = &mut self.service.log {
                log.hand_over();
            }
            if self.is_done() {
                return Ok(self.statistics());
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() || self.acceptor.has_more() {
            return Some(Duration::ZERO);
        }
        let ticks = [self.timers.next(), self.stop_at, self.acceptor.retry_at()];
        let next = ticks.into_iter().flatten().min();
        next.map(|tick| self.service.clock.until(tick))
    }

    #[inline]
    fn dispatch(&mut self, event: Event) {
        let fd = event.token.fd;
        let Some(slot) = self.table.get_mut(fd) else {
            return self.dispatch_other(event);
        };
        let ends = Readiness::READ_CLOSED | Readiness::HANGUP | Readiness::ERROR;
        if event.readiness.intersects(ends) {
            slot.marks |= Marks::INPUT_ENDS;
        }
        if slot.connection.has_output() {
            self.on_event_while_sending(fd, event.readiness);
        } else if event.readiness.is_readable() {
            self.receive(fd);
        }
    }

    #[cold]
    fn dispatch_other(&mut self, event: Event) {
        if event.token == self.inbox_token {
            for command in self.inbox.take() {
                match command {
                    Command::Statistics(reply) => drop(reply.send(self.statistics())),
                    Command::Stop { grace } => self.stop(grace),
                }
            }
        } else {
            self.accept(event.token);
        }
    }

    #[cold]
    fn on_event_while_sending(&mut self, fd: RawFd, readiness: Readiness) {
        if readiness.is_readable()
            && let Some(slot) = self.table.get_mut(fd)
        {
            slot.marks |= Marks::INPUT_WAITS;
        }
        if readiness.is_writable() {
            self.send_parked(fd);
        }
    }

    /// Receives and answers until the socket is drained, or this connection has had its turn.
    #[inline]
    fn receive(&mut self, fd: RawFd) {
        for _ in 0..READS_PER_EVENT {
            let Some(slot) = self.table.get_mut(fd) else { return };
            let Some(socket) = slot.socket() else { return };
            let received = match sys::recv(socket.as_fd(), &mut self.input) {
                Ok(0) => {
                    slot.connection.end_of_input();
                    return self.settle(fd);
                }
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
            if !self.answer(fd, received) {
                return;
            }
            if is_drained || !self.is_edge {
                return self.settle(fd);
            }
        }
        self.come_back_to(fd);
        self.settle(fd);
    }

    /// Answers what was received and what was kept. Returns whether the connection may receive
    /// more; if not, all that is to be done has been done.
    #[inline]
    fn answer(&mut self, fd: RawFd, received: usize) -> bool {
        let mut at = 0;
        loop {
            let Some(slot) = self.table.get_mut(fd) else { return false };
            if let Some(log) = &mut self.service.log {
                log.peer = slot.socket().and_then(accept::peer);
            }
            let input = &self.input[at..received];
            at += slot.connection.receive(&mut self.service, &mut self.outbox, input);
            let has_more = at < received || slot.connection.has_requests();
            if !self.outbox.is_empty() {
                if self.discipline == Discipline::PerState {
                    return self.send_when_told(fd, at, received);
                }
                let Some(socket) = slot.socket() else { return false };
                let (outcome, sent) = transmit(socket.as_fd(), &mut self.outbox, self.large_file);
                self.bytes_sent += sent;
                match outcome {
                    Ok(Sent::All) => {}
                    outcome => return self.send_rest_later(fd, at, received, outcome),
                }
            }
            // The slot is the one from above: a look into the table for each step would cost more
            // than most steps do.
            if slot.connection.next_step() != Step::Receive {
                self.finish(fd);
                return false;
            }
            if !has_more {
                return true;
            }
        }
    }

    /// Parks the scratch outbox, and the input that is not dealt with, until the socket is reported
    /// writable. Returns that not all has left.
    #[cold]
    fn send_when_told(&mut self, fd: RawFd, at: usize, received: usize) -> bool {
        if let Some(slot) = self.table.get_mut(fd) {
            slot.connection.park(&mut self.outbox, &self.input[at..received]);
            self.wait_to_write(fd);
        }
        false
    }

    /// Parks what a send did not take, and the input that is not dealt with; closes after an error.
    /// Returns that not all has left.
    #[cold]
    fn send_rest_later(
        &mut self,
        fd: RawFd,
        at: usize,
        received: usize,
        outcome: io::Result<Sent>,
    ) -> bool {
        let Ok(how) = outcome else {
            self.outbox.clear();
            self.close(fd);
            return false;
        };
        if let Some(slot) = self.table.get_mut(fd) {
            slot.connection.park(&mut self.outbox, &self.input[at..received]);
            self.come_back_when_it_can(fd, how);
        }
        false
    }

    /// Output is parked: sees to it that somebody comes back to it.
    #[cold]
    fn come_back_when_it_can(&mut self, fd: RawFd, how: Sent) {
        // By its state a connection writes only when it is told to.
        if how == Sent::Paused && self.discipline == Discipline::Eager {
            self.come_back_to(fd);
            self.settle(fd);
        } else {
            self.wait_to_write(fd);
        }
    }

    /// Sends what was parked, and when all of it has left goes on with the input.
    #[cold]
    fn send_parked(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let mut parked = slot.connection.take_parked();
        let Some(socket) = slot.socket() else { return };
        let (outcome, sent) = transmit(socket.as_fd(), &mut parked, self.large_file);
        self.bytes_sent += sent;
        match outcome {
            Ok(Sent::All) => {}
            Ok(how) => {
                if slot.connection.put_parked(parked, sent, SEND_PROGRESS_BYTES) {
                    let deadline = self.service.clock.after(self.service.timeouts.send);
                    self.timers.arm(&mut self.table, fd, deadline);
                }
                return self.come_back_when_it_can(fd, how);
            }
            Err(_) => return self.close(fd),
        }
        if slot.connection.next_step() != Step::Receive {
            return self.finish(fd);
        }
        // First what was received already, then what waits in the socket.
        if !self.answer(fd, 0) {
            return;
        }
        self.wait_to_read(fd);
        let Some(slot) = self.table.get_mut(fd) else { return };
        if self.is_edge && slot.marks.contains(Marks::INPUT_WAITS) {
            // Not at once: the stack would grow with every response that blocks.
            self.come_back_to(fd);
        }
        self.settle(fd);
    }

    /// Registers for writing.
    #[cold]
    fn wait_to_write(&mut self, fd: RawFd) {
        let wanted = match self.discipline {
            // Once registered for both, an edge-triggered mechanism needs no further change.
            Discipline::Eager if self.is_edge => Marks::READS | Marks::WRITES,
            _ => Marks::WRITES,
        };
        // A change makes an edge-triggered mechanism look again, which per-state rests on.
        let must_look = self.discipline == Discipline::PerState && self.is_edge;
        if self.change_interest(fd, wanted, must_look) {
            self.settle(fd);
        }
    }

    /// Registers for reading.
    fn wait_to_read(&mut self, fd: RawFd) {
        if !(self.is_edge && self.discipline == Discipline::Eager) {
            self.change_interest(fd, Marks::READS, false);
        }
    }

    /// Returns whether the connection is still there.
    fn change_interest(&mut self, fd: RawFd, wanted: Marks, even_if_same: bool) -> bool {
        let both = Marks::READS | Marks::WRITES;
        let Some(slot) = self.table.get_mut(fd) else { return false };
        if slot.marks & both == wanted && !even_if_same {
            return true;
        }
        slot.marks = (slot.marks - both) | wanted;
        let mut interest = Interest::empty();
        interest.set(Interest::READ, wanted.contains(Marks::READS));
        interest.set(Interest::WRITE, wanted.contains(Marks::WRITES));
        if let Err(error) = self.mechanism.modify(slot.token(fd), interest) {
            tracing::warn!("closing a connection, its interest cannot be changed: {error}");
            self.close(fd);
            return false;
        }
        true
    }

    /// After all that could be done was done: ends the connection if that is due, else gives it
    /// the timeout of what it waits for.
    #[inline]
    fn settle(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let class = slot.connection.class();
        if class != Class::Send && slot.connection.next_step() != Step::Receive {
            return self.finish(fd);
        }
        let requests = slot.connection.requests() as u16;
        // Only a new request moves the deadline on, not each octet that comes or leaves.
        if slot.class == class && slot.armed_at == requests && class != Class::KeepAlive {
            return;
        }
        slot.class = class;
        slot.armed_at = requests;
        let timeouts = &self.service.timeouts;
        let timeout = match class {
            Class::KeepAlive if self.service.is_stopping && !slot.marks.is_left() => {
                return self.close(fd);
            }
            Class::KeepAlive => timeouts.keep_alive,
            Class::Header => timeouts.header,
            Class::Send => timeouts.send,
            Class::Linger => ticks(LINGER),
        };
        let deadline = self.service.clock.after(timeout);
        // As a rule the slot stays in its list, so that the table need not be asked again.
        if !slot.timer.postpone(deadline) {
            self.timers.put(&mut self.table, fd);
        }
    }

    /// All output has left and no further request is taken.
    fn finish(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        match slot.connection.next_step() {
            Step::Receive => {}
            Step::Close => self.close(fd),
            Step::Linger => {
                slot.connection.linger();
                let has_shut =
                    slot.socket().is_some_and(|socket| sys::shutdown_write(socket.as_fd()).is_ok());
                if !has_shut {
                    return self.close(fd);
                }
                self.wait_to_read(fd);
                self.come_back_to(fd);
                self.settle(fd);
            }
        }
    }

    fn close(&mut self, fd: RawFd) {
        if let Some((socket, token)) = self.table.remove(fd) {
            debug_assert_eq!(socket.as_raw_fd(), fd);
            // The descriptor is closed whatever it says.
            let _ = self.mechanism.close(token, socket);
            self.connections.closed += 1;
            self.acceptor.a_place_is_free();
        }
    }

    /// Puts a connection on the list of those with something left.
    fn come_back_to(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        if !slot.marks.contains(Marks::QUEUED) {
            slot.marks |= Marks::QUEUED;
            self.again.push_back(fd);
        }
    }

    /// Goes on where something was left. Each connection on the list has one turn.
    #[inline]
    fn come_back(&mut self) {
        for _ in 0..self.again.len() {
            let Some(fd) = self.again.pop_front() else { break };
            // The number may have been closed and used again: then this is a spurious event.
            let Some(slot) = self.table.get_mut(fd) else { continue };
            slot.marks -= Marks::QUEUED;
            if slot.connection.has_output() {
                self.send_parked(fd);
            } else {
                self.receive(fd);
            }
        }
        self.accept_more();
    }

    /// Ends what has had its time.
    fn expire(&mut self) {
        let now = self.service.clock.tick();
        let mut due = std::mem::take(&mut self.due);
        self.timers.expire(&mut self.table, now, &mut due);
        for fd in due.drain(..) {
            self.time_is_over(fd);
        }
        self.due = due;
    }

    #[cold]
    fn time_is_over(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        if slot.class == Class::Linger {
            return self.close(fd);
        }
        self.connections.timed_out += 1;
        match slot.class {
            Class::KeepAlive | Class::Linger => self.close(fd),
            Class::Send => {
                // What is in the socket's buffer would else occupy memory for many minutes more.
                if let Some(socket) = slot.socket() {
                    let _ = sys::reset_on_close(socket.as_fd());
                }
                self.close(fd);
            }
            Class::Header => {
                if let Some(log) = &mut self.service.log {
                    log.peer = slot.socket().and_then(accept::peer);
                }
                slot.connection.give_up_waiting(&mut self.service, &mut self.outbox);
                // Sends what that said; there is no input.
                if self.answer(fd, 0) {
                    self.settle(fd);
                }
            }
        }
    }

    fn statistics(&self) -> Statistics {
        let open = self.table.len() as u64;
        Statistics {
            connections: ConnectionCounts { open, ..self.connections },
            requests: self.service.requests,
            bytes_sent: self.bytes_sent,
            waits: self.waits,
            events: self.events,
            accept_pauses: self.acceptor.pauses(),
            log_lines_dropped: self.service.log.as_ref().map_or(0, |log| log.dropped()),
            system_calls: sys::counters(),
            mechanism: self.mechanism.statistics().into_iter().collect(),
        }
    }
}
