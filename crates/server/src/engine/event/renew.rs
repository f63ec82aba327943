//! Changes a worker to a new configuration between two iterations of its loop, so that the request path
//! does not have to check for changes.
//!
//! The change has two steps, so that either all workers change or none does. First, each worker makes a
//! service for the new configuration and reports whether that succeeded. Then each worker replaces its
//! running service.

use super::Engine;
use crate::{
    config::IdleEviction,
    protocol::rules::Rules,
    reload::{Offer, Renewal},
    service::{Service, ServiceContext},
};
use pollux_event::Mechanism;
use std::sync::{Arc, PoisonError};

/// Makes the service of one worker for another configuration.
pub(crate) type MakeAgain<S> = Box<dyn Fn(&Renewal) -> anyhow::Result<S>>;

/// Replaces the running service by one for a new configuration. The rules are those of the running service.
pub(crate) type Replace<S> = fn(&mut S, S, Arc<Rules>, &mut ServiceContext<'_>);

/// Changes the engine of one worker to another configuration.
pub(crate) struct Renewer<S> {
    worker: usize,
    offer: Offer,
    make: MakeAgain<S>,
    replace: Replace<S>,
    prepared: Option<(S, Arc<Renewal>)>,
}

impl<S: Service> Renewer<S> {
    /// Creates the renewer for the worker with the index `worker`. The main thread puts configurations into
    /// `offer`; `make` makes a service for one, and `replace` replaces the running service by it.
    pub(crate) fn new(
        worker: usize,
        offer: Offer,
        make: MakeAgain<S>,
        replace: Replace<S>,
    ) -> Self {
        Self { worker, offer, make, replace, prepared: None }
    }

    fn prepare(&mut self, number: u64) -> Option<()> {
        self.prepared = None;
        let renewal = self.offer.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        if renewal.number != number {
            return None;
        }
        match (self.make)(&renewal) {
            Ok(service) => {
                renewal.answer(self.worker, Ok(()));
                self.prepared = Some((service, renewal));
            }
            Err(error) => renewal.answer(self.worker, Err(format!("{error:#}"))),
        }
        Some(())
    }
}

impl<M: Mechanism, A: Service> Engine<M, A> {
    /// Performs the first step: makes the service for the configuration with this number.
    #[cold]
    pub(super) fn prepare_renewal(&mut self, number: u64) {
        if let Some(renewer) = &mut self.renewer {
            // The main thread does not wait for an answer about a configuration that it has withdrawn.
            let _ = renewer.prepare(number);
        }
    }

    /// Performs the second step: replaces the running service by the prepared one.
    #[cold]
    pub(super) fn commit_renewal(&mut self, number: u64) {
        let Some(renewer) = &mut self.renewer else { return };
        let Some((service, renewal)) = renewer.prepared.take() else { return };
        if renewal.number != number {
            return;
        }
        let former = std::mem::replace(&mut self.rules, renewal.rules.clone());
        let Self { rules, worker, reactor, .. } = self;
        (renewer.replace)(
            &mut self.service,
            service,
            former,
            &mut ServiceContext { rules, worker, reactor },
        );
        let config = &renewal.config;
        self.large_file = config.large_file;
        self.worker.renew_records(config);
        self.idle.set(config.idle_eviction == IdleEviction::On);
        let most = renewal.max_connections.get(renewer.worker).copied();
        if let Some(most) = most.filter(|_| !self.worker.is_stopping) {
            self.acceptor.set_limits(config.accept_limit, most);
        }
        renewal.answer(renewer.worker, Ok(()));
    }
}
