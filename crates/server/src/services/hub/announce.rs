//! The updates that announce the beginning and the end of subscriptions.
//!
//! They are published in the order in which the subscriptions change: the registry stays locked until the
//! update of a change is published. The order of the locks is: the registry, the events that wait, the log.

use super::shared::{HubShared, lock};
use pollux_hub::{subscriptions::Registry, topic::HubUrl, update::Publication};
use std::collections::VecDeque;

/// The maximum number of events that wait for the store; further ones are dropped.
const WAITING_MAX: usize = 4096;

/// Events that the store has not taken, because it is too slow or an upgrade is in progress.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    /// The oldest first.
    waiting: VecDeque<Publication>,
    /// Whether events were dropped since none waited.
    has_dropped: bool,
}

impl HubShared {
    /// Changes the active subscriptions, and publishes the event that announces the change, if there is one.
    pub(super) fn change_subscriptions(
        &self,
        change: impl FnOnce(&mut Registry, &HubUrl) -> Option<Publication>,
    ) {
        let mut registry = self.registry();
        let Some(event) = change(&mut registry, &self.url) else { return };
        let mut announcements = lock(&self.announcements);
        if announcements.waiting.len() < WAITING_MAX {
            announcements.waiting.push_back(event);
        } else if !std::mem::replace(&mut announcements.has_dropped, true) {
            tracing::warn!("--hub-subscriptions: the history's store is too slow: events are lost");
        }
        self.announce(&mut announcements);
    }

    /// Publishes the events that wait, as far as the store takes them.
    pub(super) fn announce_again(&self) {
        self.announce(&mut lock(&self.announcements));
    }

    /// Returns whether events wait.
    pub(super) fn has_announcements(&self) -> bool {
        !lock(&self.announcements).waiting.is_empty()
    }

    fn announce(&self, announcements: &mut Announcements) {
        while let Some(event) = announcements.waiting.front() {
            if self.publish(event.clone(), None).is_err() {
                return;
            }
            announcements.waiting.pop_front();
        }
        announcements.has_dropped = false;
    }
}
