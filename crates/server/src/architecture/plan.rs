//! What all units of a server are given.

use super::Assignment;
use crate::{
    config::{Config, IdleEviction},
    engine::blocking::Blocking,
    protocol::rules::Rules,
    service::worker_state::WorkerState,
    services::{
        Hosts,
        guestbook::StoreOpening,
        site::{Contents, Tree},
    },
    stats::scoreboard::{Scoreboard, ScoreboardSlot},
    transport::queue::Queues,
};
use anyhow::Context;
use pollux_sys as sys;
use std::sync::Arc;

/// What all units of a server are given.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) config: Config,
    pub(crate) rules: Arc<Rules>,
    /// The directory that is served, open for all units: those that share a file table.
    pub(crate) tree: Option<Arc<Tree>>,
    /// What the threads of a process have of the files. A process that is forked has its own.
    pub(crate) contents: Arc<Contents>,
    pub(crate) assignment: Assignment,
    /// Where connections come from.
    pub(crate) queues: Queues,
    /// The most units at a time that are assigned one connection each.
    pub(crate) max_connections: usize,
    pub(crate) scoreboard: Arc<Scoreboard>,
}

impl Plan {
    /// An engine for the thread that calls, with an application of its own.
    ///
    /// # Errors
    /// As [`Hosts::open`].
    pub(crate) fn engine(
        &self,
        slot: ScoreboardSlot,
        local: WorkerState,
    ) -> anyhow::Result<Blocking<Hosts>> {
        let before = sys::counters();
        sys::set_timing(self.config.time_system_calls);
        let opening = match self.assignment {
            Assignment::Pool(_) => StoreOpening::Now,
            Assignment::One => StoreOpening::AtFirstUse,
        };
        let service = self.routes(opening)?;
        let own = (self.rules.clone(), local);
        Ok(Blocking::new(&self.config, service, own, slot, before))
    }

    /// Shows that connections can be served at all, in a process or thread that serves none.
    ///
    /// # Errors
    /// As [`Hosts::open`].
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

    /// To be called before the first unit is started: units can then wake each other, where idle clients give way.
    ///
    /// # Errors
    /// As [`sys::allow_waking`].
    pub(crate) fn allow_eviction(&self) -> anyhow::Result<()> {
        match self.config.idle_eviction {
            IdleEviction::On => sys::allow_waking().context("a signal that wakes units"),
            IdleEviction::Off => Ok(()),
        }
    }

    /// How many units there are from the start.
    pub(crate) fn units(&self) -> usize {
        match self.assignment {
            Assignment::Pool(size) => size,
            Assignment::One => 1,
        }
    }
}
