//! The links of applications, as a mechanism tells of them.

use super::{Engine, READS_PER_EVENT};
use crate::{
    config::LargeFile,
    engine::{
        event::table::{Class, Marks, Peer},
        links::{LINK_INPUT_BYTES, Links},
    },
    reactor::{AlarmId, ExchangeId, HandOver, Link, LinkId, LinkStage, Question},
    service::{Application, Wake, World},
    time::timers,
    transport::Transport,
};
use pollux_event::{Interest, Mechanism, Readiness};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
};

impl<M: Mechanism, A: Application> Links for Engine<M, A> {
    type Application = A;

    #[inline]
    fn parts(&mut self) -> (&mut A, World<'_>) {
        let Self { application, rules, local, outside, .. } = self;
        (application, World { rules, local, outside })
    }

    fn link(&mut self, id: LinkId) -> Option<(&mut Link, &mut Transport)> {
        let link = self.outside.links.get_mut(id)?;
        let (LinkStage::Connecting(fd) | LinkStage::Open(fd)) = link.stage else { return None };
        Some((link, self.table.get_mut(fd)?.transport()?))
    }

    fn wake_exchange(&mut self, id: ExchangeId, wake: Wake<'_>) -> bool {
        let is_there = self.is_running(id);
        if is_there {
            self.wake(id.client.fd, wake);
        }
        is_there
    }

    fn arm_alarm(&mut self, id: AlarmId, tick: u32) {
        self.arm(timers::ALARM | id.index(), tick);
    }

    fn resolve_beside(&mut self, question: Question) -> Result<(), String> {
        self.ask_for_name(question)
    }

    fn pass_on_client(&mut self, what: &HandOver) {
        self.hand_over(what);
    }

    fn make_tunnel(&mut self, exchange: ExchangeId, link: LinkId) {
        self.tunnel(exchange, link);
    }

    fn hold(&mut self, id: LinkId, transport: Transport, deadline: u32) -> io::Result<()> {
        let fd = transport.as_raw_fd();
        let (interest, marks) = if self.registers_once() {
            (Interest::READ | Interest::WRITE, Marks::READS | Marks::WRITES)
        } else {
            (Interest::WRITE, Marks::WRITES)
        };
        let token = self.mechanism.add(transport.as_fd(), interest).map_err(io::Error::other)?;
        let slot = self.table.insert(transport, token, Peer::Link(id.index()));
        slot.marks = marks;
        slot.class = Class::Dial;
        self.arm(fd as u32, deadline);
        Ok(())
    }

    fn set_connected(&mut self, _: LinkId, fd: RawFd) {
        if let Some(slot) = self.table.get_mut(fd) {
            slot.timer.disarm();
            slot.class = Class::Link;
        }
    }

    fn after_connect(&mut self, id: LinkId, fd: RawFd) {
        // An edge-triggered mechanism may have told of input in the same event.
        self.receive_on_link(id, fd);
    }

    fn after_send(&mut self, id: LinkId, fd: RawFd, is_paused: bool) {
        if is_paused {
            self.come_back_to(fd);
        }
        self.watch_link(id, fd);
    }

    fn close_link(&mut self, _: LinkId, fd: RawFd) {
        self.close_socket(fd);
    }

    fn large_file(&self) -> LargeFile {
        self.large_file
    }

    fn count_sent(&mut self, octets: u64) {
        self.bytes_sent += octets;
    }
}

impl<M: Mechanism, A: Application> Engine<M, A> {
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
            let Some(transport) = slot.transport() else { return };
            let to = link.to;
            match transport.receive(buffer) {
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
}
