//! Transfers idle connections during a live upgrade, in one worker: connections leave for a worker of the
//! successor, or arrive from a worker of the former server.
//!
//! A connection that leaves is removed from the interest set and the table, but its descriptor stays open
//! until the successor has answered: if the transfer fails, this worker takes the connection back. Few
//! messages are in flight at a time, and the successor answers each one. A worker processes one message
//! between two waits, so that a request waits for no more than some hundred connections.

use super::{table::Stream, *};
use crate::{
    protocol::Framing,
    service::ServiceContext,
    stats::Counter,
    transport::Transport,
    upgrade::{
        channel::{Channel, is_full as is_full_now},
        message::{CONNECTIONS_MAX, IdleConnection, MESSAGE_HEAD, MESSAGE_MAX, Message},
        successor::{Report, Reports},
    },
};
use anyhow::{Context, bail, ensure};
use socket2::SockRef;
use std::{mem, sync::PoisonError};

/// The maximum number of messages that are sent and not answered yet. The kernel holds them, with their
/// descriptors.
const IN_FLIGHT_MAX: usize = 4;
/// The length of the buffer for an answer.
const ANSWER_BYTES: usize = 64;

/// A connection in transfer: its socket and its state.
type Parcel = (OwnedFd, IdleConnection);

/// The transfers of one worker.
pub(super) struct Transfers {
    worker: usize,
    reports: Reports,
    departure: Option<Departure>,
    adoptions: Vec<Adoption>,
    /// Sockets to close after the next wait. Until then, a mechanism may not have removed them, and closing
    /// would not remove them while another process has them open.
    closing: Vec<OwnedFd>,
}

/// The transfer of connections to the successor.
struct Departure {
    channel: Channel,
    token: Token,
    /// Connections that may be idle, to be checked.
    candidates: VecDeque<RawFd>,
    /// Connections that were removed from this worker and not sent yet.
    pending: Vec<Parcel>,
    /// Connections that were sent and not confirmed yet, one entry for each message.
    in_flight: VecDeque<Vec<Parcel>>,
    handed_over: u64,
    /// Whether the outcome was reported to the main thread.
    is_reported: bool,
    /// The tick at which to try again, after the kernel took no more.
    retry_at: Option<u32>,
}

/// The transfer of connections from the former server.
struct Adoption {
    channel: Channel,
    token: Token,
    /// Whether there may be a message that no event will report again.
    has_more: bool,
}

impl Transfers {
    /// Creates an empty value for the worker with this number. The outcome of a departure is sent to
    /// `reports` if the main thread waits for it.
    pub(super) fn new(worker: usize, reports: Reports) -> Self {
        Self { worker, reports, departure: None, adoptions: Vec::new(), closing: Vec::new() }
    }

    /// Closes, after the next wait, a socket that was removed from the interest set and that another
    /// process also has open.
    pub(super) fn close_later(&mut self, socket: OwnedFd) {
        self.closing.push(socket);
    }

    /// Returns whether there is no transfer, and no socket to close.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.departure.is_none() && self.adoptions.is_empty() && self.closing.is_empty()
    }

    /// Returns whether the streams of this service may follow the idle connections to the successor.
    pub(super) fn takes_streams_of(&self, service: &impl Service) -> bool {
        self.departure.is_some() && service.hands_over_streams()
    }

    /// Adds a connection to the candidates for departure, if connections are departing.
    #[inline]
    pub(super) fn consider(&mut self, fd: RawFd) {
        if let Some(departure) = &mut self.departure {
            departure.candidates.push_back(fd);
        }
    }

    /// Returns whether no connection is in transfer.
    pub(super) fn is_quiet(&self) -> bool {
        let departs = self.departure.as_ref().is_some_and(|departure| {
            !departure.pending.is_empty()
                || !departure.in_flight.is_empty()
                || !departure.candidates.is_empty()
        });
        !departs && self.adoptions.is_empty()
    }

    /// Returns whether a message may be waiting that no event will report.
    pub(super) fn has_more(&self) -> bool {
        self.adoptions.iter().any(|adoption| adoption.has_more)
    }

    /// Returns the tick at which to try again.
    pub(super) fn retry_at(&self) -> Option<u32> {
        self.departure.as_ref().and_then(|departure| departure.retry_at)
    }

    fn report(&self, outcome: Result<u64, String>) {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reports) = &*reports {
            // The main thread may have given up waiting.
            let _ = reports.send(Report { worker: self.worker, outcome });
        }
    }
}

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Stops accepting, and begins to send idle connections on `socket`.
    #[cold]
    pub(super) fn depart(&mut self, socket: OwnedFd) {
        let candidates = self.table.descriptors().into();
        match self.watch_channel(socket) {
            Ok((channel, token)) => {
                self.suspend_accepting();
                self.keeps_idle = false;
                self.transfers.departure = Some(Departure {
                    channel,
                    token,
                    candidates,
                    pending: Vec::new(),
                    in_flight: VecDeque::new(),
                    handed_over: 0,
                    is_reported: false,
                    retry_at: None,
                });
                self.pump_departure();
            }
            Err(error) => self.transfers.report(Err(format!("{error:#}"))),
        }
    }

    /// Begins to take over the connections that arrive on `socket`.
    #[cold]
    pub(super) fn adopt(&mut self, socket: OwnedFd) {
        match self.watch_channel(socket) {
            Ok((channel, token)) => {
                self.transfers.adoptions.push(Adoption { channel, token, has_more: true });
            }
            // The sender notices the end of the channel.
            Err(error) => tracing::error!("upgrade: no connections are taken over: {error:#}"),
        }
    }

    /// Cancels the departure: takes back the connections that were not accepted by the successor, and
    /// accepts new ones.
    #[cold]
    pub(super) fn stay(&mut self) {
        self.end_departure(Err("the upgrade is given up".to_owned()));
        self.resume_accepting();
    }

    /// Leaves the service to the successor. Requests in progress may take the time `drain`.
    #[cold]
    pub(super) fn leave(&mut self, drain: Duration) {
        self.stop_at = Some(self.worker.clock.tick().saturating_add(ticks(drain)));
        if !self.transfers.takes_streams_of(&self.service) {
            // Their clients connect again, to the successor.
            self.end_streams();
        }
        // The clients of parked exchanges follow with their next request.
        self.end_waiting();
        // Connections may wait at a listener that the successor does not have.
        self.leave_listeners();
        let candidates = self.table.descriptors();
        if let Some(departure) = &mut self.transfers.departure {
            departure.candidates.extend(candidates);
        }
    }

    /// Closes the channels of incoming connections, because this worker stops.
    #[cold]
    pub(super) fn end_transfers(&mut self) {
        for adoption in mem::take(&mut self.transfers.adoptions) {
            self.close_channel(adoption.channel, adoption.token);
        }
    }

    fn watch_channel(&mut self, socket: OwnedFd) -> anyhow::Result<(Channel, Token)> {
        SockRef::from(&socket).set_nonblocking(true)?;
        let token = self.mechanism.add(socket.as_fd(), Interest::READ)?;
        Ok((Channel::of(socket), token))
    }

    fn close_channel(&mut self, channel: Channel, token: Token) {
        let _ = self.mechanism.close(token, channel.into_socket());
    }

    /// Handles an event of a channel. Returns false if no channel has this token.
    pub(super) fn on_channel_event(&mut self, token: Token) -> bool {
        if self.transfers.departure.as_ref().is_some_and(|departure| departure.token == token) {
            self.on_answers();
            return true;
        }
        let adoption = self.transfers.adoptions.iter_mut().find(|one| one.token == token);
        adoption.map(|adoption| adoption.has_more = true).is_some()
    }

    /// Continues the transfers of connections, in both directions. Runs between two waits.
    #[cold]
    pub(super) fn pump_transfers(&mut self) {
        self.transfers.closing.clear();
        self.pump_departure();
        let mut index = 0;
        while let Some(adoption) = self.transfers.adoptions.get(index) {
            if adoption.has_more && !self.take_in_message(index) {
                let adoption = self.transfers.adoptions.remove(index);
                self.close_channel(adoption.channel, adoption.token);
            } else {
                index += 1;
            }
        }
    }

    /// Takes over the connections of one message. Returns false when there will be no further message.
    fn take_in_message(&mut self, index: usize) -> bool {
        let adoption = &mut self.transfers.adoptions[index];
        let mut buffer = vec![0; MESSAGE_MAX];
        let received = adoption.channel.receive(&mut buffer);
        buffer.fill(0); // It may have held secrets.
        let (connections, sockets) = match received {
            Ok(Some((Message::Connections(connections), sockets))) => (connections, sockets),
            Ok(None) => return false,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                adoption.has_more = false;
                return true;
            }
            Ok(Some(_)) => {
                tracing::error!("upgrade: a channel of connections brings something else: closed");
                return false;
            }
            Err(error) => {
                tracing::error!("upgrade: a channel of connections is closed: {error}");
                return false;
            }
        };
        let count = connections.len() as u16;
        for (socket, connection) in sockets.into_iter().zip(connections) {
            if self.take_over(socket, connection) {
                self.worker.counters.add(Counter::TakenOver, 1);
            }
        }
        let answer = Message::Accepted { connections: count };
        let adoption = &mut self.transfers.adoptions[index];
        match adoption.channel.send(&answer, &[]) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!("upgrade: a channel of connections is closed: {error}");
                false
            }
        }
    }

    /// Takes over an idle connection. The connection is closed if there is no room for it, or if it cannot be used
    /// here. Returns whether it was taken.
    fn take_over(&mut self, socket: OwnedFd, connection: IdleConnection) -> bool {
        let refuse = |engine: &mut Self, socket| {
            engine.worker.counters.add(Counter::Refused, 1);
            engine.transfers.close_later(socket);
            false
        };
        if !self.has_room() && !self.evict_idle() {
            return refuse(self, socket);
        }
        let fd = socket.as_raw_fd();
        let token = match self.mechanism.add(socket.as_fd(), Interest::READ) {
            Ok(token) => token,
            Err(_) => return refuse(self, socket),
        };
        if self.rules.looks_at_clients() {
            let peer = crate::transport::listener::peer_address(socket.as_fd());
            let address = connection.client.or(peer);
            if self.worker.clients.readmit(self.rules.guard.as_ref(), fd, address).is_err() {
                let _ = self.mechanism.remove(token);
                return refuse(self, socket);
            }
        }
        let transport = match self.rules.resume(socket, &connection.session) {
            Ok(transport) => transport,
            Err(socket) => {
                self.worker.clients.leave(self.rules.guard.as_deref(), fd);
                let _ = self.mechanism.remove(token);
                return refuse(self, socket);
            }
        };
        self.clients += 1;
        self.worker.counters.add(Counter::Accepted, 1);
        if !connection.stream.is_empty() {
            return self.take_over_stream(transport, token, &connection);
        }
        let client = Peer::Client(Connection::resumed(connection.requests));
        let slot = self.table.insert(transport, token, client);
        if connection.requests > 0 {
            slot.class = Class::KeepAlive;
            slot.armed_at = connection.requests as u16;
        }
        let remaining = Duration::from_millis(connection.remaining_ms.into());
        let deadline = self.worker.clock.after(ticks(remaining));
        self.arm(fd as u32, deadline);
        // This process may itself be replaced by a successor, so the connection may have to leave again.
        self.transfers.consider(fd);
        true
    }

    /// Takes over a stream. The stream is closed if the service cannot continue it; its client then
    /// connects again. Returns whether it was taken.
    fn take_over_stream(
        &mut self,
        transport: Transport,
        token: Token,
        connection: &IdleConnection,
    ) -> bool {
        let Token { fd, generation } = token;
        let framing = if connection.is_chunked { Framing::Chunked } else { Framing::Close };
        let stream = Peer::Stream(Stream::new(0, framing));
        let slot = self.table.insert(transport, token, stream);
        slot.class = Class::Stream;
        slot.timer.disarm();
        let Self { service, rules, worker, reactor, .. } = self;
        let mut context = ServiceContext { rules, worker, reactor };
        match service.adopt_stream(&mut context, ClientId { fd, generation }, &connection.stream) {
            Some(adopted) => {
                let slot = self.table.get_mut(fd);
                if let Some(Peer::Stream(stream)) = slot.map(|slot| &mut slot.peer) {
                    stream.number = adopted;
                }
                self.transfers.consider(fd);
                true
            }
            None => {
                self.close_socket(fd);
                self.client_has_gone(fd);
                false
            }
        }
    }

    /// Sends an idle connection to the successor, or closes it when the worker stops. A connection that
    /// cannot be transferred waits here for its next request.
    #[cold]
    pub(super) fn release(&mut self, fd: RawFd) {
        if self.worker.is_stopping {
            return self.close(fd);
        }
        let deadline = self.worker.clock.after(self.rules.timeouts.keep_alive);
        self.arm(fd as u32, deadline);
        match self.take_out(fd) {
            Some(parcel) => {
                if let Some(departure) = &mut self.transfers.departure {
                    departure.pending.push(parcel);
                }
            }
            None => self.wait_to_read(fd),
        }
    }

    /// Removes a connection from this worker, if it is idle and can be parked.
    fn take_out(&mut self, fd: RawFd) -> Option<Parcel> {
        let now = self.worker.clock.tick();
        let slot = self.table.get_mut(fd)?;
        if matches!(slot.peer, Peer::Stream(_)) {
            let parcel = self.take_out_stream(fd);
            if parcel.is_none() {
                self.end_if_stale(fd);
            }
            return parcel;
        }
        if slot.marks.is_left() {
            return None;
        }
        let requests = slot.client().filter(|client| client.is_idle())?.requests();
        let deadline = slot.timer.deadline()?;
        let session = slot.transport()?.park()?;
        let (transport, token) = self.table.remove(fd)?;
        let _ = self.mechanism.remove(token);
        let remaining = crate::time::clock::TICK * deadline.saturating_sub(now);
        let connection = IdleConnection {
            requests,
            remaining_ms: u32::try_from(remaining.as_millis()).unwrap_or(u32::MAX),
            client: self.worker.clients.socket_address(fd),
            session,
            stream: Vec::new(),
            is_chunked: false,
        };
        self.client_has_gone(fd);
        Some((transport.into_socket(), connection))
    }

    /// Removes a stream from this worker, if its client has taken all output.
    fn take_out_stream(&mut self, fd: RawFd) -> Option<Parcel> {
        let (transport, peer) = self.table.get_mut(fd)?.parts()?;
        let Peer::Stream(Stream { unsent: None, number, framing, .. }) = peer else { return None };
        let is_chunked = *framing == Framing::Chunked;
        if !self.service.hands_over_streams() {
            return None;
        }
        let session = transport.park()?;
        let stream = self.service.release_stream(*number)?;
        let (transport, token) = self.table.remove(fd)?;
        let _ = self.mechanism.remove(token);
        let client = self.worker.clients.socket_address(fd);
        self.client_has_gone(fd);
        let connection =
            IdleConnection { client, session, stream, is_chunked, ..IdleConnection::default() };
        Some((transport.into_socket(), connection))
    }

    /// Ends an idle stream that cannot be handed over, once the successor serves. This process learns of no further
    /// updates, and without the end the client would not connect again.
    fn end_if_stale(&mut self, fd: RawFd) {
        let is_idle = self.table.get_mut(fd).is_some_and(
            |slot| matches!(&slot.peer, Peer::Stream(stream) if stream.unsent.is_none()),
        );
        if self.stop_at.is_some() && is_idle {
            self.complete_stream(fd);
        }
    }

    /// Sends the next messages, as many as may be in flight.
    fn pump_departure(&mut self) {
        while let Some(mut departure) = self.transfers.departure.take() {
            let is_full = departure.in_flight.len() >= IN_FLIGHT_MAX
                || departure.retry_at.is_some_and(|at| at > self.worker.clock.tick());
            while !is_full && departure.pending.len() < CONNECTIONS_MAX {
                let Some(fd) = departure.candidates.pop_front() else { break };
                departure.pending.extend(self.take_out(fd));
            }
            if is_full || departure.pending.is_empty() {
                let is_over = departure.pending.is_empty()
                    && departure.in_flight.is_empty()
                    && departure.candidates.is_empty();
                if is_over && !mem::replace(&mut departure.is_reported, is_over) {
                    self.transfers.report(Ok(departure.handed_over));
                }
                self.transfers.departure = Some(departure);
                return;
            }
            departure.retry_at = None;
            let count = fitting(&departure.pending);
            let batch: Vec<_> = departure.pending.drain(..count).collect();
            let connections = batch.iter().map(|(_, connection)| connection.clone()).collect();
            let sockets: Vec<_> = batch.iter().map(|(socket, _)| socket.as_fd()).collect();
            let sent = departure.channel.send(&Message::Connections(connections), &sockets);
            match sent {
                Ok(()) => departure.in_flight.push_back(batch),
                Err(error) if is_full_now(&error) => {
                    departure.pending.extend(batch);
                    departure.retry_at = Some(self.worker.clock.after(1));
                }
                Err(error) => {
                    departure.in_flight.push_back(batch);
                    self.transfers.departure = Some(departure);
                    return self.end_departure(Err(error.to_string()));
                }
            }
            self.transfers.departure = Some(departure);
        }
    }

    /// Handles the successor's answers: closes the connections here that it has accepted.
    fn on_answers(&mut self) {
        if let Err(error) = self.take_answers() {
            self.end_departure(Err(format!("{error:#}")));
        }
        self.pump_departure();
    }

    fn take_answers(&mut self) -> anyhow::Result<()> {
        let mut buffer = [0; ANSWER_BYTES];
        while let Some(departure) = &mut self.transfers.departure {
            let connections = match departure.channel.receive(&mut buffer) {
                Ok(Some((Message::Accepted { connections }, _))) => connections,
                Ok(Some(_)) => bail!("the new process has sent an unexpected message"),
                Ok(None) => bail!("the new process takes no more connections"),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            let batch = departure.in_flight.front().context("an answer to nothing")?;
            ensure!(batch.len() == usize::from(connections), "an answer to something else");
            departure.in_flight.pop_front();
            departure.handed_over += u64::from(connections);
            self.worker.counters.add(Counter::HandedOver, connections.into());
        }
        Ok(())
    }

    /// Ends the departure. This worker takes back the connections that the successor has not accepted.
    fn end_departure(&mut self, outcome: Result<u64, String>) {
        // This worker must not take back a connection that the successor has accepted: two processes would
        // use one connection.
        let _ = self.take_answers();
        let Some(departure) = self.transfers.departure.take() else { return };
        self.keeps_idle = !self.worker.is_stopping;
        self.close_channel(departure.channel, departure.token);
        let parcels = departure.in_flight.into_iter().flatten().chain(departure.pending);
        for (socket, connection) in parcels {
            self.take_over(socket, connection);
        }
        if let Err(error) = &outcome {
            tracing::warn!("upgrade: connections stay in this process: {error}");
        }
        if !departure.is_reported {
            self.transfers.report(outcome);
        }
    }
}

/// Returns how many of these connections fit in one message; at least one.
fn fitting(pending: &[Parcel]) -> usize {
    let mut room = MESSAGE_MAX - MESSAGE_HEAD;
    let fits = |(_, connection): &&Parcel| {
        let left = room.checked_sub(connection.encoded_len());
        room = left.unwrap_or_default();
        left.is_some()
    };
    pending.iter().take(CONNECTIONS_MAX).take_while(fits).count().max(1)
}
