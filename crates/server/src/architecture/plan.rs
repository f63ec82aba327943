//! The settings and resources that all workers of a server get.

use super::Assignment;
use crate::{
    config::IdleEviction,
    engine::blocking::Blocking,
    protocol::rules::Rules,
    service::worker_state::WorkerState,
    services::{
        Hosts,
        guestbook::StoreOpening,
        site::{Contents, Tree},
    },
    settings::Settings,
    stats::scoreboard::{Scoreboard, ScoreboardSlot},
    transport::queue::Queues,
};
use anyhow::Context;
use pollux_sys as sys;
use std::sync::Arc;

/// The settings and resources that all workers of a server get.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) config: Settings,
    pub(crate) rules: Arc<Rules>,
    /// The directory that is served. It is open for all workers that share a file table.
    pub(crate) tree: Option<Arc<Tree>>,
    /// The cached files that the threads of a process share. A forked process has its own.
    pub(crate) contents: Arc<Contents>,
    pub(crate) assignment: Assignment,
    /// The listeners from which connections are accepted.
    pub(crate) queues: Queues,
    /// The maximum number of workers at a time if each serves exactly one connection.
    pub(crate) max_connections: usize,
    pub(crate) scoreboard: Arc<Scoreboard>,
}

impl Plan {
    /// Creates an engine with its own services for the calling thread.
    ///
    /// # Errors
    /// The errors of [`Hosts::open`].
    pub(crate) fn engine(
        &self,
        slot: ScoreboardSlot,
        worker_state: WorkerState,
    ) -> anyhow::Result<Blocking<Hosts>> {
        let before = sys::counters();
        sys::set_timing(self.config.time_system_calls);
        let opening = match self.assignment {
            Assignment::Pool(_) => StoreOpening::Now,
            Assignment::One => StoreOpening::AtFirstUse,
        };
        let service = self.routes(opening)?;
        let own = (self.rules.clone(), worker_state);
        Ok(Blocking::new(&self.config, service, own, slot, before))
    }

    /// Checks, in a process or thread that serves no connections, that connections can be served at
    /// all.
    ///
    /// # Errors
    /// The errors of [`Hosts::open`].
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.routes(StoreOpening::Now).map(drop)
    }

    fn routes(&self, opening: StoreOpening) -> anyhow::Result<Hosts> {
        let contents = self.contents.clone();
        Hosts::open_in(self.tree()?, contents, &self.config, &self.rules, opening)
    }

    fn tree(&self) -> anyhow::Result<Option<Arc<Tree>>> {
        self.tree.clone().map_or_else(|| Tree::of(&self.config.site), |tree| Ok(Some(tree)))
    }

    /// Allows workers to wake each other, which idle eviction needs. Must be called before the
    /// first worker is started.
    ///
    /// # Errors
    /// The errors of [`sys::allow_waking`].
    pub(crate) fn allow_eviction(&self) -> anyhow::Result<()> {
        match self.config.idle_eviction {
            IdleEviction::On => sys::allow_waking().context("a signal that wakes workers"),
            IdleEviction::Off => Ok(()),
        }
    }

    /// Returns the number of workers that are started first.
    pub(crate) fn workers(&self) -> usize {
        match self.assignment {
            Assignment::Pool(size) => size,
            Assignment::One => 1,
        }
    }
}
