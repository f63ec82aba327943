//! What the application asks for from elsewhere, done for one connection at a time: links are
//! dialled, received and sent on, alarms rung.

use super::{Blocking, tunnel::Tunnel};
use crate::{
    application::{Application, Wake, World},
    engine::{
        dial::{connect, kind_of},
        transmit::{Sent, transmit},
    },
    outbox::Outbox,
    outside::{Ask, Endpoint, ExchangeId, LinkId, LinkStage, To},
};
use libc::{POLLIN, POLLOUT};
use pollux_sys::{self as sys, PollFd};
use socket2::SockRef;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

/// How often what was asked for leads to further questions that are seen to at once; then the
/// client has its turn.
const PASSES: usize = 4;
/// The receive buffer of all links.
const LINK_INPUT_BYTES: usize = 16 << 10;

/// The socket of a link.
pub(super) struct LinkSocket {
    id: LinkId,
    socket: OwnedFd,
    /// Until when it must be connected.
    deadline: Option<u32>,
}

impl<A: Application> Blocking<A> {
    /// Does what the application has asked for.
    #[inline]
    pub(super) fn perform(&mut self) {
        if self.outside.asks() > 0 {
            self.perform_asks();
        }
    }

    #[cold]
    fn perform_asks(&mut self) {
        for _ in 0..PASSES {
            for _ in 0..self.outside.asks() {
                let Some(ask) = self.outside.next_ask() else { return };
                match ask {
                    Ask::Link(id) => self.attend(id),
                    Ask::Alarm(id) => {
                        if let Some((_, ticks)) = self.outside.alarms.get(id) {
                            self.alarms.push((self.local.clock.after(ticks), id));
                        }
                    }
                    Ask::Wake(exchange, note) => {
                        self.tell(To::Exchange(exchange), Wake::Note(note));
                    }
                    Ask::Resolve(question) => self.resolve(question),
                    Ask::HandOver(what) => self.hand_over(&what),
                    Ask::Tunnel(exchange, link) => self.tie(exchange, link),
                }
            }
        }
    }

    /// Tells somebody something. Returns whether he is still there.
    pub(super) fn tell(&mut self, to: To, wake: Wake<'_>) -> bool {
        match to {
            To::Application => {
                let Self { application, rules, local, outside, .. } = self;
                application.event(&mut World { rules, local, outside }, wake);
                true
            }
            To::Exchange(id) if id.is_errand() => {
                let Self { application, rules, local, outside, .. } = self;
                application.errand(&mut World { rules, local, outside }, id, wake)
            }
            To::Exchange(id) => {
                let is_there = self.is_running(id);
                if is_there {
                    self.wake(wake);
                }
                is_there
            }
        }
    }

    pub(super) fn is_running(&self, id: ExchangeId) -> bool {
        self.client
            .as_ref()
            .is_some_and(|client| client.id == id.client && client.connection.is_running(id.number))
    }

    /// Ties the client of an exchange and a link together. Where one of them is gone, so is the
    /// other.
    fn tie(&mut self, exchange: ExchangeId, id: LinkId) {
        self.turns += 1;
        let is_open =
            self.outside.links.get(id).is_some_and(|l| matches!(l.stage, LinkStage::Open(_)));
        let place = self.links.iter().position(|link| link.id == id);
        let is_running = self.is_running(exchange);
        let client = self.client.as_mut().filter(|_| is_running);
        match (client, place) {
            (Some(client), Some(place)) if is_open => {
                let (input, to_client) = client.connection.take_raw();
                let mut to_far =
                    self.outside.links.remove(id).map(|link| link.output).unwrap_or_default();
                to_far.bytes().extend_from_slice(&input);
                let far = self.links.swap_remove(place).socket;
                client.tunnel = Some(Tunnel::new(far, to_client, to_far));
            }
            (client, _) => {
                if let Some(client) = client {
                    client.is_broken = true;
                }
                self.outside.close(id);
            }
        }
    }

    /// Adds the links to what is waited for.
    pub(super) fn add_links(&mut self) {
        for LinkSocket { id, socket, .. } in &self.links {
            let mut events = 0;
            if let Some(link) = self.outside.links.get(*id) {
                if matches!(link.stage, LinkStage::Connecting(_)) || !link.output.is_empty() {
                    events |= POLLOUT;
                }
                if matches!(link.stage, LinkStage::Open(_)) && !link.is_paused && !link.has_ended {
                    events |= POLLIN;
                }
            }
            // One of which nothing is wanted would tell of its end again and again.
            let fd = if events == 0 { -1 } else { socket.as_raw_fd() };
            self.polled.push(PollFd { fd, events, revents: 0 });
        }
    }

    /// The next tick at which a link or an alarm has its time.
    pub(super) fn next_deadline(&self) -> Option<u32> {
        let links = self.links.iter().filter_map(|link| link.deadline);
        let alarms = self.alarms.iter().map(|&(tick, _)| tick);
        links.chain(alarms).min()
    }

    /// Deals with what has happened to links; theirs are the places of `polled` from `first` on.
    pub(super) fn attend_links(&mut self, first: usize) {
        if self.links.is_empty() {
            return;
        }
        // Each may end, or bring others: so they are looked up anew.
        let happened: Vec<(LinkId, i16)> = self
            .links
            .iter()
            .map(|link| link.id)
            .zip(self.polled.iter().skip(first).map(|polled| polled.revents))
            .collect();
        for (id, happened) in happened {
            self.attend_link(id, happened);
        }
    }

    fn attend_link(&mut self, id: LinkId, happened: i16) {
        let Some(link) = self.outside.links.get(id) else { return };
        if let LinkStage::Connecting(_) = link.stage {
            if happened != 0 {
                return self.see_whether_connected(id);
            }
            let now = self.local.clock.tick();
            let is_late =
                |link: &LinkSocket| link.id == id && link.deadline.is_some_and(|at| at <= now);
            if self.links.iter().any(is_late) {
                self.fail_link(id, io::ErrorKind::TimedOut);
            }
            return;
        }
        // An error or the other side's end is what receiving or sending says.
        if happened & !POLLOUT != 0 {
            self.receive_on_link(id);
        }
        if happened & POLLOUT != 0 {
            self.attend(id);
        }
    }

    /// Rings the alarms that have their time.
    pub(super) fn attend_alarms(&mut self) {
        if self.alarms.is_empty() {
            return;
        }
        let now = self.local.clock.tick();
        let outside = &mut self.outside;
        let mut due = Vec::new();
        self.alarms.retain(|&(tick, id)| {
            let is_there = outside.alarms.get(id).is_some();
            if is_there && tick <= now {
                due.extend(outside.alarms.take(id.index()));
            }
            is_there && tick > now
        });
        for (id, to) in due {
            self.tell(to, Wake::Time(id));
        }
    }

    /// Looks after a link about which something was asked.
    fn attend(&mut self, id: LinkId) {
        let Some(link) = self.outside.links.get(id) else { return };
        match link.stage.clone() {
            _ if link.is_closed => self.end_link(id),
            LinkStage::Asked(endpoint, timeout) => {
                if let Err(error) = self.dial(id, &endpoint, timeout) {
                    self.fail_link(id, kind_of(&error));
                }
            }
            LinkStage::Connecting(_) => {}
            LinkStage::Open(_) => self.send_on_link(id),
        }
    }

    fn dial(&mut self, id: LinkId, endpoint: &Endpoint, timeout: u32) -> io::Result<()> {
        let socket = connect(endpoint)?;
        if let Some(link) = self.outside.links.get_mut(id) {
            link.stage = LinkStage::Connecting(socket.as_raw_fd());
        }
        let deadline = Some(self.local.clock.after(timeout));
        self.links.push(LinkSocket { id, socket, deadline });
        Ok(())
    }

    fn see_whether_connected(&mut self, id: LinkId) {
        let Some(found) = self.links.iter_mut().find(|link| link.id == id) else { return };
        if let Err(error) = sys::take_socket_error(found.socket.as_fd()) {
            return self.fail_link(id, error.kind());
        }
        if SockRef::from(&found.socket).peer_addr().is_err() {
            return;
        }
        found.deadline = None;
        let fd = found.socket.as_raw_fd();
        let Some(link) = self.outside.links.get_mut(id) else { return };
        link.stage = LinkStage::Open(fd);
        let to = link.to;
        if !self.tell(to, Wake::Connected(id)) {
            return self.end_link(id);
        }
        self.attend(id);
    }

    fn receive_on_link(&mut self, id: LinkId) {
        let Some(link) = self.outside.links.get_mut(id) else { return };
        let Some(found) = self.links.iter().find(|link| link.id == id) else { return };
        if link.is_closed || link.is_paused || link.has_ended {
            return;
        }
        let to = link.to;
        self.link_input.resize(LINK_INPUT_BYTES, 0);
        let mut buffer = std::mem::take(&mut self.link_input);
        let is_there = match sys::recv(found.socket.as_fd(), &mut buffer) {
            Ok(0) => {
                link.has_ended = true;
                self.tell(to, Wake::Ended(id))
            }
            Ok(received) => self.tell(to, Wake::Received(id, &buffer[..received])),
            Err(error) => {
                let kind = error.kind();
                if !matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
                    self.fail_link(id, kind);
                }
                true
            }
        };
        self.link_input = buffer;
        if !is_there {
            self.end_link(id);
        }
    }

    fn send_on_link(&mut self, id: LinkId) {
        let Some(link) = self.outside.links.get_mut(id) else { return };
        let Some(found) = self.links.iter().find(|link| link.id == id) else { return };
        let (socket, output): (_, &mut Outbox) = (found.socket.as_fd(), &mut link.output);
        link.is_owed_room |= output.is_full();
        let (outcome, sent) = transmit(socket, output, self.large_file);
        self.bytes_sent += sent;
        let outcome = match outcome {
            Ok(Sent::All) if link.is_finished && !link.has_shut => {
                link.has_shut = true;
                sys::shutdown_write(socket)
            }
            outcome => outcome.map(drop),
        };
        if let Err(error) = outcome {
            return self.fail_link(id, error.kind());
        }
        if link.output.is_low() && std::mem::take(&mut link.is_owed_room) {
            let to = link.to;
            if !self.tell(to, Wake::LinkRoom(id)) {
                self.end_link(id);
            }
        }
    }

    /// A link is over, and who is told of it is told why.
    fn fail_link(&mut self, id: LinkId, why: io::ErrorKind) {
        let Some(to) = self.outside.links.get(id).map(|link| link.to) else { return };
        self.end_link(id);
        self.tell(to, Wake::Failed(id, why));
    }

    fn end_link(&mut self, id: LinkId) {
        if self.outside.links.remove(id).is_none() {
            return;
        }
        if let Some(place) = self.links.iter().position(|link| link.id == id) {
            sys::close(self.links.swap_remove(place).socket);
        }
    }
}
