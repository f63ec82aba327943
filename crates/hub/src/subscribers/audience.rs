//! What a subscriber reads, and may read.

use crate::{
    matcher::{Matcher, Rule},
    topic::HubUrl,
    update::Update,
};
use std::sync::Arc;

/// What a subscriber reads, and what of it may be private. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Audience(Arc<Parts>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Parts {
    routes: Box<[Rule]>,
    grants: Box<[Rule]>,
    has_patterns: bool,
}

impl Audience {
    /// `routes` are the topics that the subscriber requested, `grants` those whose private updates its
    /// token lets it read. Each should be sorted and without repetition, so that equal audiences are
    /// shared.
    #[must_use]
    pub fn new(routes: Vec<Rule>, grants: Vec<Rule>) -> Self {
        let is_pattern = |rule: &Rule| !matches!(*rule.matcher, Matcher::Any | Matcher::Exact(_));
        let has_patterns = routes.iter().chain(&grants).any(is_pattern);
        Self(Arc::new(Parts { routes: routes.into(), grants: grants.into(), has_patterns }))
    }

    /// Whether a topic or a grant is a pattern, which costs far more to compare with an update than a plain text does.
    #[must_use]
    pub fn has_patterns(&self) -> bool {
        self.0.has_patterns
    }

    /// The topics that the subscriber requested.
    #[must_use]
    pub fn routes(&self) -> &[Rule] {
        &self.0.routes
    }

    /// The topics whose private updates it may read.
    #[must_use]
    pub fn grants(&self) -> &[Rule] {
        &self.0.grants
    }

    /// Whether an update is to be sent: its topic was requested, and it is public or permitted.
    #[must_use]
    pub fn reads(&self, update: &Update, hub: &HubUrl) -> bool {
        selects(&self.0.routes, update, hub) && self.may_read(update, hub)
    }

    /// Whether an update is public or permitted.
    #[must_use]
    pub fn may_read(&self, update: &Update, hub: &HubUrl) -> bool {
        !update.private || selects(&self.0.grants, update, hub)
    }

    /// An estimate of its size in bytes. A pattern's compiled form belongs to all that use it, and is left out.
    pub(super) fn bytes(&self) -> usize {
        let rules = self.0.routes.iter().chain(&self.0.grants).map(|rule| {
            let matcher = if matches!(*rule.matcher, Matcher::Exact(_)) {
                size_of::<Matcher>() + SHARED
            } else {
                0
            };
            size_of::<Rule>() + rule.selector.text.len() + SHARED + matcher
        });
        size_of::<Parts>() + 2 * SHARED + rules.sum::<usize>()
    }
}

/// What an allocation costs besides its contents: two counters, and the allocator's own use.
const SHARED: usize = 32;

fn selects(rules: &[Rule], update: &Update, hub: &HubUrl) -> bool {
    rules.iter().any(|rule| match &*rule.matcher {
        Matcher::Any => true,
        Matcher::Exact(topic) => update.topics.iter().any(|candidate| **candidate == **topic),
        pattern => update.candidates(hub).any(|candidate| pattern.matches(candidate)),
    })
}
