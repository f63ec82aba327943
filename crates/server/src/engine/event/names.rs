//! Resolves names in a thread of the worker's own.

use super::Engine;
use crate::{
    engine::{
        event::table::Peer,
        resolver::{Resolver, drain_notifier},
        upstreams::UpstreamDriver as _,
    },
    reactor::{Question, ResolveError},
    service::{Event, Service},
    transport::Transport,
};
use pollux_event::{Interest, Mechanism};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// The maximum number of names that wait to be resolved, besides the one in progress; more are refused.
const QUESTIONS_MAX: usize = 64;

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Begins to resolve a name.
    ///
    /// # Errors
    /// The reason why the lookup cannot be started.
    pub(super) fn begin_lookup(&mut self, question: Question) -> Result<(), ResolveError> {
        if self.names.is_none() {
            let no_thread =
                |error: anyhow::Error| ResolveError::NoThread(format!("{error:#}").into());
            self.names = Some(self.open_resolver().map_err(no_thread)?);
        }
        let Some(resolver) = &mut self.names else { return Ok(()) };
        let outcome = resolver.submit(question);
        if resolver.has_ended() {
            // The next question starts another thread. Dropping the resolver closes its end of the
            // notifier.
            self.names = None;
        }
        outcome
    }

    fn open_resolver(&mut self) -> anyhow::Result<Resolver> {
        let (resolver, notifier) = Resolver::open(QUESTIONS_MAX)?;
        let token = self.mechanism.add(notifier.as_fd(), Interest::READ)?;
        self.table.insert(Transport::Plain(notifier), token, Peer::Notifier);
        Ok(resolver)
    }

    /// Delivers the answers of the resolver after its notification.
    #[cold]
    pub(super) fn answers_have_come(&mut self, fd: RawFd) {
        let slot = self.table.get_mut(fd);
        let Some(notifier) = slot.and_then(|slot| slot.transport()) else { return };
        debug_assert_eq!(notifier.as_raw_fd(), fd);
        if drain_notifier(notifier.as_fd()) {
            self.close_socket(fd);
        }
        let answers = self.names.as_mut().map(Resolver::take).unwrap_or_default();
        for (question, answer) in answers {
            self.deliver(question.to, Event::Resolved(question.id, answer));
        }
    }
}
