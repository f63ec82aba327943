//! The updates that announce the beginning and the end of subscriptions.
//!
//! They are published in the order in which the subscriptions change: the registry stays locked until the
//! update of a change is published. The order of the locks is: the registry, the events that wait, the log.
//!
//! An event waits until the store has confirmed it. If the store refuses an event, this event and all behind it are
//! published again, so that the last event of a subscription says whether the subscription is active. An event that
//! Redis has neither confirmed nor refused counts as published: while Redis is slow, each attempt would repeat it.

use super::{
    care::CARE_INTERVAL,
    shared::{HubShared, lock},
    store::UNCONFIRMED,
};
use pollux_hub::{reject::Reject, subscriptions::Registry, topic::HubUrl, update::Publication};
use std::{
    collections::VecDeque,
    sync::mpsc::{Receiver, TryRecvError, sync_channel},
    time::Instant,
};

/// The maximum number of events that wait for the store; further ones are dropped.
const WAITING_MAX: usize = 4096;
/// The maximum number of them that the store has at a time.
const SENT_MAX: usize = 1024;

/// Events that the store has not confirmed, because it is too slow or missing or an upgrade is in progress.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    /// The oldest first. The store has those in front.
    waiting: VecDeque<Publication>,
    /// What became of those that the store has, in the same order.
    sent: VecDeque<Outcome>,
    /// When the store last refused one.
    refused_at: Option<Instant>,
    /// Whether events were dropped since none waited.
    has_dropped: bool,
}

/// What became of an event that the store has.
#[derive(Debug)]
enum Outcome {
    Open(Receiver<Result<(), Reject>>),
    /// The event is published, or Redis may have it. It is not published again.
    Taken,
    Refused,
}

impl Outcome {
    /// Looks whether the store has answered.
    fn settle(&mut self) -> &Self {
        if let Self::Open(answer) = self {
            match answer.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(Ok(())) => *self = Self::Taken,
                // Redis may have the event.
                Ok(Err(reject)) if reject.message == UNCONFIRMED => *self = Self::Taken,
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => *self = Self::Refused,
            }
        }
        self
    }
}

impl Announcements {
    /// Removes the events that the store has confirmed. If it has refused one, it gets that one and those behind it
    /// again, as soon as it has answered to all of them.
    fn settle(&mut self) {
        while let Some(first) = self.sent.front_mut() {
            match first.settle() {
                Outcome::Open(_) => return,
                Outcome::Taken => {
                    self.sent.pop_front();
                    self.waiting.pop_front();
                }
                Outcome::Refused => {
                    let are_settled =
                        self.sent.iter_mut().all(|one| !matches!(one.settle(), Outcome::Open(_)));
                    if are_settled {
                        self.sent.clear();
                        self.refused_at = Some(Instant::now());
                    }
                    return;
                }
            }
        }
    }

    /// Returns the event that the store gets next, if it can take one.
    fn next(&self) -> Option<Publication> {
        let is_pause = self.refused_at.is_some_and(|at| at.elapsed() < CARE_INTERVAL);
        let is_open = self.sent.front().is_none_or(|first| matches!(first, Outcome::Open(_)));
        if is_pause || !is_open || self.sent.len() == SENT_MAX {
            return None;
        }
        self.waiting.get(self.sent.len()).cloned()
    }
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
        announcements.settle();
        while let Some(event) = announcements.next() {
            let (send, answer) = sync_channel(1);
            match self.publish_for(event, None, Some(send)) {
                // Without a store it is published at once.
                Ok(Some(_)) => drop(announcements.waiting.remove(announcements.sent.len())),
                Ok(None) => announcements.sent.push_back(Outcome::Open(answer)),
                Err(_) => return,
            }
        }
        if announcements.waiting.is_empty() {
            announcements.has_dropped = false;
            announcements.refused_at = None;
        }
    }
}
