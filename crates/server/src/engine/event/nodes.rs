//! The timers that the engine stores in its timer wheel.

use super::table::Table;
use crate::{
    reactor::Reactor,
    time::timers::{self, Nodes, Timer},
};

/// The timers of connections and the alarms of services.
pub(super) struct Timers<'a, X> {
    pub(super) table: &'a mut Table<X>,
    pub(super) reactor: &'a mut Reactor,
}

impl<X> Nodes for Timers<'_, X> {
    fn timer_mut(&mut self, node: u32) -> Option<&mut Timer> {
        if node & timers::ALARM == 0 {
            self.table.timer_mut(node)
        } else {
            self.reactor.alarms.timer_mut(node & !timers::ALARM)
        }
    }
}
