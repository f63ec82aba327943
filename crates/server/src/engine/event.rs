//! The readiness engine: one loop, monomorphised for each mechanism.
//!
//! # Edge-triggered mechanisms
//!
//! They report an arrival once, so nothing may be left unread without a note. Reading until
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
mod admit;
mod client;
mod evict;
mod expire;
mod handover;
mod names;
mod nodes;
mod renew;
mod stop;
mod streams;
pub(crate) mod table;
mod transfer;
mod tunnel;
mod upstreams;
mod wait;

pub(crate) use renew::Renewer;

use super::{
    FailedWaits,
    resolver::Resolver,
    transmit::{SendOutcome, transmit},
    upstreams::UpstreamDriver as _,
};
use crate::{
    config::{Config, Discipline, IdleEviction, LargeFile, SEND_PROGRESS_BYTES},
    engine::{
        control::{Inbox, WorkerCommand},
        event::table::{Class, Marks, Peer, Table},
    },
    protocol::{Awaits, Connection, Iteration, Need, rules::Rules},
    reactor::{ClientId, ExchangeId, Reactor},
    service::{Adapter, Event, Service, worker_state::WorkerState},
    stats::{Counter, Statistics, census},
    time::{
        clock::ticks,
        timers::{self, Wheel, earlier},
    },
    transport::outbox::Outbox,
    upgrade::successor::Reports,
};
use accept::Acceptor;
use nodes::Timers;
use pollux_event::{
    Capabilities, Event as MechanismEvent, Interest, Mechanism, Options, Readiness, Token,
};
use pollux_sys as sys;
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::Arc,
    time::Duration,
};

/// The receive buffer, one a worker. Most requests are far shorter.
const INPUT_BYTES: usize = pollux_tls::RECORD_MAX;
/// How often one connection is read for one event before the others have their turn.
const READS_PER_EVENT: usize = 4;
/// How long a connection may take to close after we have closed our side.
const LINGER: Duration = Duration::from_secs(5);

/// One worker's loop.
pub(crate) struct Engine<M, A: Service> {
    mechanism: M,
    service: A,
    table: Table<A::Exchange>,
    timers: Wheel,
    rules: Arc<Rules>,
    worker: WorkerState,
    /// The commands of the service.
    reactor: Reactor,
    names: Option<Resolver>,
    acceptor: Acceptor,
    inbox: Inbox,
    inbox_token: Token,
    input: Box<[u8]>,
    /// For links and tunnels; made when the first one is.
    upstream_input: Vec<u8>,
    outbox: Outbox,
    /// Clients, whether they speak HTTP or through a tunnel.
    clients: usize,
    /// Connections with something left that no event will report, each marked `QUEUED`.
    again: VecDeque<RawFd>,
    /// What a call of the service has left to do about streams; kept for its memory.
    stream_changes: Vec<streams::Change>,
    /// Whose time is over; kept for its memory.
    due: Vec<u32>,
    /// The mechanism reports an arrival once.
    is_edge: bool,
    discipline: Discipline,
    large_file: LargeFile,
    failed_waits: FailedWaits,
    /// Connections that give way at the limit.
    idle: evict::IdleReserve,
    /// An idle connection stays: neither is a stop requested, nor does a successor take it over.
    keeps_idle: bool,
    /// Idle connections that leave for a successor, or come from the former server.
    transfers: transfer::Transfers,
    /// How a new configuration takes effect, if one can.
    renewer: Option<Renewer<A>>,
    /// The tick at which a stop no longer waits for connections.
    stop_at: Option<u32>,
}

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Opens the mechanism and takes in the listeners and the inbox.
    pub(crate) fn new(
        config: &Config,
        options: &Options,
        service: A,
        (rules, worker): (Arc<Rules>, WorkerState),
        (listeners, max_connections): (Vec<OwnedFd>, usize),
        inbox: Inbox,
    ) -> anyhow::Result<Self> {
        let mut mechanism = M::open(options)?;
        let inbox_token = mechanism.add(inbox.as_fd(), Interest::READ)?;
        let acceptor =
            Acceptor::new(&mut mechanism, listeners, config.accept_limit, max_connections)?;
        Ok(Self {
            mechanism,
            service,
            table: Table::default(),
            timers: Wheel::default(),
            rules,
            worker,
            reactor: Reactor::default(),
            names: None,
            acceptor,
            inbox,
            inbox_token,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            upstream_input: Vec::new(),
            outbox: Outbox::default(),
            clients: 0,
            again: VecDeque::new(),
            stream_changes: Vec::new(),
            due: Vec::new(),
            is_edge: M::capabilities(options).contains(Capabilities::EDGE),
            discipline: config.interest,
            large_file: config.large_file,
            failed_waits: FailedWaits::default(),
            idle: evict::IdleReserve::new(config.idle_eviction == IdleEviction::On),
            keeps_idle: true,
            transfers: transfer::Transfers::new(0, Reports::default()),
            renewer: None,
            stop_at: None,
        })
    }

    /// Lets the configuration be changed while the engine runs.
    pub(crate) fn with_renewer(self, renewer: Option<Renewer<A>>) -> Self {
        Self { renewer, ..self }
    }

    /// Lets a successor take the connections over; the worker of this number reports to the main thread.
    pub(crate) fn with_reports(self, worker: usize, reports: Reports) -> Self {
        Self { transfers: transfer::Transfers::new(worker, reports), ..self }
    }

    /// Runs until a stop has been requested and is done. Returns the last figures.
    pub(crate) fn run(mut self) -> anyhow::Result<Statistics> {
        let mut looks_again = false;
        loop {
            let timeout = self.timeout();
            // Read before the wait: what had happened when the command came is normally reported by
            // this wait, and so is part of the answer.
            let is_pending = self.inbox.is_raised();
            let happened = self.wait(timeout)?;
            self.worker.counters.add(Counter::Waits, 1);
            self.worker.clock.update();
            self.rules.begin_iteration();
            while let Some(event) = self.mechanism.next_event() {
                self.worker.counters.add(Counter::Events, 1);
                self.dispatch(event);
            }
            if is_pending && self.inbox.is_raised() {
                self.handle_inbox();
            }
            self.run_queued();
            // After a stop of the process (SIGSTOP) the wait is interrupted and the deadlines are
            // over: input that arrived during the stop is handled first.
            looks_again = happened == 0 && !looks_again && self.is_overdue();
            if !looks_again {
                self.expire();
            }
            self.perform();
            if self.service.has_stream_work() {
                self.pump_streams();
            }
            if !self.transfers.is_empty() {
                self.pump_transfers();
            }
            self.rules.end_iteration(&self.worker.counters);
            let (busy, streams) = census::counts();
            self.worker.counters.set(Counter::Busy, busy);
            self.worker.counters.set(Counter::Streams, streams);
            if let Some(log) = &mut self.worker.log {
                log.hand_over();
                self.worker.counters.set(Counter::LogLinesDropped, log.dropped());
            }
            if self.is_done() {
                return Ok(self.statistics());
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty()
            || self.reactor.pending_commands() > 0
            || self.acceptor.has_more()
            || self.service.has_stream_work()
        {
            return Some(Duration::ZERO);
        }
        let mut next = earlier(self.timers.next(), earlier(self.stop_at, self.acceptor.retry_at()));
        if !self.transfers.is_empty() {
            if self.transfers.has_more() {
                return Some(Duration::ZERO);
            }
            next = earlier(next, self.transfers.retry_at());
        }
        next.map(|tick| self.worker.clock.until(tick))
    }

    #[inline]
    fn dispatch(&mut self, event: MechanismEvent) {
        let fd = event.token.fd;
        let Some(slot) = self.table.get_mut(fd) else {
            return self.dispatch_other(event);
        };
        let ends = Readiness::READ_CLOSED | Readiness::HANGUP | Readiness::ERROR;
        if event.readiness.intersects(ends) {
            slot.marks |= Marks::INPUT_ENDS;
        }
        let Peer::Client(connection) = &slot.peer else {
            return self.dispatch_beside(fd, event.readiness);
        };
        match connection.need() {
            Need::Receive(_) if event.readiness.is_readable() => self.receive(fd),
            Need::Receive(_) => {}
            need => self.on_event_meanwhile(fd, need, event.readiness),
        }
    }

    /// Of what is no client that speaks HTTP.
    #[cold]
    fn dispatch_beside(&mut self, fd: RawFd, readiness: Readiness) {
        match self.table.get_mut(fd).map(|slot| &slot.peer) {
            Some(&Peer::Upstream(index)) => self.on_upstream_event(fd, index, readiness),
            Some(Peer::Tunnel(_)) => self.on_tunnel_event(fd, readiness),
            Some(Peer::Stream(_)) => self.on_stream_event(fd, readiness),
            Some(Peer::Preamble(_)) => self.on_preamble_event(fd),
            Some(Peer::Notifier) => self.answers_have_come(fd),
            Some(Peer::Client(_) | Peer::None) | None => {}
        }
    }

    #[cold]
    fn dispatch_other(&mut self, event: MechanismEvent) {
        if event.token == self.inbox_token {
            self.handle_inbox();
        } else if !self.on_channel_event(event.token) {
            self.accept(event.token);
        }
    }

    #[cold]
    fn handle_inbox(&mut self) {
        for command in self.inbox.take() {
            match command {
                WorkerCommand::Statistics(number) => self.inbox.answer(number, &self.statistics()),
                WorkerCommand::Stop { grace } => self.stop(grace),
                // To wake the loop is enough: it looks at its streams in each pass.
                WorkerCommand::News => {}
                WorkerCommand::Prepare(number) => self.prepare_renewal(number),
                WorkerCommand::Commit(number) => self.commit_renewal(number),
                WorkerCommand::Depart => {
                    if let Some(socket) = self.inbox.take_descriptor() {
                        self.depart(socket);
                    }
                }
                WorkerCommand::Adopt => {
                    if let Some(socket) = self.inbox.take_descriptor() {
                        self.adopt(socket);
                    }
                }
                WorkerCommand::Stay => self.stay(),
                WorkerCommand::Leave { drain } => self.leave(drain),
            }
        }
    }

    /// Something has happened to a connection that waits for something else.
    #[cold]
    fn on_event_meanwhile(&mut self, fd: RawFd, need: Need, readiness: Readiness) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        if readiness.is_readable() {
            slot.marks |= Marks::INPUT_WAITS;
        }
        match need {
            Need::Send if readiness.is_writable() => self.send_parked(fd),
            // Nobody is there any more whom an answer could reach.
            Need::Service if readiness.intersects(Readiness::HANGUP | Readiness::ERROR) => {
                self.close(fd);
            }
            Need::Service if readiness.is_readable() => self.receive_meanwhile(fd),
            // It has its turn soon.
            _ => {}
        }
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
            self.rearm(fd);
        }
    }

    /// Registers for reading.
    fn wait_to_read(&mut self, fd: RawFd) {
        if !self.registers_once() {
            self.change_interest(fd, Marks::READS, false);
        }
    }

    /// Whether interest is registered once, for both directions, and never changed.
    fn registers_once(&self) -> bool {
        self.is_edge && self.discipline == Discipline::Eager
    }

    /// Registers for nothing: a level-triggered mechanism would report unread input at every wait.
    fn disable_read(&mut self, fd: RawFd) {
        if !self.registers_once() {
            self.change_interest(fd, Marks::empty(), false);
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
            self.end_peer(fd);
            return false;
        }
        true
    }

    /// Ends the connection if that is due, else sets the timeout of what it waits for.
    #[inline]
    fn rearm(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let Peer::Client(connection) = &mut slot.peer else { return };
        let class = match connection.need() {
            Need::Receive(Awaits::Next) => Class::KeepAlive,
            Need::Receive(Awaits::Request) => Class::Header,
            Need::Receive(Awaits::End) => Class::Linger,
            Need::Send => Class::Send,
            Need::Service => Class::Service,
            Need::Requeue => return self.requeue(fd),
            Need::Linger => return self.linger(fd),
            Need::Close => return self.close(fd),
        };
        let requests = connection.requests() as u16;
        // Only a new request moves the deadline on, or a good piece of a body, not each byte.
        let more = class == Class::Header && connection.takes_progress();
        if slot.class == class && slot.armed_at == requests && !more && class != Class::KeepAlive {
            return;
        }
        let former = std::mem::replace(&mut slot.class, class);
        slot.armed_at = requests;
        let timeouts = &self.rules.timeouts;
        let timeout = match class {
            Class::KeepAlive if !self.keeps_idle && !slot.marks.is_left() => {
                return self.release(fd);
            }
            Class::KeepAlive => timeouts.keep_alive,
            Class::Header => timeouts.header,
            Class::Send => timeouts.send,
            Class::Linger => ticks(LINGER),
            Class::Service | Class::Dial | Class::Upstream | Class::Tunnel | Class::Stream => {
                return slot.timer.disarm();
            }
        };
        let deadline = self.worker.clock.after(timeout);
        // The slot normally stays in its list, so that the table need not be consulted again.
        if !slot.timer.postpone(deadline) {
            let nodes = &mut Timers { table: &mut self.table, reactor: &mut self.reactor };
            self.timers.put(nodes, fd as u32);
        }
        if matches!(former, Class::Send | Class::Service) && class != Class::Send {
            self.read_again(fd);
        }
    }

    /// What was waited for is over: input is wanted again.
    #[cold]
    fn read_again(&mut self, fd: RawFd) {
        self.wait_to_read(fd);
        self.requeue_for_input(fd);
    }

    /// Queues a connection whose input no event reports again. A direct call would grow the stack.
    #[cold]
    fn requeue_for_input(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        if self.is_edge && slot.marks.contains(Marks::INPUT_WAITS) {
            self.requeue(fd);
        }
    }

    /// All output has left, no further request is taken, and the peer may still be sending.
    #[cold]
    fn linger(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let Some((transport, Peer::Client(connection))) = slot.parts() else { return };
        connection.linger();
        let has_shut = match connection.is_cut() {
            true => transport.cut().is_ok(),
            false => transport.shut().is_ok(),
        };
        if !has_shut {
            return self.close(fd);
        }
        self.wait_to_read(fd);
        self.requeue(fd);
        self.rearm(fd);
    }

    /// Closes a client's connection.
    fn close(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let client = ClientId { fd, generation: slot.generation() };
        let Some((transport, Peer::Client(connection))) = slot.parts() else { return };
        if connection.has_ended_well() {
            transport.say_end();
        }
        if !connection.is_idle() {
            self.worker.begin_iteration();
            let Self { service, rules, worker, reactor, .. } = self;
            let socket = Some(transport.as_fd());
            connection.abandon(&mut Adapter { service, rules, worker, reactor, client, socket });
        }
        self.close_socket(fd);
        self.client_has_gone(fd);
    }

    /// Closes whatever has this descriptor, which is broken.
    #[cold]
    fn end_peer(&mut self, fd: RawFd) {
        match self.table.get_mut(fd).map(|slot| &slot.peer) {
            Some(Peer::Client(_)) => self.close(fd),
            Some(Peer::Preamble(_)) => self.close_preamble(fd, None),
            Some(&Peer::Upstream(index)) => {
                if let Some(id) = self.reactor.upstreams.at(index) {
                    self.fail_upstream(id, io::ErrorKind::Other.into());
                }
            }
            Some(Peer::Tunnel(_)) => self.end_tunnel(fd),
            Some(Peer::Stream(_)) => self.end_stream(fd),
            Some(Peer::Notifier | Peer::None) | None => self.close_socket(fd),
        }
    }

    fn close_socket(&mut self, fd: RawFd) {
        if let Some((transport, token)) = self.table.remove(fd) {
            debug_assert_eq!(transport.as_raw_fd(), fd);
            // The descriptor is closed whatever it says.
            let _ = self.mechanism.close(token, transport.into_socket());
        }
    }

    fn client_has_gone(&mut self, fd: RawFd) {
        self.worker.clients.leave(self.rules.guard.as_deref(), fd);
        self.clients -= 1;
        self.worker.counters.add(Counter::Closed, 1);
        self.acceptor.slot_is_free();
    }

    fn client(&mut self, fd: RawFd) -> Option<&mut Connection<A::Exchange>> {
        self.table.get_mut(fd)?.client()
    }

    /// Whether an exchange still waits for something.
    fn is_running(&mut self, exchange: ExchangeId) -> bool {
        let slot = self.table.get_mut(exchange.client.fd);
        let slot = slot.filter(|slot| slot.generation() == exchange.client.generation);
        slot.and_then(|slot| slot.client()).is_some_and(|c| c.is_running(exchange.number))
    }

    /// Sets a deadline for a node of the wheel.
    fn arm(&mut self, node: u32, deadline: u32) {
        let nodes = &mut Timers { table: &mut self.table, reactor: &mut self.reactor };
        self.timers.arm(nodes, node, deadline);
    }

    /// Puts a connection on the list of those with something left.
    fn requeue(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        if !slot.marks.contains(Marks::QUEUED) {
            slot.marks |= Marks::QUEUED;
            self.again.push_back(fd);
        }
    }

    /// Goes on where something was left. Each connection on the list has one turn.
    #[inline]
    fn run_queued(&mut self) {
        for _ in 0..self.again.len() {
            let Some(fd) = self.again.pop_front() else { break };
            // The number may have been closed and used again: then this is a spurious event.
            let Some(slot) = self.table.get_mut(fd) else { continue };
            slot.marks -= Marks::QUEUED;
            match &slot.peer {
                Peer::Client(connection) => match connection.need() {
                    // A further turn goes on with what was received, too.
                    Need::Send | Need::Requeue => self.send_parked(fd),
                    Need::Service => self.receive_meanwhile(fd),
                    _ => self.receive(fd),
                },
                &Peer::Upstream(index) => self.resume_upstream(fd, index),
                Peer::Tunnel(_) => self.push(fd),
                Peer::Stream(_) => self.on_stream_event(fd, Readiness::READABLE),
                Peer::Preamble(_) => self.on_preamble_event(fd),
                Peer::Notifier | Peer::None => {}
            }
        }
        self.accept_more();
    }

    fn statistics(&self) -> Statistics {
        let counters = &self.worker.counters;
        Statistics {
            counts: counters.read(),
            cache: None,
            hub: None,
            system_calls: sys::counters(),
            mechanism: self.mechanism.statistics().into_iter().collect(),
        }
    }
}
