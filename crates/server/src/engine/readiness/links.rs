//! What applications ask for from elsewhere: links are dialled, received and sent on, alarms armed,
//! exchanges woken.

use super::{Engine, READS_PER_EVENT, Sent, transmit};
use crate::{
    application::{Application, Wake, World},
    engine::dial::{connect, kind_of},
    outside::{Ask, Endpoint, LinkId, LinkStage, To},
    table::{Class, Marks, Peer},
    timers,
};
use pollux_event::{Interest, Mechanism, Readiness};
use pollux_sys as sys;
use socket2::SockRef;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
};

/// How often what was asked for leads to further questions that are seen to at once; then
/// connections have their turn.
const PASSES: usize = 4;
/// The receive buffer of all links of a worker.
const LINK_INPUT_BYTES: usize = 16 << 10;

impl<M: Mechanism, A: Application> Engine<M, A> {
    /// Does what applications have asked for.
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
                            let deadline = self.local.clock.after(ticks);
                            self.arm(timers::ALARM | id.index(), deadline);
                        }
                    }
                    Ask::Wake(exchange, note) => {
                        self.tell(To::Exchange(exchange), Wake::Note(note));
                    }
                    Ask::Resolve(question) => self.resolve(question),
                    Ask::HandOver(what) => self.hand_over(&what),
                    Ask::Tunnel(exchange, link) => self.tunnel(exchange, link),
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
                let slot = self.table.get_mut(id.client.fd);
                let is_there = slot.is_some_and(|slot| {
                    slot.generation() == id.client.generation
                        && slot.client().is_some_and(|client| client.is_running(id.number))
                });
                if is_there {
                    self.wake(id.client.fd, wake);
                }
                is_there
            }
        }
    }

    /// Looks after a link about which something was asked.
    pub(super) fn attend(&mut self, id: LinkId) {
        let Some(link) = self.outside.links.get_mut(id) else { return };
        match link.stage.clone() {
            _ if link.is_closed => self.end_link(id),
            LinkStage::Asked(endpoint, timeout) => {
                if let Err(error) = self.dial(id, &endpoint, timeout) {
                    self.fail_link(id, kind_of(&error));
                }
            }
            LinkStage::Connecting(_) => {}
            LinkStage::Open(fd) => {
                self.send_on_link(id, fd);
                self.watch_link(id, fd);
            }
        }
    }

    fn dial(&mut self, id: LinkId, endpoint: &Endpoint, timeout: u32) -> io::Result<()> {
        let socket = connect(endpoint)?;
        let fd = socket.as_raw_fd();
        let (interest, marks) = if self.registers_once() {
            (Interest::READ | Interest::WRITE, Marks::READS | Marks::WRITES)
        } else {
            (Interest::WRITE, Marks::WRITES)
        };
        let token = self.mechanism.add(socket.as_fd(), interest).map_err(io::Error::other)?;
        let slot = self.table.insert(socket, token, Peer::Link(id.index()));
        slot.marks = marks;
        slot.class = Class::Dial;
        if let Some(link) = self.outside.links.get_mut(id) {
            link.stage = LinkStage::Connecting(fd);
        }
        let deadline = self.local.clock.after(timeout);
        self.arm(fd as u32, deadline);
        Ok(())
    }

    /// A link's descriptor has an event.
    #[cold]
    pub(super) fn on_link_event(&mut self, fd: RawFd, index: u32, readiness: Readiness) {
        let Some(id) = self.outside.links.at(index) else { return };
        let Some(link) = self.outside.links.get_mut(id) else { return };
        if let LinkStage::Connecting(_) = link.stage {
            if readiness.is_writable() || readiness.is_readable() {
                self.see_whether_connected(id, fd);
            }
            return;
        }
        if readiness.is_readable() {
            self.receive_on_link(id, fd);
        }
        if readiness.is_writable()
            && self.outside.links.get(id).is_some_and(|link| !link.output.is_empty())
        {
            self.attend(id);
        }
    }

    /// Goes on where something was left.
    #[cold]
    pub(super) fn come_back_to_link(&mut self, fd: RawFd, index: u32) {
        let Some(id) = self.outside.links.at(index) else { return };
        self.attend(id);
        self.receive_on_link(id, fd);
    }

    fn see_whether_connected(&mut self, id: LinkId, fd: RawFd) {
        let Some(slot) = self.table.get_mut(fd) else { return };
        let Some(socket) = slot.socket() else { return };
        if let Err(error) = sys::take_socket_error(socket.as_fd()) {
            return self.fail_link(id, error.kind());
        }
        // The event may have been spurious.
        if SockRef::from(socket).peer_addr().is_err() {
            return;
        }
        slot.timer.disarm();
        slot.class = Class::Link;
        let Some(link) = self.outside.links.get_mut(id) else { return };
        link.stage = LinkStage::Open(fd);
        let to = link.to;
        if !self.tell(to, Wake::Connected(id)) {
            return self.end_link(id);
        }
        self.attend(id);
        // An edge-triggered mechanism may have told of input in the same event.
        self.receive_on_link(id, fd);
    }

    /// Receives what has come, until there is no more or others have their turn.
    fn receive_on_link(&mut self, id: LinkId, fd: RawFd) {
        let mut buffer = std::mem::take(&mut self.link_input);
        buffer.resize(LINK_INPUT_BYTES, 0);
        self.receive_on_link_into(id, fd, &mut buffer);
        self.link_input = buffer;
    }

    fn receive_on_link_into(&mut self, id: LinkId, fd: RawFd, buffer: &mut [u8]) {
        for _ in 0..READS_PER_EVENT {
            let Some(link) = self.outside.links.get_mut(id) else { return };
            let Some(slot) = self.table.get_mut(fd) else { return };
            if link.is_closed || link.has_ended || link.stage != LinkStage::Open(fd) {
                return;
            }
            if link.is_paused {
                slot.marks |= Marks::INPUT_WAITS;
                return self.watch_link(id, fd);
            }
            let Some(socket) = slot.socket() else { return };
            let to = link.to;
            match sys::recv(socket.as_fd(), buffer) {
                Ok(0) => {
                    slot.marks -= Marks::INPUT_WAITS;
                    link.has_ended = true;
                    if !self.tell(to, Wake::Ended(id)) {
                        return self.end_link(id);
                    }
                    return self.watch_link(id, fd);
                }
                Ok(received) => {
                    let ends = Marks::INPUT_ENDS | Marks::INPUT_WAITS;
                    let is_drained = received < buffer.len() && !slot.marks.intersects(ends);
                    slot.marks.set(Marks::INPUT_WAITS, !is_drained);
                    if !self.tell(to, Wake::Received(id, &buffer[..received])) {
                        return self.end_link(id);
                    }
                    if is_drained {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    slot.marks -= Marks::INPUT_WAITS;
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.fail_link(id, error.kind()),
            }
        }
        self.come_back_to(fd);
    }

    fn send_on_link(&mut self, id: LinkId, fd: RawFd) {
        let Some(link) = self.outside.links.get_mut(id) else { return };
        let Some(slot) = self.table.get_mut(fd) else { return };
        let Some(socket) = slot.socket() else { return };
        link.is_owed_room |= link.output.is_full();
        let (outcome, sent) = transmit(socket.as_fd(), &mut link.output, self.large_file);
        self.bytes_sent += sent;
        match outcome {
            Ok(Sent::All) if link.is_finished && !link.has_shut => {
                link.has_shut = true;
                if let Err(error) = sys::shutdown_write(socket.as_fd()) {
                    return self.fail_link(id, error.kind());
                }
            }
            Ok(Sent::All | Sent::Blocked) => {}
            Ok(Sent::Paused) => self.come_back_to(fd),
            Err(error) => return self.fail_link(id, error.kind()),
        }
        let Some(link) = self.outside.links.get_mut(id) else { return };
        if link.output.is_low() && std::mem::take(&mut link.is_owed_room) {
            let to = link.to;
            if !self.tell(to, Wake::LinkRoom(id)) {
                self.end_link(id);
            }
        }
    }

    /// Sees to it that the mechanism tells of what a link waits for, and of nothing else.
    fn watch_link(&mut self, id: LinkId, fd: RawFd) {
        let Some(link) = self.outside.links.get(id) else { return };
        let mut wanted = Marks::empty();
        let reads = !link.is_paused && !link.has_ended;
        wanted.set(Marks::READS, reads);
        wanted.set(Marks::WRITES, !link.output.is_empty());
        if !self.registers_once() {
            self.change_interest(fd, wanted, false);
        }
        if reads
            && self.table.get_mut(fd).is_some_and(|slot| slot.marks.contains(Marks::INPUT_WAITS))
        {
            self.come_back_to(fd);
        }
    }

    /// A link is over, and who is told of it is told why.
    pub(super) fn fail_link(&mut self, id: LinkId, why: io::ErrorKind) {
        let Some(to) = self.outside.links.get(id).map(|link| link.to) else { return };
        self.end_link(id);
        self.tell(to, Wake::Failed(id, why));
    }

    /// A link is over.
    fn end_link(&mut self, id: LinkId) {
        let Some(link) = self.outside.links.remove(id) else { return };
        if let LinkStage::Connecting(fd) | LinkStage::Open(fd) = link.stage {
            self.close_socket(fd);
        }
    }
}
