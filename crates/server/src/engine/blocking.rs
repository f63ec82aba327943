//! The blocking engine: it serves one connection at a time, from its first byte to its end.
//!
//! It serves files and the guestbook, for the comparison of architectures. Its upstream connections are
//! those that a guestbook needs: to Redis, and to the thread of a file store. It has no tunnels, hand-overs,
//! streams, TLS to upstream servers or paused upstream connections; [`Settings::check`] reports services that
//! need them.
//!
//! It blocks in ppoll(2) over the few descriptors that the connection may wait for: the client, the
//! notifier that signals a stop, and the upstream connections of the service. So a slow client occupies the
//! worker's thread, but no longer than the timeouts allow. All architectures that use this engine have this
//! cost; the event engine does not have it.
//!
//! For a client that sends requests in quick succession, it blocks in recv(2) itself, which saves one call
//! (`brisk.rs`).

mod accept;
mod admit;
mod brisk;
mod evict;
mod names;
mod upstreams;

use super::{
    transmit::{SendOutcome, transmit},
    upstreams::UpstreamDriver as _,
};
use crate::{
    config::{IdleEviction, LargeFile, SEND_PROGRESS_BYTES},
    log,
    protocol::{Awaits, Connection, Iteration, Need, rules::Rules},
    reactor::{AlarmId, ClientId, Reactor, UpstreamId},
    service::{Adapter, Event, Service, worker_state::WorkerState},
    settings::Settings,
    stats::{Counter, Statistics, scoreboard::ScoreboardSlot},
    time::clock::ticks,
    transport::{Transport, listener, outbox::Outbox},
};
use accept::Acceptor;
pub(crate) use accept::{NO_SET, RETRY};
use brisk::Pace;
use evict::Eviction;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT};
use names::Names;
use pollux_sys::{self as sys, Counters, PollFd, WakeMask};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::Arc,
    time::Duration,
};

/// The length of the receive buffer in bytes. Most requests are far shorter.
const INPUT_BYTES: usize = pollux_tls::RECORD_MAX;
/// How long a connection may stay open after this side has closed its direction.
const LINGER: Duration = Duration::from_secs(5);

/// The engine of one worker, which is a thread or a process.
pub(crate) struct Blocking<A: Service> {
    service: A,
    rules: Arc<Rules>,
    worker: WorkerState,
    /// The commands of the service.
    reactor: Reactor,
    upstreams: Vec<UpstreamTransport>,
    alarms: Vec<(u32, AlarmId)>,
    names: Names,
    client: Option<Client<A::Exchange>>,
    acceptor: Acceptor,
    input: Box<[u8]>,
    upstream_input: Vec<u8>,
    outbox: Outbox,
    polled: Vec<PollFd>,
    /// The number of iterations of the connection. If it has changed, the connection may need something
    /// else now.
    iterations: u64,
    large_file: LargeFile,
    slot: ScoreboardSlot,
    generation: u32,
    /// The system calls of this thread before this worker began: the counts of a forked child begin with
    /// those of its parent.
    calls_before: Counters,
    /// The tick at which a stop no longer waits for the connection.
    stop_at: Option<u32>,
    /// `None` if idle clients are not evicted.
    eviction: Option<Eviction>,
    /// The signal mask with which another worker can end the next wait, if it may.
    wake_mask: Option<WakeMask>,
}

/// The client, and the state of its connection.
struct Client<X> {
    transport: Transport,
    id: ClientId,
    connection: Connection<X>,
    /// Whether the connection is to be closed, for example because sending or receiving has failed.
    is_broken: bool,
    /// The class of the deadline, the number of requests when it was set, and its tick.
    timer: Option<(Class, u32, u32)>,
    pace: Pace,
}

/// The transport of an upstream connection.
struct UpstreamTransport {
    id: UpstreamId,
    transport: Transport,
    /// The tick by which it must be connected; `None` once it is.
    deadline: Option<u32>,
}

/// The purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Header,
    KeepAlive,
    Send,
    Linger,
}

impl<A: Service> Blocking<A> {
    /// Creates the engine of one worker, which shows its statistics in `slot`.
    pub(crate) fn new(
        config: &Settings,
        service: A,
        (rules, worker): (Arc<Rules>, WorkerState),
        slot: ScoreboardSlot,
        calls_before: Counters,
    ) -> Self {
        Self {
            service,
            rules,
            worker,
            reactor: Reactor::default(),
            upstreams: Vec::new(),
            alarms: Vec::new(),
            names: Names::default(),
            client: None,
            acceptor: Acceptor::default(),
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            upstream_input: Vec::new(),
            outbox: Outbox::default(),
            polled: Vec::new(),
            iterations: 0,
            large_file: config.large_file,
            slot,
            generation: 0,
            calls_before,
            stop_at: None,
            eviction: (config.idle_eviction == IdleEviction::On).then(Eviction::new),
            wake_mask: None,
        }
    }

    /// Serves a connection to its end.
    pub(crate) fn serve(&mut self, socket: OwnedFd) {
        self.begin(socket);
        // A client that was just accepted has normally sent its request already.
        self.receive();
        while !self.is_over() {
            let Some(client) = self.client.as_ref().filter(|client| !client.is_broken) else {
                break;
            };
            match client.connection.need() {
                Need::Close => break,
                Need::Linger => self.linger(),
                Need::Receive(awaits) => {
                    if !self.receive_next(awaits) {
                        break;
                    }
                }
                Need::Send => {
                    if self.wait_for_client(Some(Class::Send), POLLOUT) != 0 {
                        self.send_rest();
                    }
                }
                Need::Service => self.wait_for_application(),
                Need::Requeue => {
                    self.wait_until(&[], Some(self.worker.clock.tick()));
                    self.iterate(|iteration, rules, adapter, _| iteration.go_on(rules, adapter));
                }
            }
        }
        self.end();
    }

    fn begin(&mut self, socket: OwnedFd) {
        self.worker.clock.update();
        if let Some(log) = &mut self.worker.log {
            // The address is read once for each connection: later the kernel may no longer know it.
            log.peer = log::Peer::Known(listener::peer(socket.as_fd()));
        }
        self.generation = self.generation.wrapping_add(1);
        let id = ClientId { fd: socket.as_raw_fd(), generation: self.generation };
        self.rules.begin_iteration();
        let Some(transport) = self.admit(socket) else { return };
        self.worker.counters.add(Counter::Accepted, 1);
        self.client = Some(Client {
            transport,
            id,
            connection: Connection::default(),
            is_broken: false,
            timer: None,
            pace: Pace::default(),
        });
    }

    fn end(&mut self) {
        let Some(mut client) = self.client.take() else { return };
        self.forget_idle();
        let Self { service, rules, worker, reactor, .. } = self;
        if client.connection.has_ended_well() && !client.is_broken {
            client.transport.say_end();
        } else if client.connection.needs_reset() {
            client.transport.reset_on_close();
        }
        let (id, socket) = (client.id, None);
        let mut adapter = Adapter { service, rules, worker, reactor, client: id, socket };
        client.connection.abandon(&mut adapter);
        sys::close(client.transport.into_socket());
        self.worker.clients.leave(self.rules.guard.as_deref(), id.fd);
        self.worker.counters.add(Counter::Closed, 1);
        // Perform the commands that the service gave while the exchange ended.
        self.perform();
        self.show();
    }

    /// Completes the worker's remaining work: the service's commands, its statistics, its log.
    pub(crate) fn finish(mut self) {
        self.perform();
        self.show();
    }

    /// Waits for input and receives it. Returns whether the connection continues.
    fn receive_next(&mut self, awaits: Awaits) -> bool {
        let is_idle = self.client.as_ref().is_some_and(|client| client.connection.is_idle());
        if self.worker.is_stopping && is_idle {
            // The socket may already contain a request, which is also in flight.
            return self.receive();
        }
        let class = match awaits {
            Awaits::Request => Class::Header,
            // Part of a request's record.
            Awaits::Next if self.has_part_of_record() => Class::Header,
            Awaits::Next => Class::KeepAlive,
            Awaits::End => Class::Linger,
        };
        if class != Class::Linger
            && self.client.as_ref().is_some_and(|client| client.transport.has_ended())
        {
            self.receive();
            return true;
        }
        if class != Class::Linger && self.receive_in_one_call(class) {
            return true;
        }
        let begun = self.worker.clock.tick();
        if self.wait_for_client(Some(class), POLLIN) != 0 {
            self.note_pace(begun);
            self.receive();
        }
        true
    }

    fn has_part_of_record(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.transport.has_part_of_record())
    }

    /// Receives available input once, and answers it. Returns whether there was any input.
    fn receive(&mut self) -> bool {
        let Some(client) = &mut self.client else { return false };
        let outcome = client.transport.receive(&mut self.input);
        self.take_input(outcome)
    }

    /// Answers the input that recv(2) returned. Returns whether there was any input.
    fn take_input(&mut self, outcome: io::Result<usize>) -> bool {
        let Some(client) = &mut self.client else { return false };
        match outcome {
            Ok(0) => self.end_of_input(),
            Ok(received) => self.iterate(|iteration, rules, adapter, input| {
                iteration.receive(rules, adapter, &input[..received]);
            }),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                io::ErrorKind::Interrupted => {}
                _ => client.is_broken = true,
            },
        }
        true
    }

    fn end_of_input(&mut self) {
        let Some(client) = &mut self.client else { return };
        let is_first = !client.connection.has_ended();
        client.connection.end_of_input();
        if is_first && client.connection.need() == Need::Service {
            self.wake(Event::ClientEnded);
        }
    }

    /// Waits for an event that the service has requested for the exchange.
    fn wait_for_application(&mut self) {
        let Some(client) = &mut self.client else { return };
        if client.connection.iteration(&mut self.outbox).takes_owed_room() {
            return self.wake(Event::Room);
        }
        let events = if client.connection.takes_input() { POLLIN } else { 0 };
        let happened = self.wait_for_client(None, events);
        let Some(client) = &mut self.client else { return };
        if happened & (POLLHUP | POLLERR) != 0 {
            // The client has disconnected, so no response can reach it.
            client.is_broken = true;
        } else if happened & POLLIN != 0 && client.connection.takes_input() {
            self.receive();
        }
    }

    /// Calls the service for the exchange of the connection.
    fn wake(&mut self, event: Event<'_>) {
        self.iterate(|iteration, rules, adapter, _| {
            iteration.resume(rules, adapter, |adapter, terms, exchange, outbox| {
                adapter.wake(terms, exchange, event, outbox)
            });
        });
    }

    /// Performs one iteration of the connection: calls `act`, then sends as much of the output as the
    /// socket takes.
    fn iterate(
        &mut self,
        act: impl FnOnce(&mut Iteration<'_, A::Exchange>, &Rules, &mut Adapter<'_, A>, &[u8]),
    ) {
        let Self { service, rules, worker, reactor, client, outbox, input, .. } = self;
        let Some(client) = client else { return };
        self.iterations += 1;
        let (id, socket) = (client.id, Some(client.transport.as_fd()));
        let mut adapter = Adapter { service, rules, worker, reactor, client: id, socket };
        let mut iteration = client.connection.iteration(outbox);
        act(&mut iteration, rules, &mut adapter, input);
        let output = iteration.output();
        if output.is_empty() {
            return;
        }
        if output.has_file() {
            client.pace.stop(client.transport.as_fd());
        }
        let (outcome, sent) = transmit(&mut client.transport, output, self.large_file);
        self.worker.counters.add(Counter::BytesSent, sent);
        client.is_broken |= outcome.is_err();
    }

    /// Sends stored output. When all of it was sent, continues with the input.
    fn send_rest(&mut self) {
        let Some(client) = &mut self.client else { return };
        let mut iteration = client.connection.iteration(&mut self.outbox);
        if iteration.output().has_file() {
            client.pace.stop(client.transport.as_fd());
        }
        let (outcome, sent) = transmit(&mut client.transport, iteration.output(), self.large_file);
        self.worker.counters.add(Counter::BytesSent, sent);
        let has_progressed = iteration.record_sent(sent, SEND_PROGRESS_BYTES);
        let has_room = iteration.takes_owed_room();
        drop(iteration);
        match outcome {
            Err(_) => return client.is_broken = true,
            Ok(SendOutcome::All) => {}
            Ok(_) if has_progressed => client.timer = None,
            Ok(_) => {}
        }
        if has_room {
            self.wake(Event::Room);
        } else if matches!(outcome, Ok(SendOutcome::All)) {
            self.iterate(|iteration, rules, adapter, _| iteration.go_on(rules, adapter));
        }
    }

    fn linger(&mut self) {
        let Some(client) = &mut self.client else { return };
        client.connection.linger();
        client.is_broken |= match client.connection.is_cut() {
            true => client.transport.cut().is_err(),
            false => client.transport.shut().is_err(),
        };
    }

    /// Waits for `events` of the client until its deadline, and then handles the timeout. Returns the
    /// events that have occurred.
    fn wait_for_client(&mut self, class: Option<Class>, events: i16) -> i16 {
        let Some(deadline) = self.begin_time(class) else { return 0 };
        let Some(client) = &self.client else { return 0 };
        let fd = client.transport.as_raw_fd();
        if class == Some(Class::KeepAlive) && self.eviction.is_some() {
            return self.wait_while_idle(fd, deadline);
        }
        self.wait_until(&[(fd, events)], deadline);
        self.polled[1].revents
    }

    /// Sets the deadline of a wait, or keeps the current one. Returns the deadline, or `None` if it has
    /// passed: then the timeout has already been handled.
    fn begin_time(&mut self, class: Option<Class>) -> Option<Option<u32>> {
        let client = self.client.as_mut()?;
        let requests = client.connection.requests();
        // Only a new request or a large piece of a body postpones the deadline; a single byte received or
        // sent does not.
        let has_moved = class == Some(Class::Header) && client.connection.takes_progress();
        let timer = class.map(|class| match client.timer {
            Some(timer) if (timer.0, timer.1) == (class, requests) && !has_moved => timer,
            _ => {
                let timeouts = &self.rules.timeouts;
                let timeout = match class {
                    Class::Header => timeouts.header,
                    Class::KeepAlive => timeouts.keep_alive,
                    Class::Send => timeouts.send,
                    Class::Linger => ticks(LINGER),
                };
                (class, requests, self.worker.clock.after(timeout))
            }
        });
        client.timer = timer;
        if let Some((class, _, deadline)) = timer
            && self.worker.clock.tick() >= deadline
        {
            self.on_timeout(class);
            return None;
        }
        Some(timer.map(|(.., deadline)| deadline))
    }

    #[cold]
    fn on_timeout(&mut self, class: Class) {
        let Some(client) = &mut self.client else { return };
        client.timer = None;
        if class == Class::Send {
            let unsent = client.transport.unacknowledged();
            if unsent.is_ok_and(|unsent| client.connection.has_taken(unsent, SEND_PROGRESS_BYTES)) {
                return;
            }
        }
        match class {
            Class::Linger => return client.is_broken = true,
            Class::KeepAlive => client.is_broken = true,
            Class::Header => self.iterate(|iteration, _, adapter, _| iteration.on_timeout(adapter)),
            Class::Send => {
                // The kernel may continue to send its buffer, but for no longer than the timeout.
                let timeout = crate::time::clock::TICK * self.rules.timeouts.send;
                client.transport.limit_unsent_time(timeout);
                client.is_broken = true;
            }
        }
        self.worker.counters.add(Counter::TimedOut, 1);
    }

    /// Waits for an event of one of `wanted`, of an upstream connection or of an alarm, or until the tick
    /// `deadline`. Handles the events of upstream connections and alarms, and a stop. The events of
    /// `wanted` are in `polled`, from index 1 on.
    fn wait_until(&mut self, wanted: &[(RawFd, i16)], deadline: Option<u32>) {
        let before = self.iterations;
        self.perform();
        self.polled.clear();
        let notifier = self.slot.notifier(self.worker.is_stopping).as_raw_fd();
        for &(fd, events) in [(notifier, POLLIN)].iter().chain(wanted) {
            self.polled.push(PollFd { fd, events, revents: 0 });
        }
        if self.iterations != before {
            // A command was performed immediately, and the exchange has continued: the event that it waited
            // for before may never occur.
            return;
        }
        self.add_upstreams();
        let names = self.add_names();
        let timeout = if self.reactor.pending_commands() > 0 {
            Some(Duration::ZERO)
        } else {
            let ticks = [deadline, self.stop_at, self.next_deadline()];
            ticks.into_iter().flatten().min().map(|tick| self.worker.clock.until(tick))
        };
        if timeout != Some(Duration::ZERO) {
            self.show();
        }
        let mut outcome = match &self.wake_mask {
            None => sys::ppoll(&mut self.polled, timeout),
            Some(mask) => sys::ppoll_wakeable(&mut self.polled, timeout, mask),
        };
        if outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
            // After a suspension of the process (SIGSTOP), the deadlines have passed: input that arrived
            // during the suspension is handled first.
            outcome = sys::ppoll(&mut self.polled, Some(Duration::ZERO));
        }
        self.worker.counters.add(Counter::Waits, 1);
        self.worker.clock.update();
        match outcome {
            Ok(ready) => self.worker.counters.add(Counter::Events, ready as u64),
            Err(error) => {
                // The wait was interrupted, or the kernel is short of memory: `revents` was not set.
                self.polled.iter_mut().for_each(|polled| polled.revents = 0);
                if error.kind() != io::ErrorKind::Interrupted {
                    std::thread::sleep(crate::time::clock::TICK);
                }
            }
        }
        if self.polled[0].revents != 0 {
            self.handle_notifier();
        }
        self.attend_upstreams(1 + wanted.len());
        self.attend_names(names);
        self.attend_alarms();
        self.perform();
    }

    /// Begins a stop, or ends its grace time.
    #[cold]
    fn handle_notifier(&mut self) {
        let left = if self.worker.is_stopping { Duration::ZERO } else { self.slot.time_left() };
        self.worker.is_stopping = true;
        self.stop_at = Some(self.worker.clock.tick().saturating_add(ticks(left)));
    }

    /// Returns whether the grace time of a stop is over.
    fn is_over(&self) -> bool {
        self.stop_at.is_some_and(|at| self.worker.clock.tick() >= at)
    }

    /// Publishes the statistics, and passes on the lines of the log.
    fn show(&mut self) {
        if let Some(log) = &mut self.worker.log {
            log.hand_over();
        }
        let counters = &self.worker.counters;
        self.rules.end_iteration(counters);
        if let Some(log) = &mut self.worker.log {
            counters.set(Counter::LogLinesDropped, log.dropped());
        }
        self.slot.show(&Statistics {
            counts: counters.read(),
            cache: None,
            hub: None,
            system_calls: sys::counters().since(&self.calls_before),
            mechanism: Default::default(),
        });
    }
}
