//! Names are resolved by a thread that all units of the process share: to wait for it is to wait for
//! one descriptor more, so that alarms ring and a stop is heard meanwhile.

use super::Blocking;
use crate::{
    engine::{
        resolver::{Resolver, drain_notifier},
        upstreams::UpstreamDriver as _,
    },
    reactor::Question,
    service::{Event, Service},
};
use libc::POLLIN;
use pollux_sys::PollFd;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Names that may wait to be resolved, of all units of the process together; more are refused.
const QUESTIONS_MAX: usize = 16 << 10;

/// The resolver and its notifier, once the worker has resolved a name.
#[derive(Default)]
pub(super) struct Names(Option<(Resolver, OwnedFd)>);

impl Names {
    /// Whether an answer is to come.
    pub(super) fn is_pending(&self) -> bool {
        self.0.as_ref().is_some_and(|(resolver, _)| resolver.is_pending())
    }
}

impl<A: Service> Blocking<A> {
    /// Has a name resolved.
    ///
    /// # Errors
    /// Why the lookup cannot be started.
    pub(super) fn begin_lookup(&mut self, question: Question) -> Result<(), String> {
        let (resolver, _) = match &mut self.names.0 {
            Some(open) => open,
            none => {
                let open = Resolver::open_shared(QUESTIONS_MAX);
                none.insert(open.map_err(|error| format!("no thread to resolve names: {error}"))?)
            }
        };
        resolver.submit(question)
    }

    /// Adds the notifier to what is waited for, while an answer is to come. Returns its place.
    pub(super) fn add_names(&mut self) -> Option<usize> {
        let (_, notifier) = self.names.0.as_ref().filter(|(resolver, _)| resolver.is_pending())?;
        self.polled.push(PollFd { fd: notifier.as_raw_fd(), events: POLLIN, revents: 0 });
        Some(self.polled.len() - 1)
    }

    /// Delivers the answers that have arrived. `place` is what [`Blocking::add_names`] returned.
    pub(super) fn attend_names(&mut self, place: Option<usize>) {
        let has_rung =
            place.and_then(|place| self.polled.get(place)).is_some_and(|p| p.revents != 0);
        let Some((resolver, notifier)) = self.names.0.as_mut().filter(|_| has_rung) else { return };
        drain_notifier(notifier.as_fd());
        for (question, answer) in resolver.take() {
            self.tell(question.to, Event::Resolved(question.note, answer));
        }
    }
}
