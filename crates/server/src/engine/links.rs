//! What applications ask for from elsewhere, as every engine does it: links are dialled, sent on and
//! ended, alarms armed, names asked for, exchanges woken. How an engine waits for a link, and when it
//! receives on one, is its own.

use super::{
    dial::{connect, kind_of},
    resolver::known,
    transmit::{Sent, transmit},
};
use crate::{
    config::LargeFile,
    reactor::{
        AlarmId, Ask, Endpoint, ExchangeId, HandOver, Link, LinkId, LinkStage, Question, To,
    },
    service::{Application, Wake, World},
    transport::Transport,
};
use pollux_sys as sys;
use socket2::SockRef;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
};

/// How often what was asked for leads to further questions that are seen to at once; then connections
/// have their turn.
const PASSES: usize = 4;
/// The receive buffer of all links of an engine.
pub(super) const LINK_INPUT_BYTES: usize = 16 << 10;

/// An engine, as far as links, alarms and wakes are concerned.
pub(super) trait Links: Sized {
    /// Who is driven.
    type Application: Application;

    /// The application, and what it is shown when it is called for itself.
    fn parts(&mut self) -> (&mut Self::Application, World<'_>);

    /// A link and the way to its peer, once it has one.
    fn link(&mut self, id: LinkId) -> Option<(&mut Link, &mut Transport)>;

    /// Calls the application for the exchange of a client. Returns whether it is still there.
    fn wake_exchange(&mut self, id: ExchangeId, wake: Wake<'_>) -> bool;

    /// The alarm is to ring at this tick.
    fn arm_alarm(&mut self, id: AlarmId, tick: u32);

    /// Has a name resolved, of which who asked is told later.
    ///
    /// # Errors
    /// Why it cannot be asked for.
    fn resolve_beside(&mut self, question: Question) -> Result<(), String>;

    /// Gives the client of an exchange to another process.
    fn pass_on_client(&mut self, what: &HandOver);

    /// Ties the client of an exchange and a link together.
    fn make_tunnel(&mut self, exchange: ExchangeId, link: LinkId);

    /// Keeps the transport of a link that is to be connected by this tick, and waits for that.
    ///
    /// # Errors
    /// It cannot be waited for.
    fn hold(&mut self, id: LinkId, transport: Transport, deadline: u32) -> io::Result<()>;

    /// The link is connected: it has no deadline any more.
    fn set_connected(&mut self, id: LinkId, fd: RawFd);

    /// The application has been told that the link is connected.
    fn after_connect(&mut self, id: LinkId, fd: RawFd) {
        let _ = (id, fd);
    }

    /// What is wanted of the link may have changed, or more could leave at once, which others must not
    /// wait for (`is_paused`).
    fn after_send(&mut self, id: LinkId, fd: RawFd, is_paused: bool) {
        let _ = (id, fd, is_paused);
    }

    /// Closes the transport of a link that is over.
    fn close_link(&mut self, id: LinkId, fd: RawFd);

    /// How a head and a file share segments.
    fn large_file(&self) -> LargeFile;

    /// So many octets have left.
    fn count_sent(&mut self, octets: u64);

    /// Does what the application has asked for.
    #[inline]
    fn perform(&mut self) {
        if self.parts().1.outside.asks() > 0 {
            self.perform_asks();
        }
    }

    #[cold]
    fn perform_asks(&mut self) {
        for _ in 0..PASSES {
            for _ in 0..self.parts().1.outside.asks() {
                let world = self.parts().1;
                let Some(ask) = world.outside.next_ask() else { return };
                match ask {
                    Ask::Link(id) => self.attend(id),
                    Ask::Alarm(id) => {
                        if let Some((_, ticks)) = world.outside.alarms.get(id) {
                            let tick = world.local.clock.after(ticks);
                            self.arm_alarm(id, tick);
                        }
                    }
                    Ask::Wake(exchange, note) => {
                        self.tell(To::Exchange(exchange), Wake::Note(note));
                    }
                    Ask::Resolve(question) => self.resolve(question),
                    Ask::HandOver(what) => self.pass_on_client(&what),
                    Ask::Tunnel(exchange, link) => self.make_tunnel(exchange, link),
                }
            }
        }
    }

    /// Tells somebody something. Returns whether he is still there.
    fn tell(&mut self, to: To, wake: Wake<'_>) -> bool {
        match to {
            To::Application => {
                let (application, mut world) = self.parts();
                application.event(&mut world, wake);
                true
            }
            To::Exchange(id) if id.is_errand() => {
                let (application, mut world) = self.parts();
                application.errand(&mut world, id, wake)
            }
            To::Exchange(id) => self.wake_exchange(id, wake),
        }
    }

    /// Resolves a name; who asked is told later, or at once if it is an address or cannot be asked for.
    fn resolve(&mut self, question: Question) {
        let (to, note) = (question.to, question.note);
        if let Some(answer) = known(&question) {
            self.tell(to, Wake::Resolved(note, answer));
        } else if let Err(reason) = self.resolve_beside(question) {
            self.tell(to, Wake::Resolved(note, Err(reason)));
        }
    }

    /// Looks after a link about which something was asked.
    fn attend(&mut self, id: LinkId) {
        let Some(link) = self.parts().1.outside.links.get(id) else { return };
        match link.stage.clone() {
            _ if link.is_closed => self.end_link(id),
            LinkStage::Asked(endpoint, timeout) => {
                if let Err(error) = self.dial(id, &endpoint, timeout) {
                    self.fail_link(id, kind_of(&error));
                }
            }
            LinkStage::Connecting(_) => {}
            LinkStage::Open(fd) => self.send_on_link(id, fd),
        }
    }

    fn dial(&mut self, id: LinkId, endpoint: &Endpoint, timeout: u32) -> io::Result<()> {
        let transport = Transport::Plain(connect(endpoint)?);
        let fd = transport.as_raw_fd();
        let deadline = self.parts().1.local.clock.after(timeout);
        self.hold(id, transport, deadline)?;
        if let Some(link) = self.parts().1.outside.links.get_mut(id) {
            link.stage = LinkStage::Connecting(fd);
        }
        Ok(())
    }

    /// Something has happened to a link that is being connected.
    fn see_whether_connected(&mut self, id: LinkId, fd: RawFd) {
        let Some((link, transport)) = self.link(id) else { return };
        if let Err(error) = sys::take_socket_error(transport.as_fd()) {
            return self.fail_link(id, error.kind());
        }
        // The event may have been spurious.
        if SockRef::from(&*transport).peer_addr().is_err() {
            return;
        }
        link.stage = LinkStage::Open(fd);
        let to = link.to;
        self.set_connected(id, fd);
        if !self.tell(to, Wake::Connected(id)) {
            return self.end_link(id);
        }
        self.attend(id);
        self.after_connect(id, fd);
    }

    fn send_on_link(&mut self, id: LinkId, fd: RawFd) {
        let large_file = self.large_file();
        let Some((link, transport)) = self.link(id) else { return };
        link.is_owed_room |= link.output.is_full();
        let (outcome, sent) = transmit(transport, &mut link.output, large_file);
        let outcome = match outcome {
            Ok(Sent::All) if link.is_finished && !link.has_shut => {
                link.has_shut = true;
                transport.shut().map(|()| Sent::All)
            }
            outcome => outcome,
        };
        let has_room = outcome.is_ok() && link.output.is_low();
        let is_told = has_room && std::mem::take(&mut link.is_owed_room);
        let to = link.to;
        self.count_sent(sent);
        let is_paused = match outcome {
            Ok(sent) => matches!(sent, Sent::Paused),
            Err(error) => return self.fail_link(id, error.kind()),
        };
        if is_told && !self.tell(to, Wake::LinkRoom(id)) {
            return self.end_link(id);
        }
        self.after_send(id, fd, is_paused);
    }

    /// A link is over, and who is told of it is told why.
    fn fail_link(&mut self, id: LinkId, why: io::ErrorKind) {
        let Some(to) = self.parts().1.outside.links.get(id).map(|link| link.to) else { return };
        self.end_link(id);
        self.tell(to, Wake::Failed(id, why));
    }

    /// A link is over.
    fn end_link(&mut self, id: LinkId) {
        let Some(link) = self.parts().1.outside.links.remove(id) else { return };
        if let LinkStage::Connecting(fd) | LinkStage::Open(fd) = link.stage {
            self.close_link(id, fd);
        }
    }
}
