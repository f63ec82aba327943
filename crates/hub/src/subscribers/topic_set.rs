//! A topic set: what its subscribers have in common.

use super::{audience::Audience, ring::ReadyRing};
use crate::{
    history::{History, Sequence},
    limits::RECENT_UPDATES,
    topic::HubUrl,
    update::Update,
};
use std::sync::Arc;

/// How many updates one step of a search looks at.
const SEARCH_STEP: usize = 64;

/// The subscribers that read the same topics with the same permission.
#[derive(Debug)]
pub(super) struct TopicSet {
    pub(super) audience: Audience,
    pub(super) ready: ReadyRing,
    /// How many subscribers there are.
    pub(super) members: u32,
    /// Whether the set is in the queue of those that have something to deliver.
    pub(super) dirty: bool,
    recent_len: u8,
    /// The newest updates of the set, oldest first.
    recent: [Sequence; RECENT_UPDATES],
    /// Updates of the set up to here are not in `recent`: they must be searched for.
    floor: Sequence,
}

/// What a subscriber is to get.
#[derive(Debug)]
pub(super) enum Next<'h> {
    /// It has everything up to here.
    Nothing(Sequence),
    /// Nothing up to here; the search is to be continued.
    Search(Sequence),
    /// Updates have left the history that it may have wanted. It goes on from here.
    Lost(Sequence),
    /// This update.
    Update(Sequence, &'h Arc<Update>),
}

impl TopicSet {
    pub(super) fn new(audience: Audience) -> Self {
        Self {
            audience,
            ready: ReadyRing::new(),
            members: 0,
            dirty: false,
            recent_len: 0,
            recent: [0; RECENT_UPDATES],
            floor: 0,
        }
    }

    fn recent(&self) -> &[Sequence] {
        &self.recent[..usize::from(self.recent_len)]
    }

    /// The newest update of the set, as far as is known.
    pub(super) fn newest(&self) -> Sequence {
        self.recent().last().copied().unwrap_or(0).max(self.floor)
    }

    /// Notes an update of the set: every idle subscriber is behind now. False if it is noted already.
    pub(super) fn note(&mut self, sequence: Sequence) -> bool {
        if self.newest() >= sequence {
            return false;
        }
        if usize::from(self.recent_len) == RECENT_UPDATES {
            self.floor = self.floor.max(self.recent[0]);
            self.recent.rotate_left(1);
            self.recent_len -= 1;
        }
        self.recent[usize::from(self.recent_len)] = sequence;
        self.recent_len += 1;
        self.ready.all_behind();
        true
    }

    /// What a subscriber with this cursor is to get next. Up to `replay` it has to search, as what
    /// was published before it came was not noted for it. Looks at a bounded number of updates, and at
    /// fewer if there is no time to compare them with patterns.
    pub(super) fn next_update<'h>(
        &self,
        cursor: Sequence,
        replay: Sequence,
        history: &'h History,
        hub: &HubUrl,
        has_time: &mut impl FnMut() -> bool,
    ) -> Next<'h> {
        let unnoted = self.floor.max(replay);
        if cursor < unnoted {
            return self.search(cursor, unnoted, history, hub, has_time);
        }
        let next = self.recent().iter().find(|sequence| **sequence > cursor);
        match next.map(|sequence| (*sequence, history.get(*sequence))) {
            Some((sequence, Some(update))) => Next::Update(sequence, update),
            Some(_) => Next::Lost(history.first() - 1),
            None => Next::Nothing(cursor),
        }
    }

    fn search<'h>(
        &self,
        cursor: Sequence,
        end: Sequence,
        history: &'h History,
        hub: &HubUrl,
        has_time: &mut impl FnMut() -> bool,
    ) -> Next<'h> {
        if cursor + 1 < history.first() {
            return Next::Lost(history.first() - 1);
        }
        let mut reached = cursor;
        for sequence in (cursor + 1..=end).take(SEARCH_STEP) {
            reached = sequence;
            if let Some(update) = history.get(sequence)
                && self.audience.reads(update, hub)
            {
                return Next::Update(sequence, update);
            }
            if self.audience.has_patterns() && !has_time() {
                break;
            }
        }
        Next::Search(reached)
    }
}
