//! Performs the commands of services, in the same way for every engine: upstream connections are dialled,
//! written to and closed, alarms are set, names are resolved, and exchanges are woken. Each engine decides
//! how it waits for an upstream connection and when it receives on one.

use super::{
    dial::{connect, kind_of},
    resolver::known,
    transmit::{SendOutcome, transmit},
};
use crate::{
    config::LargeFile,
    reactor::{
        AlarmId, Command, Endpoint, EventTarget, ExchangeId, HandOver, Question, ResolveError,
        UpstreamConnection, UpstreamError, UpstreamId, UpstreamState,
    },
    service::{Event, Service, ServiceContext},
    transport::{Transport, tls::HandshakeStep},
};
use pollux_sys as sys;
use socket2::SockRef;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
};

/// The maximum number of rounds of commands in one call, when commands lead to further commands. Then the
/// engine serves connections.
const PASSES: usize = 4;
/// The maximum number of commands in one call; then the engine serves connections. Waking an exchange means
/// writing to its connection, and a service may wake very many exchanges at once.
const COMMANDS_PER_ITERATION: usize = 1024;
/// The length in bytes of the receive buffer for all upstream connections of an engine. It has room for a
/// whole TLS record.
pub(super) const UPSTREAM_INPUT_BYTES: usize = pollux_tls::RECORD_MAX;

/// The part of an engine that handles upstream connections, alarms and wake-ups. The blocking engine supports
/// only what a guestbook needs (`engine::blocking`).
pub(super) trait UpstreamDriver: Sized {
    /// The service that the engine drives.
    type Service: Service;

    /// Returns the service, and the context for calls that concern no exchange.
    fn parts(&mut self) -> (&mut Self::Service, ServiceContext<'_>);

    /// Returns an upstream connection and its transport, once it has one.
    fn upstream(&mut self, id: UpstreamId) -> Option<(&mut UpstreamConnection, &mut Transport)>;

    /// Calls the service for the exchange of a client. Returns whether the exchange still exists.
    fn wake_exchange(&mut self, id: ExchangeId, event: Event<'_>) -> bool;

    /// Sets the alarm to expire at this tick.
    fn arm_alarm(&mut self, id: AlarmId, tick: u32);

    /// Starts to resolve a name. The receiver that the question names gets the answer later.
    ///
    /// # Errors
    /// The reason why the lookup cannot be started.
    fn resolve_beside(&mut self, question: Question) -> Result<(), ResolveError>;

    /// Passes the client of an exchange to another process.
    fn pass_on_client(&mut self, what: &HandOver);

    /// Makes a tunnel of the client of an exchange and an upstream connection.
    fn make_tunnel(&mut self, exchange: ExchangeId, upstream: UpstreamId);

    /// Makes the client of an exchange a stream of the service. `number` is the service's number for it.
    fn make_stream(&mut self, exchange: ExchangeId, number: u32);

    /// Parks an exchange, if this engine can and the exchange only waits.
    fn park_exchange(&mut self, exchange: ExchangeId, ticks: u32);

    /// Stores the transport of an upstream connection that must be connected by this tick, and waits for
    /// the connection.
    /// The mechanism cannot wait for the transport.
    fn hold(&mut self, id: UpstreamId, transport: Transport, deadline: u32) -> io::Result<()>;

    /// Waits until the TLS handshake of an upstream connection can continue: for input, or for room in the
    /// socket.
    fn await_handshake(&mut self, fd: RawFd, needs_room: bool);

    /// Removes the deadline of an upstream connection, because it is connected.
    fn set_connected(&mut self, id: UpstreamId, fd: RawFd);

    /// Called after the service has received `Connected` for the upstream connection.
    fn after_connect(&mut self, id: UpstreamId, fd: RawFd) {
        let _ = (id, fd);
    }

    /// Called after output was sent on the upstream connection: the interest may have changed. With
    /// `is_paused`, the socket may have room for more, but other connections are served first.
    fn after_send(&mut self, id: UpstreamId, fd: RawFd, is_paused: bool) {
        let _ = (id, fd, is_paused);
    }

    /// Receives what has arrived on an upstream connection before it broke: the peer may have answered before
    /// it closed the connection. Called after a send has failed.
    fn receive_last(&mut self, id: UpstreamId) {
        let _ = id;
    }

    /// Closes the transport of an upstream connection that has ended.
    fn close_upstream(&mut self, id: UpstreamId, fd: RawFd);

    /// Returns how a head and a file share TCP segments.
    fn large_file(&self) -> LargeFile;

    /// Counts the bytes that were sent.
    fn count_sent(&mut self, bytes: u64);

    /// Performs the commands of the service.
    #[inline]
    fn perform(&mut self) {
        if self.parts().1.reactor.pending_commands() > 0 {
            self.perform_commands();
        }
    }

    #[cold]
    fn perform_commands(&mut self) {
        let mut left = COMMANDS_PER_ITERATION;
        for _ in 0..PASSES {
            for _ in 0..self.parts().1.reactor.pending_commands() {
                if left == 0 {
                    return;
                }
                left -= 1;
                let context = self.parts().1;
                let Some(command) = context.reactor.next_command() else { return };
                match command {
                    Command::Upstream(id) => self.attend(id),
                    Command::Alarm(id) => {
                        if let Some((_, ticks)) = context.reactor.alarms.get(id) {
                            let tick = context.worker.clock.after(ticks);
                            self.arm_alarm(id, tick);
                        }
                    }
                    Command::Wake(exchange, reason) => {
                        self.deliver(EventTarget::Exchange(exchange), Event::Woken(reason));
                    }
                    Command::Resolve(question) => self.resolve(question),
                    Command::HandOver(what) => self.pass_on_client(&what),
                    Command::Tunnel(exchange, upstream) => self.make_tunnel(exchange, upstream),
                    Command::Stream(exchange, number) => self.make_stream(exchange, number),
                    Command::Park(exchange, ticks) => self.park_exchange(exchange, ticks),
                }
            }
        }
    }

    /// Delivers an event. Returns whether the receiver still exists.
    fn deliver(&mut self, to: EventTarget, event: Event<'_>) -> bool {
        match to {
            EventTarget::Service => {
                let (service, mut context) = self.parts();
                service.event(&mut context, event);
                true
            }
            EventTarget::Exchange(id) if id.is_background() => {
                let (service, mut context) = self.parts();
                service.background(&mut context, id, event)
            }
            EventTarget::Exchange(id) => self.wake_exchange(id, event),
        }
    }

    /// Resolves a name. The answer is delivered later. It is delivered at once if the name is an address,
    /// or if the lookup cannot be started.
    fn resolve(&mut self, question: Question) {
        let (to, id) = (question.to, question.id);
        if let Some(answer) = known(&question) {
            self.deliver(to, Event::Resolved(id, answer));
        } else if let Err(error) = self.resolve_beside(question) {
            self.deliver(to, Event::Resolved(id, Err(error)));
        }
    }

    /// Performs the pending commands for an upstream connection.
    fn attend(&mut self, id: UpstreamId) {
        let Some(upstream) = self.parts().1.reactor.upstreams.get(id) else { return };
        match upstream.adapter.clone() {
            _ if upstream.is_closed => self.end_upstream(id),
            UpstreamState::ToDial(endpoint, timeout) => {
                if let Err(error) = self.dial(id, &endpoint, timeout) {
                    self.fail_upstream(id, kind_of(&error).into());
                }
            }
            UpstreamState::Connecting(_) | UpstreamState::Handshaking(_) => {}
            UpstreamState::Open(fd) => self.send_on_upstream(id, fd),
        }
    }

    fn dial(&mut self, id: UpstreamId, endpoint: &Endpoint, timeout: u32) -> io::Result<()> {
        let socket = connect(endpoint)?;
        let transport = match endpoint {
            Endpoint::Tls(..) => Transport::Tls(socket),
            Endpoint::Tcp(_) | Endpoint::Unix(_) | Endpoint::Connected(_) => {
                Transport::Plain(socket)
            }
        };
        let fd = transport.as_raw_fd();
        let deadline = self.parts().1.worker.clock.after(timeout);
        self.hold(id, transport, deadline)?;
        if let Some(upstream) = self.parts().1.reactor.upstreams.get_mut(id) {
            upstream.adapter = UpstreamState::Connecting(fd);
        }
        Ok(())
    }

    /// Handles an event of an upstream connection that is being established.
    fn see_whether_connected(&mut self, id: UpstreamId, fd: RawFd) {
        let Some((upstream, transport)) = self.upstream(id) else { return };
        if let Err(error) = sys::take_socket_error(transport.as_fd()) {
            return self.fail_upstream(id, error.kind().into());
        }
        // The event may have been spurious.
        if SockRef::from(&*transport).peer_addr().is_err() {
            return;
        }
        let Some(peer) = upstream.tls.take() else { return self.set_open(id, fd) };
        upstream.adapter = UpstreamState::Handshaking(fd);
        match transport.begin_tls(&peer) {
            Ok(()) => self.shake_hands(id, fd),
            Err(error) => self.fail_upstream(id, UpstreamError::of(&error)),
        }
    }

    /// Continues the TLS handshake of an upstream connection.
    fn shake_hands(&mut self, id: UpstreamId, fd: RawFd) {
        let Some((_, transport)) = self.upstream(id) else { return };
        match transport.shake_hands() {
            Ok(HandshakeStep::Done) => self.set_open(id, fd),
            Ok(step) => self.await_handshake(fd, step == HandshakeStep::NeedsRoom),
            Err(error) => self.fail_upstream(id, UpstreamError::of(&error)),
        }
    }

    /// Marks an upstream connection as ready for use, and notifies its receiver.
    fn set_open(&mut self, id: UpstreamId, fd: RawFd) {
        let Some((upstream, _)) = self.upstream(id) else { return };
        upstream.adapter = UpstreamState::Open(fd);
        let to = upstream.to;
        self.set_connected(id, fd);
        if !self.deliver(to, Event::Connected(id)) {
            return self.end_upstream(id);
        }
        self.attend(id);
        self.after_connect(id, fd);
    }

    fn send_on_upstream(&mut self, id: UpstreamId, fd: RawFd) {
        let large_file = self.large_file();
        let Some((upstream, transport)) = self.upstream(id) else { return };
        upstream.is_owed_room |= upstream.output.is_full();
        let (outcome, sent) = transmit(transport, &mut upstream.output, large_file);
        let outcome = match outcome {
            Ok(SendOutcome::All) if upstream.is_finished && !upstream.has_shut => {
                upstream.has_shut = true;
                transport.shut().map(|()| SendOutcome::All)
            }
            outcome => outcome,
        };
        let has_room = outcome.is_ok() && upstream.output.is_low();
        let notifies = has_room && std::mem::take(&mut upstream.is_owed_room);
        let to = upstream.to;
        self.count_sent(sent);
        let is_paused = match outcome {
            Ok(sent) => matches!(sent, SendOutcome::Paused),
            Err(error) => {
                self.receive_last(id);
                return self.fail_upstream(id, UpstreamError::of(&error));
            }
        };
        if notifies && !self.deliver(to, Event::UpstreamRoom(id)) {
            return self.end_upstream(id);
        }
        self.after_send(id, fd, is_paused);
    }

    /// Closes an upstream connection, and delivers the reason to its receiver.
    fn fail_upstream(&mut self, id: UpstreamId, why: UpstreamError) {
        let Some(upstream) = self.parts().1.reactor.upstreams.get(id) else { return };
        let (to, is_closed) = (upstream.to, upstream.is_closed);
        self.end_upstream(id);
        // A service that has closed the connection expects no further event of it.
        if !is_closed {
            self.deliver(to, Event::Failed(id, why));
        }
    }

    /// Closes and removes an upstream connection.
    fn end_upstream(&mut self, id: UpstreamId) {
        if let Some((UpstreamConnection { adapter: UpstreamState::Open(_), .. }, transport)) =
            self.upstream(id)
        {
            transport.say_end();
        }
        let Some(upstream) = self.parts().1.reactor.upstreams.remove(id) else { return };
        if let Some(fd) = upstream.adapter.fd() {
            self.close_upstream(id, fd);
        }
    }
}
