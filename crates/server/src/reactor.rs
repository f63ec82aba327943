//! What applications ask for from elsewhere: connections of their own, timers, names, each other.
//!
//! Nothing here does I/O. An application asks; whoever drives it takes the questions with
//! [`Outside::next_ask`], does what is asked in its own way, and delivers what comes of it as a
//! [`Wake`](crate::service::Wake) to whom the question named ([`To`]). Identifiers carry a
//! serial number: one whose subject is gone does no harm.

mod alarms;
mod handover;
mod links;

pub(crate) use alarms::{AlarmId, Alarms};
pub(crate) use handover::{HandOver, NotTaken};
pub(crate) use links::{Endpoint, Link, LinkId, LinkStage, Links, Made};

use crate::transport::{handover::Receivers, outbox::Outbox};
use std::collections::VecDeque;

/// An exchange that waits, or waited once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangeId {
    /// Its client's place in the driver.
    pub(crate) client: ClientId,
    /// Which of its connection's requests it answers, from 1.
    pub(crate) number: u32,
}

impl ExchangeId {
    /// Whether it is an errand: an exchange of an application's own ([`Outside::begin_errand`]).
    #[inline]
    pub(crate) fn is_errand(self) -> bool {
        self.client.fd < 0
    }
}

/// A client's connection, as its driver knows it: a descriptor and the generation of its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientId {
    /// The descriptor.
    pub(crate) fd: i32,
    /// Which use of the number it is.
    pub(crate) generation: u32,
}

/// Who is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// One exchange, by `Application::resume`; an errand, by `Application::errand`.
    Exchange(ExchangeId),
    /// The application itself, by `Application::event`: for what many exchanges share.
    Application,
}

/// A name to be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// A host name, or an address in text.
    pub(crate) name: String,
    /// The port of the addresses that come back.
    pub(crate) port: u16,
    /// Who is told.
    pub(crate) to: To,
    /// Given back with the answer.
    pub(crate) note: u64,
}

/// Something that was asked for.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Look at this link: it is to be dialled, has output, is paused or no longer, or ends.
    Link(LinkId),
    /// Arm this alarm.
    Alarm(AlarmId),
    /// Wake this exchange with this note.
    Wake(ExchangeId, u64),
    /// Resolve a name.
    Resolve(Question),
    /// Give the exchange's client to another process.
    HandOver(Box<HandOver>),
    /// Tie the exchange's client and the link together: from now on octets go from one to the other.
    Tunnel(ExchangeId, LinkId),
}

/// What the applications of one worker have asked for.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    /// Connections that applications have dialled.
    pub(crate) links: Links,
    /// Their timers.
    pub(crate) alarms: Alarms,
    /// The driver's: to whom clients are handed over.
    pub(crate) receivers: Receivers,
    asks: VecDeque<Ask>,
    /// Errands under way, and how many there were.
    errands: usize,
    last_errand: u32,
}

impl Outside {
    /// An exchange that no client owns begins: what it asks for is told to `Application::errand`. To be
    /// ended with [`Outside::end_errand`].
    pub(crate) fn begin_errand(&mut self) -> ExchangeId {
        self.errands += 1;
        self.last_errand = self.last_errand.wrapping_add(1);
        ExchangeId { client: ClientId { fd: -1, generation: self.last_errand }, number: 0 }
    }

    /// One that began is over.
    pub(crate) fn end_errand(&mut self) {
        debug_assert!(self.errands > 0, "more errands have ended than begun");
        self.errands -= 1;
    }

    /// Errands under way.
    pub(crate) fn errands(&self) -> usize {
        self.errands
    }

    /// Dials `endpoint`. `to` is told `Connected`, or `Failed` after at most `timeout` ticks. What is
    /// to be sent may be put into [`Outside::send`] at once.
    pub(crate) fn dial(&mut self, endpoint: Endpoint, timeout: u32, to: To) -> LinkId {
        let id = self.links.insert(endpoint, timeout, to);
        self.ask_about(id);
        id
    }

    /// Where to put what is to be sent on a link. It leaves after the call; what several calls of
    /// one pass of the loop put there leaves together. Of a link that is gone, nowhere.
    pub(crate) fn send(&mut self, id: LinkId) -> &mut Outbox {
        self.ask_about(id);
        self.links.output(id)
    }

    /// Whether so much waits to be sent on a link that no more should be put there:
    /// `Wake::LinkRoom` comes when it is low.
    pub(crate) fn is_full(&self, id: LinkId) -> bool {
        self.links.get(id).is_some_and(|link| link.output.is_full())
    }

    /// Receives nothing more on a link until [`Outside::go_on`]: who sends there will notice.
    pub(crate) fn pause(&mut self, id: LinkId) {
        self.change(id, |link| link.is_paused = true);
    }

    /// Receives on a link again.
    pub(crate) fn go_on(&mut self, id: LinkId) {
        self.change(id, |link| link.is_paused = false);
    }

    /// Closes our side of a link when all that was put into it has left.
    pub(crate) fn finish(&mut self, id: LinkId) {
        self.change(id, |link| link.is_finished = true);
    }

    /// Closes a link now, and throws away what has not left. Nobody is told.
    pub(crate) fn close(&mut self, id: LinkId) {
        self.change(id, |link| link.is_closed = true);
    }

    /// From now on `to` is told of the link.
    pub(crate) fn give(&mut self, id: LinkId, to: To) {
        if let Some(link) = self.links.get_mut(id) {
            link.to = to;
        }
    }

    /// Tells `to` after so many ticks, at the earliest.
    pub(crate) fn timer(&mut self, ticks: u32, to: To) -> AlarmId {
        let id = self.alarms.insert(ticks, to);
        self.asks.push_back(Ask::Alarm(id));
        id
    }

    /// Nobody is told.
    pub(crate) fn cancel(&mut self, id: AlarmId) {
        self.alarms.cancel(id);
    }

    /// Wakes an exchange that waits, with a note.
    pub(crate) fn wake(&mut self, exchange: ExchangeId, note: u64) {
        self.asks.push_back(Ask::Wake(exchange, note));
    }

    /// Resolves a name away from the loop; `Wake::Resolved` comes with `note`.
    pub(crate) fn resolve(&mut self, question: Question) {
        self.asks.push_back(Ask::Resolve(question));
    }

    /// Ties the client of `exchange` and a link together, after what either is still to be sent:
    /// what one sends is sent to the other, until one of them has closed and the other has it all.
    /// The exchange is over with that, and has nothing more to say; until then it must wait.
    pub(crate) fn tunnel(&mut self, exchange: ExchangeId, link: LinkId) {
        self.asks.push_back(Ask::Tunnel(exchange, link));
    }

    /// Gives the client of an exchange to another process, with what it has sent from that request on.
    /// The exchange is over with that, and not told; or it is told [`NotTaken`] and why. Until then it
    /// must wait.
    pub(crate) fn hand_over(&mut self, what: HandOver) {
        self.asks.push_back(Ask::HandOver(Box::new(what)));
    }

    /// The next thing that was asked for.
    pub(crate) fn next_ask(&mut self) -> Option<Ask> {
        let ask = self.asks.pop_front()?;
        if let Ask::Link(id) = ask
            && let Some(link) = self.links.get_mut(id)
        {
            link.is_asked_about = false;
        }
        Some(ask)
    }

    /// Things that were asked for and not yet taken.
    pub(crate) fn asks(&self) -> usize {
        self.asks.len()
    }

    fn change(&mut self, id: LinkId, change: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get_mut(id) {
            change(link);
            self.ask_about(id);
        }
    }

    fn ask_about(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(id)
            && !std::mem::replace(&mut link.is_asked_about, true)
        {
            self.asks.push_back(Ask::Link(id));
        }
    }
}

#[cfg(test)]
mod tests;
