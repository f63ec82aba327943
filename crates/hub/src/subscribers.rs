//! The subscribers of one worker. Each owns a slot with a position in the history, and no queue.
//!
//! Subscribers that read the same topics with the same permission share a *topic set*. A set links
//! its subscribers whose connection can take something into a ring. It begins with the subscribers
//! that are behind, and ends with those that are idle, which have every update of the set.
//!
//! An update makes the idle subscribers of every set that it concerns fall behind, which is one
//! assignment, however many they are. [`Subscribers::deliver`] then works through those that are
//! behind, as many at a time as its caller has time for. Nothing happens to a subscriber that is
//! not written to: an update to one of a million topics touches only its subscribers.

mod audience;
mod lifetime;
mod ring;
mod rounds;
mod search;
mod set_table;
mod topic_filter;
mod topic_set;

#[cfg(test)]
mod tests;

use crate::{
    history::{History, Sequence},
    topic::HubUrl,
    update::{Frame, Update},
};
pub use audience::Audience;
pub use lifetime::{Deadline, MaxLifetime};
use ring::NONE;
use search::Search;
use set_table::{SetId, SetTable};
use slab::Slab;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};
pub use topic_filter::{TopicFilter, TopicKey};
use topic_set::{Next, TopicSet};

/// A subscriber, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubscriberId(u32);

impl SubscriberId {
    /// A number for it, for callers that keep it in little room.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// The subscriber of a number.
    #[must_use]
    pub fn of(number: u32) -> Self {
        Self(number)
    }
}

/// The whole of what one subscriber costs: 32 bytes.
#[derive(Debug)]
struct Slot {
    /// It has every update of its set up to here.
    cursor: Sequence,
    /// The caller's name for its connection.
    connection: u64,
    set: SetId,
    previous: u32,
    next: u32,
    state: State,
    /// Nothing was sent to it since [`Subscribers::heartbeat`] last looked at it.
    is_quiet: bool,
    /// When its stream ends at the latest, if that is limited.
    deadline: Option<Deadline>,
}

/// Whether a subscriber's connection can take something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It can: the subscriber is in the ring of its set.
    Ready,
    /// It is full.
    Blocked,
}

/// What became of a message that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The connection took it, and what it cannot send at once is its own affair.
    Taken,
    /// The connection is full and took nothing. [`Subscribers::resume`] continues.
    Full,
    /// The connection is gone; the subscriber is removed.
    Gone,
}

/// What becomes of a subscriber that fell so far behind that updates left the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// It gets a comment that says so, then the oldest update that is left.
    #[default]
    Skip,
    /// Its stream ends. It reconnects, and learns from `Last-Event-ID` that it missed something.
    Disconnect,
}

/// What is to be sent to a subscriber.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// An update.
    Update(&'a Arc<Update>),
    /// A comment, the notice that updates were skipped.
    Comment(&'a Frame),
    /// A comment to a connection that gets nothing else.
    Heartbeat(&'a Frame),
    /// The end of the stream. The subscriber is removed, unless its connection is full.
    End,
}

/// What one call has delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryCounts {
    /// Updates that connections took.
    pub updates: usize,
    /// Notices that updates were skipped.
    pub skips: usize,
}

/// All subscribers of one worker.
#[derive(Debug)]
pub struct Subscribers {
    slots: Slab<Slot>,
    sets: SetTable,
    /// Until where subscribers search the history that came with a position in the past.
    replays: HashMap<u32, Sequence>,
    /// Sets of which some subscribers are behind, each once.
    dirty: VecDeque<SetId>,
    /// How far updates were compared with patterns.
    search: Search,
    /// Room for the sets of one update.
    concerned: Vec<SetId>,
    on_loss: OnLoss,
    skip_notice: Frame,
    heartbeat: Frame,
    /// The next slot to look at for a heartbeat, and for a deadline that is over.
    heartbeat_at: usize,
    lifetime_at: usize,
}

impl Subscribers {
    /// No subscribers. `filter` is kept up to date with what they read.
    #[must_use]
    pub fn new(on_loss: OnLoss, filter: Option<Arc<TopicFilter>>) -> Self {
        Self {
            slots: Slab::new(),
            sets: SetTable::new(filter),
            replays: HashMap::new(),
            dirty: VecDeque::new(),
            search: Search::default(),
            concerned: Vec::new(),
            on_loss,
            skip_notice: Frame::skip_notice(),
            heartbeat: Frame::comment(""),
            heartbeat_at: 0,
            lifetime_at: 0,
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// How many distinct topic sets there are.
    #[must_use]
    pub fn sets(&self) -> usize {
        self.sets.len()
    }

    /// Bytes of user memory that slots and sets hold, an estimate for the sets' topics.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<Slot>>() + self.sets.bytes()
    }

    /// Adds a subscriber that has everything up to `cursor`. `published` is the last update that
    /// [`publish`](Self::publish) was called for: what lies between is delivered first. None if
    /// there is no room for another, which is after some four billion.
    pub fn add(
        &mut self,
        connection: u64,
        audience: &Audience,
        cursor: Sequence,
        published: Sequence,
    ) -> Option<SubscriberId> {
        let key = u32::try_from(self.slots.vacant_key()).ok().filter(|key| *key != NONE)?;
        let set = self.sets.join(audience)?;
        self.slots.insert(Slot {
            cursor,
            connection,
            set,
            previous: NONE,
            next: NONE,
            state: State::Ready,
            is_quiet: false,
            deadline: None,
        });
        if cursor < published {
            self.replays.insert(key, published);
        }
        self.make_ready(key);
        Some(SubscriberId(key))
    }

    /// Removes a subscriber whose connection has ended.
    pub fn remove(&mut self, id: SubscriberId) {
        if self.slots.contains(id.0 as usize) {
            self.unlink(id.0);
            self.replays.remove(&id.0);
            let slot = self.slots.remove(id.0 as usize);
            self.sets.leave(slot.set);
        }
    }

    /// The audience of a subscriber, and until where it has every update that it reads: what another process needs
    /// to go on with it.
    #[must_use]
    pub fn resume_point(
        &self,
        id: SubscriberId,
        history: &History,
        hub: &HubUrl,
    ) -> Option<(Audience, Sequence)> {
        let slot = self.slots.get(id.0 as usize)?;
        let set = &self.sets[slot.set];
        let replay = self.replay(id.0);
        let mut cursor = slot.cursor;
        loop {
            match set.next_update(cursor, replay, history, hub, &mut || true) {
                Next::Search(reached) => cursor = reached,
                // The set does not know yet what was not compared with its patterns.
                Next::Nothing(_) if set.audience.has_patterns() => {
                    break cursor = cursor.max(self.search.done());
                }
                Next::Nothing(_) => break cursor = history.last(),
                Next::Update(sequence, _) => break cursor = sequence - 1,
                // What it has lost, it has lost there as well.
                Next::Lost(_) => break,
            }
        }
        Some((set.audience.clone(), cursor))
    }

    /// The name of a subscriber's connection, while the subscriber is there.
    #[must_use]
    pub fn connection(&self, id: SubscriberId) -> Option<u64> {
        self.slots.get(id.0 as usize).map(|slot| slot.connection)
    }

    /// The audience of a subscriber, and a position up to which the subscriber has every update for this audience.
    #[must_use]
    pub fn position(&self, id: SubscriberId) -> Option<(Audience, Sequence)> {
        let slot = self.slots.get(id.0 as usize)?;
        Some((self.sets[slot.set].audience.clone(), slot.cursor))
    }

    /// Notes that an update was published. To be called once for each, in order. It costs what
    /// finding the sets costs, and does not depend on the number of their subscribers. Sets with
    /// patterns are found by [`deliver`](Self::deliver).
    pub fn publish(&mut self, sequence: Sequence, update: &Update, hub: &HubUrl) {
        self.sets.concerned(update, hub, &mut self.concerned);
        self.note_concerned(sequence);
        self.search.publish(sequence, self.sets.has_patterns());
    }

    fn note_concerned(&mut self, sequence: Sequence) {
        while let Some(id) = self.concerned.pop() {
            if self.sets[id].note(sequence) {
                self.mark(id);
            }
        }
    }

    /// Compares updates with patterns, as long as there is time.
    fn match_patterns(
        &mut self,
        history: &History,
        hub: &HubUrl,
        has_time: &mut impl FnMut() -> bool,
    ) {
        while let Some(sequence) = self.search.next() {
            let Some(update) = history.get(sequence) else {
                // It has left the history, and so have all before the first one that is left.
                self.note_gap(history.first() - 1, |set| set.audience.has_patterns());
                continue;
            };
            let Self { search, sets, concerned, .. } = self;
            let is_complete = search.advance(sets, update, hub, concerned, has_time);
            self.note_concerned(sequence);
            if !is_complete || !has_time() {
                return;
            }
        }
    }

    /// Notes that updates up to `sequence` left the log before [`publish`](Self::publish) could be
    /// called for them: a subscriber whose cursor is not beyond `sequence` has missed updates. Callers keep the
    /// order of publications here too. The call touches every set.
    pub fn publish_gap(&mut self, sequence: Sequence) {
        self.note_gap(sequence, |_| true);
    }

    fn note_gap(&mut self, sequence: Sequence, is_concerned: impl Fn(&TopicSet) -> bool) {
        for id in self.sets.all() {
            if is_concerned(&self.sets[id]) && self.sets[id].note(sequence) {
                self.mark(id);
            }
        }
        self.search.skip_to(sequence);
    }

    /// Whether [`deliver`](Self::deliver) has something to do.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.dirty.is_empty() || self.search.next().is_some()
    }

    /// Sends up to `budget` messages to subscribers that are behind. There is more to do while
    /// [`has_work`](Self::has_work). `has_time` bounds the comparison of updates with patterns: it is
    /// called after each pattern, and the next call compares the remaining ones. `send` gets the name of the
    /// connection.
    pub fn deliver(
        &mut self,
        history: &History,
        hub: &HubUrl,
        budget: usize,
        mut has_time: impl FnMut() -> bool,
        mut send: impl FnMut(u64, Message<'_>) -> Delivery,
    ) -> DeliveryCounts {
        self.match_patterns(history, hub, &mut has_time);
        let mut sent = DeliveryCounts::default();
        for _ in 0..budget {
            let Some(&id) = self.dirty.front() else { break };
            match self.sets.get(id).and_then(|set| set.ready.first_behind()) {
                Some(key) => {
                    let replay = self.replay(key);
                    let Slot { cursor, set, .. } = self.slots[key as usize];
                    let next =
                        self.sets[set].next_update(cursor, replay, history, hub, &mut has_time);
                    let is_search = matches!(next, Next::Search(_));
                    self.advance(key, next, &mut send, &mut sent);
                    if is_search && !has_time() {
                        break;
                    }
                }
                None => {
                    self.dirty.pop_front();
                    if self.sets.get(id).is_some() {
                        self.sets[id].dirty = false;
                    }
                }
            }
        }
        // The next call begins with another set, so that a busy one does not hold up the others.
        if self.dirty.len() > 1 {
            self.dirty.rotate_left(1);
        }
        sent
    }

    /// Lets a subscriber continue whose connection was full.
    pub fn resume(&mut self, id: SubscriberId) {
        if self.slots.get(id.0 as usize).is_some_and(|slot| slot.state == State::Blocked) {
            self.unlink(id.0);
            self.make_ready(id.0);
        }
    }

    /// Brings a subscriber one message further.
    fn advance(
        &mut self,
        key: u32,
        next: Next<'_>,
        send: &mut impl FnMut(u64, Message<'_>) -> Delivery,
        sent: &mut DeliveryCounts,
    ) {
        let connection = self.slots[key as usize].connection;
        let (delivery, reached) = match next {
            Next::Nothing(reached) | Next::Search(reached) => {
                return self.move_on(key, reached);
            }
            Next::Update(reached, update) => {
                let delivery = send(connection, Message::Update(update));
                sent.updates += usize::from(delivery == Delivery::Taken);
                (delivery, reached)
            }
            Next::Lost(reached) if self.on_loss == OnLoss::Skip => {
                let delivery = send(connection, Message::Comment(&self.skip_notice));
                sent.skips += usize::from(delivery == Delivery::Taken);
                (delivery, reached)
            }
            Next::Lost(reached) => {
                let is_full = send(connection, Message::End) == Delivery::Full;
                (if is_full { Delivery::Full } else { Delivery::Gone }, reached)
            }
        };
        match delivery {
            Delivery::Taken => {
                self.slots[key as usize].is_quiet = false;
                self.move_on(key, reached);
            }
            Delivery::Full => {
                self.unlink(key);
                self.slots[key as usize].state = State::Blocked;
            }
            Delivery::Gone => self.remove(SubscriberId(key)),
        }
    }

    /// How many slots [`heartbeat`](Self::heartbeat) and [`end_overdue`](Self::end_overdue) must look at to look at all.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots.capacity()
    }

    fn mark(&mut self, id: SetId) {
        let set = &mut self.sets[id];
        if !set.dirty && set.ready.first_behind().is_some() {
            set.dirty = true;
            self.dirty.push_back(id);
        }
    }

    /// Notes how far the subscriber whose turn it is has come, and ends its turn.
    fn move_on(&mut self, key: u32, reached: Sequence) {
        let slot = &mut self.slots[key as usize];
        slot.cursor = reached;
        let set = slot.set;
        let replay = self.replay(key);
        // For nearly all there is none, and nothing is to be looked up in the table.
        if replay > 0 && reached >= replay {
            self.replays.remove(&key);
        }
        let set = &mut self.sets[set];
        let is_idle = reached >= set.newest().max(replay);
        set.ready.end_turn(&mut self.slots, is_idle);
    }

    /// Until where a subscriber searches; 0 for nearly all.
    fn replay(&self, key: u32) -> Sequence {
        if self.replays.is_empty() { 0 } else { self.replays.get(&key).copied().unwrap_or(0) }
    }

    fn has_everything(&self, key: u32) -> bool {
        let slot = &self.slots[key as usize];
        slot.cursor >= self.sets[slot.set].newest().max(self.replay(key))
    }

    fn make_ready(&mut self, key: u32) {
        let idle = self.has_everything(key);
        let slot = &mut self.slots[key as usize];
        slot.state = State::Ready;
        let set = slot.set;
        if idle {
            self.sets[set].ready.push_idle(&mut self.slots, key);
        } else {
            self.sets[set].ready.push_behind(&mut self.slots, key);
            self.mark(set);
        }
    }

    fn unlink(&mut self, key: u32) {
        let Slot { set, state, .. } = self.slots[key as usize];
        if state == State::Ready {
            self.sets[set].ready.remove(&mut self.slots, key);
        }
    }
}
