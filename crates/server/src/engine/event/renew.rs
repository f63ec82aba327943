//! A new configuration takes effect between two iterations of the loop: no request looks for it.
//!
//! In two steps, so that all workers change or none does: first each makes its service for the new
//! configuration, and says whether that worked; then each puts it in the place of the present one.

use super::Engine;
use crate::{
    architecture::worker::{MakeService, Replace},
    config::IdleEviction,
    reload::{Offer, Renewal},
    service::Service,
};
use pollux_event::Mechanism;
use std::sync::{Arc, PoisonError};

/// How the engine of one worker changes to another configuration.
pub(crate) struct Renewer<S> {
    worker: usize,
    offer: Offer,
    make: MakeService<S>,
    replace: Replace<S>,
    prepared: Option<(S, Arc<Renewal>)>,
}

impl<S: Service> Renewer<S> {
    /// For the worker of this number. Configurations are offered in `offer`; `make` makes the service for
    /// one and `replace` puts it in the place of the present one.
    pub(crate) fn new(
        worker: usize,
        offer: Offer,
        make: MakeService<S>,
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
        let contents = renewal.contents.clone();
        match (self.make)(&renewal.config, &renewal.rules, contents, None) {
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
    /// Makes the service for the configuration that is offered under this number.
    #[cold]
    pub(super) fn prepare_renewal(&mut self, number: u64) {
        if let Some(renewer) = &mut self.renewer {
            // One that is not offered any more needs no answer.
            let _ = renewer.prepare(number);
        }
    }

    /// Serves by the configuration that was prepared.
    #[cold]
    pub(super) fn commit_renewal(&mut self, number: u64) {
        let Some(renewer) = &mut self.renewer else { return };
        let Some((service, renewal)) = renewer.prepared.take() else { return };
        if renewal.number != number {
            return;
        }
        let former = std::mem::replace(&mut self.rules, renewal.rules.clone());
        (renewer.replace)(&mut self.service, service, former, &mut self.reactor);
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
