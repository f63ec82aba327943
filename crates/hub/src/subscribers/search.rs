//! The search for the sets with patterns that an update concerns.
//!
//! Thousands of patterns may be in use, each of which its author may have made slow. So an update is compared with them a
//! part at a time, and the caller serves others meanwhile. Updates are compared one after the other, since a set must
//! learn of its updates in their order. Sets without patterns do not wait for this.

use super::set_table::{SetId, SetTable};
use crate::{history::Sequence, matcher::Selector, topic::HubUrl, update::Update};
use std::{
    collections::BTreeSet,
    ops::Bound::{self, Excluded, Unbounded},
};

/// How far the comparison has come.
#[derive(Debug, Default)]
pub(super) struct Search {
    /// Every update up to here was compared.
    done: Sequence,
    /// The newest update.
    published: Sequence,
    /// The sets of the next update that are looked at, and the last one of them that was.
    group: Group,
    after: Option<SetId>,
}

/// Sets that have something in common. An update may concern all groups, in this order.
#[derive(Clone, Debug, Default)]
enum Group {
    /// They read every topic.
    #[default]
    Any,
    /// They read the topic of the update with this index.
    Exact(usize),
    /// They read what this pattern selects, and it selects the update.
    Pattern(Selector),
    /// No sets: the patterns up to this one were compared.
    Behind(Option<Selector>),
}

impl Search {
    /// Every update up to here was compared.
    pub(super) fn done(&self) -> Sequence {
        self.done
    }

    /// The next update to compare.
    pub(super) fn next(&self) -> Option<Sequence> {
        (self.done < self.published).then_some(self.done + 1)
    }

    /// Adds an update that is to be compared, if there are patterns.
    pub(super) fn publish(&mut self, sequence: Sequence, has_patterns: bool) {
        if self.next().is_none() {
            // Positions that are left out concern no set: otherwise the caller has noted a gap.
            self.skip_to(sequence - 1);
        }
        self.published = sequence;
        if !has_patterns {
            self.skip_to(sequence);
        }
    }

    /// Leaves out all updates up to this one.
    pub(super) fn skip_to(&mut self, sequence: Sequence) {
        *self = Self { done: sequence, published: self.published.max(sequence), ..Self::default() };
    }

    /// Compares the next update, as long as there is time, and appends the sets that it concerns. Returns whether all
    /// were compared. Every call compares at least one pattern.
    pub(super) fn advance(
        &mut self,
        table: &SetTable,
        update: &Update,
        hub: &HubUrl,
        found: &mut Vec<SetId>,
        has_time: &mut impl FnMut() -> bool,
    ) -> bool {
        loop {
            let after = self.after.map_or(Unbounded, Excluded);
            let members = self.members(table, update).into_iter();
            for id in members.flat_map(|sets| sets.range((after, Unbounded))) {
                if table[*id].audience.may_read(update, hub) {
                    found.push(*id);
                }
                // The grants of a set may be patterns.
                if update.private && !has_time() {
                    self.after = Some(*id);
                    return false;
                }
            }
            self.after = None;
            let behind = match &self.group {
                Group::Any => {
                    self.group = Group::Exact(0);
                    continue;
                }
                Group::Exact(index) if index + 1 < update.topics.len() => {
                    self.group = Group::Exact(index + 1);
                    continue;
                }
                Group::Exact(_) | Group::Behind(None) => Unbounded,
                Group::Pattern(selector) | Group::Behind(Some(selector)) => Excluded(selector),
            };
            let Some((selector, is_match)) = next_match(table, update, hub, behind, has_time)
            else {
                self.skip_to(self.done + 1);
                return true;
            };
            let selector = selector.clone();
            self.group = match is_match {
                true => Group::Pattern(selector),
                false => Group::Behind(Some(selector)),
            };
            if !is_match || !has_time() {
                return false;
            }
        }
    }

    fn members<'t>(&self, table: &'t SetTable, update: &Update) -> Option<&'t BTreeSet<SetId>> {
        match &self.group {
            Group::Any => Some(&table.with_patterns.any),
            Group::Exact(index) => {
                update.topics.get(*index).and_then(|topic| table.with_patterns.exact.get(&**topic))
            }
            Group::Pattern(selector) => table.patterns.get(selector).map(|(_, sets)| sets),
            Group::Behind(_) => None,
        }
    }
}

/// Returns the next pattern that selects the update, or the one with which the time was over.
fn next_match<'t>(
    table: &'t SetTable,
    update: &Update,
    hub: &HubUrl,
    behind: Bound<&Selector>,
    has_time: &mut impl FnMut() -> bool,
) -> Option<(&'t Selector, bool)> {
    for (selector, (matcher, _)) in table.patterns.range((behind, Unbounded)) {
        if update.candidates(hub).any(|candidate| matcher.matches(candidate)) {
            return Some((selector, true));
        }
        if !has_time() {
            return Some((selector, false));
        }
    }
    None
}
