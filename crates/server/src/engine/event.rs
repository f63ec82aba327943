//! The readiness engine: one loop, monomorphised for each mechanism.
//!
//! # Edge-triggered mechanisms
//!
//! They report each arrival once, so the engine must remember unread input. Reading until `WouldBlock`
//! would cost a second recv(2) for each request. Instead, a recv that returns fewer bytes than the buffer
//! holds has drained the socket (epoll(7), "edge-triggered", Q9). There is one exception: the end of the
//! stream may follow the data. The mechanism reports the end in the same event
//! ([`Readiness::READ_CLOSED`]), or in a further event if the end arrives later. A signal reports only that
//! input has arrived; the end of the stream causes one more signal. So if events were only noted
//! ([`Marks::INPUT_WAITS`]), one of them may have been the end, and the socket is read until `WouldBlock`.
//!
//! The engine sometimes leaves input unread on purpose: the buffer is full, output must be sent first, or
//! the accept limit is reached. It notes this in [`Marks`] or in the list `again`.

mod accept;
mod admit;
mod client;
mod close;
mod evict;
mod expire;
mod handover;
mod names;
mod nodes;
mod parked;
mod renew;
mod stop;
mod streams;
pub(crate) mod table;
mod transfer;
mod tunnel;
mod upstreams;
mod wait;

pub(crate) use renew::{Renewer, Replace};

use super::{
    FailedWaits,
    resolver::Resolver,
    transmit::{SendOutcome, transmit},
    upstreams::UpstreamDriver as _,
};
use crate::{
    config::{Discipline, IdleEviction, LargeFile, SEND_PROGRESS_BYTES},
    engine::{
        control::{Inbox, WorkerCommand},
        event::table::{Class, Marks, Peer, Table},
    },
    protocol::{Awaits, Connection, Iteration, Need, rules::Rules},
    reactor::{ClientId, ExchangeId, Reactor},
    service::{Adapter, Event, Service, worker_state::WorkerState},
    settings::Settings,
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
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::Arc,
    time::Duration,
};

/// The length of the receive buffer in bytes; each worker has one buffer. Most requests are far shorter.
const INPUT_BYTES: usize = pollux_tls::RECORD_MAX;
/// The maximum number of reads of one connection for one event; then the engine serves other connections.
const READS_PER_EVENT: usize = 4;
/// The maximum number of reads, each of up to 16 KiB, from a connection that is broken.
const LAST_READS: usize = 64;
/// How long a connection may stay open after this side has closed its direction.
const LINGER: Duration = Duration::from_secs(5);

/// The loop of one worker.
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
    /// The receive buffer for upstream connections and tunnels; allocated when the first of them exists.
    upstream_input: Vec<u8>,
    outbox: Outbox,
    /// The number of client connections, including tunnels, streams, and connections that have not sent
    /// their PROXY protocol header yet.
    clients: usize,
    /// Connections with work that no event will report; each has the mark `QUEUED`.
    again: VecDeque<RawFd>,
    /// The changes to streams that a call of the service requires. The vector is kept to reuse its memory.
    stream_changes: Vec<streams::Change>,
    /// The nodes whose deadline has passed. The vector is kept to reuse its memory.
    due: Vec<u32>,
    /// Whether the mechanism is edge-triggered: it reports an arrival once.
    is_edge: bool,
    discipline: Discipline,
    large_file: LargeFile,
    failed_waits: FailedWaits,
    /// Idle connections that are closed when the connection limit is reached.
    idle: evict::IdleReserve,
    /// Whether idle connections stay open in this worker: no stop is requested, and no successor is taking
    /// connections over.
    keeps_idle: bool,
    /// Transfers of idle connections to a successor, or from the former server.
    transfers: transfer::Transfers,
    /// Applies a new configuration; `None` if the configuration cannot change.
    renewer: Option<Renewer<A>>,
    /// The tick at which a stop no longer waits for connections.
    stop_at: Option<u32>,
}

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Opens the mechanism and adds the listeners and the inbox to it.
    pub(crate) fn new(
        config: &Settings,
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

    /// Lets a successor take the connections over. `worker` is the number of this worker in its reports to
    /// the main thread.
    pub(crate) fn with_reports(self, worker: usize, reports: Reports) -> Self {
        Self { transfers: transfer::Transfers::new(worker, reports), ..self }
    }

    /// Runs until a stop has been requested and has completed. Returns the last statistics.
    pub(crate) fn run(mut self) -> anyhow::Result<Statistics> {
        let mut looks_again = false;
        loop {
            let timeout = self.timeout();
            // Read before the wait: events that occurred before the command are normally reported by this
            // wait, so the answer includes them.
            let is_pending = self.inbox.is_raised();
            let happened = self.wait(timeout)?;
            self.worker.counters.add(Counter::Waits, 1);
            self.worker.clock.update();
            self.rules.begin_iteration();
            while let Some(event) = self.mechanism.next_event() {
                self.worker.counters.add(Counter::Events, 1);
                self.dispatch(event);
                self.pump_burst();
            }
            if is_pending && self.inbox.is_raised() {
                self.handle_inbox();
            }
            self.run_queued();
            // After a suspension of the process (SIGSTOP), the wait is interrupted and the deadlines have
            // passed: input that arrived during the suspension is handled first.
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
                self.say_end_to_origins();
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
            Need::Receive(_) if event.readiness.is_writable() => self.on_room(fd),
            Need::Receive(_) => {}
            need => self.on_event_meanwhile(fd, need, event.readiness),
        }
    }

    /// Dispatches an event of a peer that is not an HTTP client.
    #[cold]
    fn dispatch_beside(&mut self, fd: RawFd, readiness: Readiness) {
        match self.table.get_mut(fd).map(|slot| &slot.peer) {
            Some(&Peer::Upstream(index)) => self.on_upstream_event(fd, index, readiness),
            Some(Peer::Tunnel(_)) => self.on_tunnel_event(fd, readiness),
            Some(Peer::Stream(_)) => self.on_stream_event(fd, readiness),
            Some(Peer::Parked(_)) => self.on_parked_event(fd, readiness),
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
                WorkerCommand::Statistics(number) => self.inbox.report(number, self.statistics()),
                WorkerCommand::Stop { grace } => self.stop(grace),
                // Waking the loop is enough: each iteration checks the streams.
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

    /// Handles an event of a connection that waits for something else.
    #[cold]
    fn on_event_meanwhile(&mut self, fd: RawFd, need: Need, readiness: Readiness) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        if readiness.is_readable() {
            slot.marks |= Marks::INPUT_WAITS;
        }
        match need {
            Need::Send if readiness.is_writable() => self.send_parked(fd),
            // The client has disconnected, so no response can reach it.
            Need::Service if readiness.intersects(Readiness::HANGUP | Readiness::ERROR) => {
                self.close(fd);
            }
            Need::Service if readiness.is_readable() => self.receive_meanwhile(fd),
            // The connection is already queued, or the event needs no action.
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
        // A change of interest makes an edge-triggered mechanism check readiness again. Per-state interest
        // relies on this.
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

    /// Returns whether interest is registered once, for both directions, and never changed.
    fn registers_once(&self) -> bool {
        self.is_edge && self.discipline == Discipline::Eager
    }

    /// Removes all interest: a level-triggered mechanism would report unread input at every wait.
    fn disable_read(&mut self, fd: RawFd) {
        if !self.registers_once() {
            self.change_interest(fd, Marks::empty(), false);
        }
    }

    /// Changes the interest to `wanted`. Returns whether the connection is still open.
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
        let outcome = if slot.marks.contains(Marks::DISREGARDED)
            && let Some(socket) = slot.socket()
        {
            let added = self.mechanism.add(socket, interest);
            added.map(|token| slot.register(token))
        } else {
            self.mechanism.modify(slot.token(fd), interest)
        };
        if let Err(error) = outcome {
            tracing::warn!("closing a connection, its interest cannot be changed: {error}");
            self.end_peer(fd);
            return false;
        }
        true
    }

    /// Takes an upstream connection or one end of a tunnel out of the interest set after an error or a hang-up,
    /// if nothing is received from it or sent to it for now: a level-triggered mechanism would report it at every
    /// wait. The next change of its interest adds it again.
    #[cold]
    fn disregard(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let rest = Marks::READS | Marks::WRITES | Marks::DISREGARDED;
        if !slot.marks.intersects(rest) && self.mechanism.remove(slot.token(fd)).is_ok() {
            slot.marks |= Marks::DISREGARDED;
        }
    }

    /// Closes or requeues the connection if that is due. Otherwise sets the timeout of what the connection
    /// waits for.
    #[inline]
    fn rearm(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let Peer::Client(connection) = &mut slot.peer else { return };
        let need = connection.need();
        let is_idle = need == Need::Receive(Awaits::Next);
        let has_part = is_idle && slot.transport().is_some_and(|it| it.has_part_of_record());
        let Peer::Client(connection) = &mut slot.peer else { return };
        let class = match need {
            // Otherwise a client could send records in single bytes, each of which begins the timeout anew.
            Need::Receive(Awaits::Next) if has_part => Class::Header,
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
        // Only a new request or a large piece of a body postpones the deadline; a single byte does not.
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
            // The connection was registered for room in the socket, which a level-triggered mechanism would report at
            // every wait.
            Class::Service if former == Class::Send => {
                slot.timer.disarm();
                return self.read_again(fd);
            }
            Class::Service
            | Class::Dial
            | Class::Upstream
            | Class::Tunnel
            | Class::Stream
            | Class::Parked => {
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

    /// Waits for input again after the service or the peer has completed what the connection waited for.
    #[cold]
    fn read_again(&mut self, fd: RawFd) {
        self.wait_to_read(fd);
        self.requeue_for_input(fd);
    }

    /// Queues a connection whose input no event will report again. A direct call would grow the stack.
    #[cold]
    fn requeue_for_input(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        // A level-triggered mechanism reports input in the socket again, but not what the transport keeps: with TLS the
        // end of the stream may have arrived together with the request.
        let is_unreported =
            self.is_edge || slot.transport().is_some_and(|transport| transport.keeps_input());
        if is_unreported && slot.marks.contains(Marks::INPUT_WAITS) {
            self.requeue(fd);
        }
    }

    /// Closes this side's direction after all output was sent. No further request is accepted, and the peer
    /// may still be sending.
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

    fn client(&mut self, fd: RawFd) -> Option<&mut Connection<A::Exchange>> {
        self.table.get_mut(fd)?.client()
    }

    /// Returns whether an exchange still waits for something.
    fn is_running(&mut self, exchange: ExchangeId) -> bool {
        let slot = self.table.get_mut(exchange.client.fd);
        let slot = slot.filter(|slot| slot.generation() == exchange.client.generation);
        slot.and_then(|slot| slot.client()).is_some_and(|c| c.is_running(exchange.number))
    }

    /// Sets a deadline for a node of the timer wheel.
    fn arm(&mut self, node: u32, deadline: u32) {
        let nodes = &mut Timers { table: &mut self.table, reactor: &mut self.reactor };
        self.timers.arm(nodes, node, deadline);
    }

    /// Puts a connection on the list of connections with remaining work, once.
    fn requeue(&mut self, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        if !slot.marks.contains(Marks::QUEUED) {
            slot.marks |= Marks::QUEUED;
            self.again.push_back(fd);
        }
    }

    /// Continues the work of each connection on the list, once.
    #[inline]
    fn run_queued(&mut self) {
        for _ in 0..self.again.len() {
            let Some(fd) = self.again.pop_front() else { break };
            // The descriptor may have been closed and reused; then this acts as a spurious event.
            let Some(slot) = self.table.get_mut(fd) else { continue };
            slot.marks -= Marks::QUEUED;
            match &slot.peer {
                Peer::Client(connection) => match connection.need() {
                    // A further iteration also processes input that was received before.
                    Need::Send | Need::Requeue => self.send_parked(fd),
                    Need::Service => self.receive_meanwhile(fd),
                    _ => self.receive(fd),
                },
                &Peer::Upstream(index) => self.resume_upstream(fd, index),
                Peer::Tunnel(_) => self.push(fd),
                Peer::Stream(_) => self.on_stream_event(fd, Readiness::READABLE),
                Peer::Parked(_) => self.on_parked_event(fd, Readiness::READABLE),
                Peer::Preamble(_) => self.on_preamble_event(fd),
                Peer::Notifier | Peer::None => {}
            }
            self.pump_burst();
        }
        self.accept_more();
    }

    fn statistics(&self) -> Statistics {
        let counters = &self.worker.counters;
        Statistics {
            counts: counters.read(),
            cache: None,
            hub: None,
            system_calls: self.inbox.system_calls(),
            mechanism: self.mechanism.statistics().into_iter().collect(),
        }
    }
}
