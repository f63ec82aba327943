//! The log of updates: each publication is appended once, and every subscriber reads it from its own
//! position.

use crate::{
    limits::{BACKWARD_SCAN, Limits},
    update::Update,
};
use std::{
    collections::{HashMap, VecDeque},
    iter,
    sync::Arc,
    time::Duration,
};

/// The position of an update in the log. The first update has 1, so that 0 is before all updates.
pub type Sequence = u64;

/// Updates in the order in which they were published, bounded by number, bytes and age.
#[derive(Debug)]
pub struct History {
    entries: VecDeque<Entry>,
    /// The sequence of the first entry, or of the next update if the log is empty.
    first: Sequence,
    by_id: HashMap<Arc<str>, Sequence>,
    bytes: usize,
    max_updates: usize,
    max_bytes: usize,
    max_age: Duration,
}

#[derive(Debug)]
struct Entry {
    update: Arc<Update>,
    /// The time of the publication, on the caller's clock.
    at: Duration,
    /// The position of the previous update with the same id; 0 if none was stored.
    former: Sequence,
}

/// The position at which a subscriber begins to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The last update that the subscriber is not sent.
    pub cursor: Sequence,
    /// Whether the requested update is in the history.
    pub found: bool,
}

impl History {
    /// Creates an empty history within the bounds of `limits`. At least one update is stored,
    /// regardless of the bounds, because an update must be stored until its subscribers have it.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self {
            entries: VecDeque::new(),
            first: 1,
            by_id: HashMap::new(),
            bytes: 0,
            max_updates: limits.history_updates.max(1),
            max_bytes: limits.history_bytes,
            max_age: limits.history_age,
        }
    }

    /// Appends an update, and removes the oldest updates that exceed the bounds. `at` is the time of its
    /// publication, always by the same clock. Times may be out of order: an old update behind a younger one is
    /// removed with the younger one. Returns the update's position.
    pub fn append(&mut self, update: Arc<Update>, at: Duration) -> Sequence {
        let sequence = self.next();
        self.bytes += update.bytes();
        let former = self.by_id.insert(Arc::clone(&update.id), sequence).unwrap_or(0);
        self.entries.push_back(Entry { update, at, former });
        while self.entries.len() > 1
            && (self.entries.len() > self.max_updates || self.bytes > self.max_bytes)
        {
            self.drop_first();
        }
        self.expire(at);
        sequence
    }

    /// Appends an update of another log under the position and the time that it has there. Skipped
    /// positions were removed from that log already, so they count as removed from this one, too.
    pub fn append_at(&mut self, sequence: Sequence, update: Arc<Update>, at: Duration) {
        if sequence > self.next() {
            self.clear();
            self.first = sequence;
        }
        if sequence == self.next() {
            self.append(update, at);
        }
    }

    /// Skips one position and removes all updates before it, as if updates that no subscriber will get
    /// had been published there: subscribers that have everything until now have lost something.
    pub fn leave_gap(&mut self) {
        let next = self.next() + 1;
        self.clear();
        self.first = next;
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.by_id.clear();
        self.bytes = 0;
    }

    /// Begins at a position that another log has reached. Does nothing unless the history is empty.
    pub fn begin_at(&mut self, next: Sequence) {
        if self.entries.is_empty() {
            self.first = self.first.max(next);
        }
    }

    /// Removes updates that are too old, except the newest. The caller calls it from time to time: an
    /// update also becomes too old when no other one is published.
    pub fn expire(&mut self, now: Duration) {
        let horizon = now.saturating_sub(self.max_age);
        while self.entries.len() > 1 && self.entries[0].at < horizon {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.bytes -= entry.update.bytes();
        if self.by_id.get(&entry.update.id) == Some(&self.first) {
            self.by_id.remove(&entry.update.id);
        }
        self.first += 1;
    }

    /// The position of the oldest stored update, or of the next update if none is stored.
    #[must_use]
    pub fn first(&self) -> Sequence {
        self.first
    }

    /// The position of the newest update; 0 if there was none yet.
    #[must_use]
    pub fn last(&self) -> Sequence {
        self.next() - 1
    }

    fn next(&self) -> Sequence {
        self.first + self.entries.len() as u64
    }

    /// The update at this position; `None` if it is no longer stored.
    #[must_use]
    pub fn get(&self, sequence: Sequence) -> Option<&Arc<Update>> {
        self.entry(sequence).map(|entry| &entry.update)
    }

    fn entry(&self, sequence: Sequence) -> Option<&Entry> {
        let index = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        self.entries.get(index)
    }

    /// The stored updates, each with its position and the time of its publication.
    pub fn entries(&self) -> impl Iterator<Item = (Sequence, &Arc<Update>, Duration)> {
        self.entries_after(self.first - 1)
    }

    /// Those of them that are after a position.
    pub fn entries_after(
        &self,
        sequence: Sequence,
    ) -> impl Iterator<Item = (Sequence, &Arc<Update>, Duration)> {
        let from = (sequence + 1).clamp(self.first, self.next());
        let skipped = usize::try_from(from - self.first).unwrap_or(usize::MAX);
        (from..)
            .zip(self.entries.range(skipped..))
            .map(|(sequence, entry)| (sequence, &entry.update, entry.at))
    }

    /// The identifier of the newest update, or `earliest` if there was none.
    #[must_use]
    pub fn last_id(&self) -> &str {
        self.entries.back().map_or("earliest", |entry| &entry.update.id)
    }

    /// Returns the position at which a subscriber begins whose last update has this id. For `earliest`,
    /// and for an id that is unknown or no longer stored, this is the oldest stored update: repeating
    /// some updates is better than losing some.
    #[must_use]
    pub fn start(&self, last_event_id: &str) -> Start {
        match self.by_id.get(last_event_id) {
            Some(sequence) => Start { cursor: *sequence, found: true },
            None => Start { cursor: self.first - 1, found: false },
        }
    }

    /// As [`start`](Self::start), for a subscriber that `reads` only some updates. Several updates may have the same
    /// id: some publishers use the version of a topic. The subscriber has received one of those that it reads, so it
    /// begins after the last one of these. After a later update with this id it would lose updates.
    #[must_use]
    pub fn start_of(&self, last_event_id: &str, mut reads: impl FnMut(&Update) -> bool) -> Start {
        let start = self.start(last_event_id);
        if !start.found {
            return start;
        }
        let uses = iter::successors(Some(start.cursor), |at| Some(self.entry(*at)?.former));
        let read =
            uses.take(BACKWARD_SCAN).find(|at| self.get(*at).is_some_and(|update| reads(update)));
        Start { cursor: read.unwrap_or(start.cursor), found: true }
    }

    /// The value of the response's `Last-Event-ID` for a subscriber that begins here: the id of
    /// the newest update up to its cursor that it may see, searched `scan` updates back, or
    /// `earliest`. An id that it may not see is never disclosed.
    pub fn response_id(
        &self,
        start: Start,
        scan: usize,
        mut visible: impl FnMut(&Update) -> bool,
    ) -> Arc<str> {
        if start.found {
            for sequence in (self.first..=start.cursor).rev().take(scan) {
                if let Some(update) = self.get(sequence).filter(|update| visible(update)) {
                    return Arc::clone(&update.id);
                }
            }
        }
        "earliest".into()
    }

    /// The number of stored updates and their bytes.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::update::Publication;
    use proptest::prelude::*;

    const NOW: Duration = Duration::from_secs(1000);

    fn update(id: &str, private: bool) -> Arc<Update> {
        let topics = vec!["t".to_owned()];
        Arc::new(Update::new(id, &Publication { topics, private, ..Publication::default() }))
    }

    fn history(updates: usize) -> History {
        History::new(&Limits { history_updates: updates, ..Limits::default() })
    }

    #[test]
    fn the_oldest_leave_first() {
        let mut history = history(3);
        assert_eq!((history.first(), history.last(), history.last_id()), (1, 0, "earliest"));
        for id in ["a", "b", "c", "d"] {
            history.append(update(id, false), NOW);
        }
        assert_eq!((history.first(), history.last(), history.last_id()), (2, 4, "d"));
        assert!(history.get(1).is_none() && history.get(5).is_none());
        assert_eq!(&*history.get(2).unwrap().id, "b");
        assert_eq!(history.start("c"), Start { cursor: 3, found: true });
        assert_eq!(history.start("a"), Start { cursor: 1, found: false });
        assert_eq!(history.start("earliest"), Start { cursor: 1, found: false });
    }

    #[test]
    fn bytes_and_age_bound_it_too() {
        let size = update("a", false).bytes();
        let limits = Limits {
            history_bytes: 2 * size,
            history_age: Duration::from_secs(10),
            ..Limits::default()
        };
        let mut history = History::new(&limits);
        for id in ["a", "b", "c"] {
            history.append(update(id, false), NOW);
        }
        assert_eq!(history.size(), (2, 2 * size));
        history.expire(NOW + Duration::from_secs(11));
        assert_eq!(history.size(), (1, size));
        assert_eq!(history.last_id(), "c");
    }

    #[test]
    fn the_response_never_names_what_is_hidden() {
        let mut history = history(9);
        for (id, private) in [("a", false), ("b", true), ("c", true), ("d", false)] {
            history.append(update(id, private), NOW);
        }
        let public = |update: &Update| !update.private;
        assert_eq!(&*history.response_id(history.start("d"), 9, public), "d");
        assert_eq!(&*history.response_id(history.start("c"), 9, public), "a");
        assert_eq!(&*history.response_id(history.start("c"), 2, public), "earliest");
        assert_eq!(&*history.response_id(history.start("c"), 2, |_| true), "c");
        assert_eq!(&*history.response_id(history.start("x"), 9, public), "earliest");
        assert_eq!(&*history.response_id(history.start("earliest"), 9, public), "earliest");
    }

    #[test]
    fn a_copy_has_the_positions_of_its_original() {
        let mut copy = history(9);
        for (sequence, id) in [(1, "a"), (2, "b"), (2, "b"), (7, "c"), (8, "d")] {
            copy.append_at(sequence, update(id, false), NOW);
        }
        assert_eq!((copy.first(), copy.last()), (7, 8));
        assert_eq!(copy.start("d"), Start { cursor: 8, found: true });
        assert_eq!(copy.start("a"), Start { cursor: 6, found: false });
    }

    #[test]
    fn a_history_is_written_and_read_again() {
        let mut history = history(2);
        for (second, id) in ["a", "b", "c"].into_iter().enumerate() {
            history.append(update(id, false), NOW + Duration::from_secs(second as u64));
        }
        let entries: Vec<_> =
            history.entries().map(|(at, update, time)| (at, &*update.id, time - NOW)).collect();
        let seconds = Duration::from_secs;
        assert_eq!(entries, [(2, "b", seconds(1)), (3, "c", seconds(2))]);
        let after =
            |sequence| history.entries_after(sequence).map(|entry| entry.0).collect::<Vec<_>>();
        assert_eq!([after(0), after(2), after(9)], [vec![2, 3], vec![3], vec![]]);
        let mut empty = History::new(&Limits::default());
        empty.begin_at(7);
        assert_eq!((empty.first(), empty.last()), (7, 6));
    }

    #[test]
    fn an_id_that_is_used_twice_means_its_last_use() {
        let mut history = history(2);
        for id in ["a", "b", "a"] {
            history.append(update(id, false), NOW);
        }
        assert_eq!(history.start("a"), Start { cursor: 3, found: true });
    }

    #[test]
    fn of_an_id_that_is_used_again_the_last_use_that_is_read_counts() {
        let of = |topic: &str, id: &str| {
            let topics = vec![topic.to_owned()];
            Arc::new(Update::new(id, &Publication { topics, ..Publication::default() }))
        };
        let reads = |topic: &'static str| move |update: &Update| *update.topics[0] == *topic;
        let mut history = history(3);
        for (topic, id) in [("a", "1"), ("a", "2"), ("b", "1")] {
            history.append(of(topic, id), NOW);
        }
        // Regression: the subscriber of `a` began behind the update of `b`, and lost its own second one.
        assert_eq!(history.start_of("1", reads("a")), Start { cursor: 1, found: true });
        assert_eq!(history.start_of("1", reads("b")), Start { cursor: 3, found: true });
        assert_eq!(history.start_of("1", reads("none")), Start { cursor: 3, found: true });
        assert_eq!(history.start_of("x", reads("a")), Start { cursor: 0, found: false });
        // What has left the history no longer counts.
        history.append(of("a", "3"), NOW);
        assert_eq!(history.start_of("1", reads("a")), Start { cursor: 3, found: true });
        (4..7).for_each(|id| {
            history.append(of("a", &id.to_string()), NOW);
        });
        assert_eq!(history.start_of("1", reads("a")), Start { cursor: 4, found: false });
    }

    proptest! {
        #[test]
        fn positions_and_ids_agree(ids in prop::collection::vec(0..20u32, 1..100), bound in 1..20usize) {
            let mut history = history(bound);
            for (index, id) in ids.iter().enumerate() {
                let sequence = history.append(update(&id.to_string(), false), NOW);
                prop_assert_eq!(sequence, index as u64 + 1);
            }
            prop_assert!(history.size().0 <= bound);
            prop_assert_eq!(history.last(), ids.len() as u64);
            for sequence in history.first()..=history.last() {
                let id = Arc::clone(&history.get(sequence).unwrap().id);
                let start = history.start(&id);
                prop_assert!(start.found && start.cursor >= sequence);
            }
            prop_assert!(history.by_id.len() <= history.size().0);
        }
    }
}
