//! The links and alarms of applications, for one connection at a time.

use super::{Blocking, tunnel::Tunnel};
use crate::{
    config::LargeFile,
    engine::links::{LINK_INPUT_BYTES, Links},
    reactor::{AlarmId, ExchangeId, HandOver, Link, LinkId, LinkStage, Question},
    service::{Application, Wake, World},
    transport::Transport,
};
use libc::{POLLIN, POLLOUT};
use pollux_sys::{self as sys, PollFd};
use std::{
    io,
    os::fd::{AsRawFd, RawFd},
};

/// The transport of a link.
pub(super) struct LinkTransport {
    id: LinkId,
    transport: Transport,
    /// Until when it must be connected.
    deadline: Option<u32>,
}

impl<A: Application> Links for Blocking<A> {
    type Application = A;

    #[inline]
    fn parts(&mut self) -> (&mut A, World<'_>) {
        let Self { application, rules, local, outside, .. } = self;
        (application, World { rules, local, outside })
    }

    fn link(&mut self, id: LinkId) -> Option<(&mut Link, &mut Transport)> {
        let link = self.outside.links.get_mut(id)?;
        let found = self.links.iter_mut().find(|link| link.id == id)?;
        Some((link, &mut found.transport))
    }

    fn wake_exchange(&mut self, id: ExchangeId, wake: Wake<'_>) -> bool {
        let is_there = self.is_running(id);
        if is_there {
            self.wake(wake);
        }
        is_there
    }

    fn arm_alarm(&mut self, id: AlarmId, tick: u32) {
        self.alarms.push((tick, id));
    }

    fn resolve_beside(&mut self, question: Question) -> Result<(), String> {
        self.ask_for_name(question)
    }

    fn pass_on_client(&mut self, what: &HandOver) {
        self.hand_over(what);
    }

    /// Ties the client of an exchange and a link together. Where one of them is gone, so is the
    /// other.
    fn make_tunnel(&mut self, exchange: ExchangeId, id: LinkId) {
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
                let far = self.links.swap_remove(place).transport;
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

    fn hold(&mut self, id: LinkId, transport: Transport, deadline: u32) -> io::Result<()> {
        self.links.push(LinkTransport { id, transport, deadline: Some(deadline) });
        Ok(())
    }

    fn set_connected(&mut self, id: LinkId, _: RawFd) {
        if let Some(found) = self.links.iter_mut().find(|link| link.id == id) {
            found.deadline = None;
        }
    }

    fn close_link(&mut self, id: LinkId, _: RawFd) {
        if let Some(place) = self.links.iter().position(|link| link.id == id) {
            sys::close(self.links.swap_remove(place).transport.into_socket());
        }
    }

    fn large_file(&self) -> LargeFile {
        self.large_file
    }

    fn count_sent(&mut self, octets: u64) {
        self.bytes_sent += octets;
    }
}

impl<A: Application> Blocking<A> {
    pub(super) fn is_running(&self, id: ExchangeId) -> bool {
        self.client
            .as_ref()
            .is_some_and(|client| client.id == id.client && client.connection.is_running(id.number))
    }

    /// Adds the links to what is waited for.
    pub(super) fn add_links(&mut self) {
        for LinkTransport { id, transport, .. } in &self.links {
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
            let fd = if events == 0 { -1 } else { transport.as_raw_fd() };
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
        if let LinkStage::Connecting(fd) = link.stage {
            if happened != 0 {
                return self.see_whether_connected(id, fd);
            }
            let now = self.local.clock.tick();
            let is_late =
                |link: &LinkTransport| link.id == id && link.deadline.is_some_and(|at| at <= now);
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

    fn receive_on_link(&mut self, id: LinkId) {
        let Some(link) = self.outside.links.get_mut(id) else { return };
        let Some(found) = self.links.iter_mut().find(|link| link.id == id) else { return };
        if link.is_closed || link.is_paused || link.has_ended {
            return;
        }
        let to = link.to;
        self.link_input.resize(LINK_INPUT_BYTES, 0);
        let mut buffer = std::mem::take(&mut self.link_input);
        let is_there = match found.transport.receive(&mut buffer) {
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
}
