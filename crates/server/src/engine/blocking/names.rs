//! Resolves names in a thread that all workers of the process share. The worker adds one more descriptor to
//! its wait, so that alarms and a stop are still handled meanwhile.

use super::Blocking;
use crate::{
    engine::{
        resolver::{Resolver, drain_notifier},
        upstreams::UpstreamDriver as _,
    },
    reactor::{Question, ResolveError},
    service::{Event, Service},
};
use libc::POLLIN;
use pollux_sys::PollFd;
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

/// The maximum number of names that may wait to be resolved, of all workers of the process together; more
/// are refused.
const QUESTIONS_MAX: usize = 16 << 10;

/// The resolver and its notifier, once the worker has resolved a name.
#[derive(Default)]
pub(super) struct Names(Option<(Resolver, OwnedFd)>);

impl Names {
    /// Returns whether an answer is still pending.
    pub(super) fn is_pending(&self) -> bool {
        self.0.as_ref().is_some_and(|(resolver, _)| resolver.is_pending())
    }
}

impl<A: Service> Blocking<A> {
    /// Begins to resolve a name.
    ///
    /// # Errors
    /// The reason why the lookup cannot be started.
    pub(super) fn begin_lookup(&mut self, question: Question) -> Result<(), ResolveError> {
        let (resolver, _) = match &mut self.names.0 {
            Some(open) => open,
            none => {
                let open = Resolver::open_shared(QUESTIONS_MAX);
                let no_thread = |error: io::Error| ResolveError::NoThread(error.to_string().into());
                none.insert(open.map_err(no_thread)?)
            }
        };
        resolver.submit(question)
    }

    /// Adds the notifier to the polled descriptors while an answer is pending. Returns its index.
    pub(super) fn add_names(&mut self) -> Option<usize> {
        let (_, notifier) = self.names.0.as_ref().filter(|(resolver, _)| resolver.is_pending())?;
        self.polled.push(PollFd { fd: notifier.as_raw_fd(), events: POLLIN, revents: 0 });
        Some(self.polled.len() - 1)
    }

    /// Delivers the answers that have arrived. `index` is the one that [`Blocking::add_names`] returned.
    pub(super) fn attend_names(&mut self, index: Option<usize>) {
        let has_answers =
            index.and_then(|index| self.polled.get(index)).is_some_and(|p| p.revents != 0);
        let Some((resolver, notifier)) = self.names.0.as_mut().filter(|_| has_answers) else {
            return;
        };
        drain_notifier(notifier.as_fd());
        for (question, answer) in resolver.take() {
            self.deliver(question.to, Event::Resolved(question.id, answer));
        }
    }
}
