//! Names are resolved by a thread of the worker's own.

use super::Engine;
use crate::{
    engine::{
        event::table::Peer,
        links::Links as _,
        resolver::{Desk, hear_out},
    },
    reactor::Question,
    service::{Application, Wake},
    transport::Transport,
};
use anyhow::Context;
use pollux_event::{Interest, Mechanism};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// Names that wait to be resolved, besides the one that is; more are refused.
const QUESTIONS_MAX: usize = 64;

impl<M: Mechanism, A: Application> Engine<M, A> {
    /// Has a name resolved.
    ///
    /// # Errors
    /// Why it cannot be asked for.
    pub(super) fn ask_for_name(&mut self, question: Question) -> Result<(), String> {
        if self.names.is_none() {
            let desk = self.open_desk().map_err(|error| format!("{error:#}"))?;
            self.names = Some(desk);
        }
        let Some(desk) = &mut self.names else { return Ok(()) };
        let outcome = desk.ask(question);
        if desk.has_ended() {
            // The next question starts another thread. With this one goes the other end of its bell.
            self.names = None;
        }
        outcome
    }

    fn open_desk(&mut self) -> anyhow::Result<Desk> {
        let (desk, bell) = Desk::open(QUESTIONS_MAX).context("no thread to resolve names")?;
        let token = self.mechanism.add(bell.as_fd(), Interest::READ)?;
        self.table.insert(Transport::Plain(bell), token, Peer::Bell);
        Ok(desk)
    }

    /// The resolver has rung.
    #[cold]
    pub(super) fn answers_have_come(&mut self, fd: RawFd) {
        let slot = self.table.get_mut(fd);
        let Some(bell) = slot.and_then(|slot| slot.transport()) else { return };
        debug_assert_eq!(bell.as_raw_fd(), fd);
        if hear_out(bell.as_fd()) {
            self.close_socket(fd);
        }
        let answers = self.names.as_mut().map(Desk::take).unwrap_or_default();
        for (question, answer) in answers {
            self.tell(question.to, Wake::Resolved(question.note, answer));
        }
    }
}
