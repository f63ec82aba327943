//! The lookups of names that services request.

use super::EventTarget;
use std::sync::atomic::{AtomicU32, Ordering};

/// A name to be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// A host name, or an address in text.
    pub(crate) name: String,
    /// The port of the addresses in the answer.
    pub(crate) port: u16,
    /// The receiver of the answer.
    pub(crate) to: EventTarget,
    /// The identifier that is returned with the answer.
    pub(crate) id: LookupId,
}

/// The identifier of a name lookup. The part of a service that requests the lookup chooses it, and recognises
/// the answer by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LookupId {
    group: u32,
    index: u32,
}

/// The lookups of one part of a service. Their identifiers differ from those of all other groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LookupGroup(u32);

impl LookupGroup {
    /// Creates a group.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the identifier of the lookup with this index.
    pub(crate) fn lookup(self, index: u32) -> LookupId {
        LookupId { group: self.0, index }
    }

    /// Returns the index of a lookup, if it belongs to this group.
    pub(crate) fn index_of(self, id: LookupId) -> Option<u32> {
        (id.group == self.0).then_some(id.index)
    }
}

/// The reason why a name was not resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The thread that resolves names, or its notifier, cannot be created.
    #[error("no thread to resolve names: {0}")]
    NoThread(Box<str>),
    /// The thread that resolves names has ended.
    #[error("the thread that resolves names has ended")]
    ThreadEnded,
    /// Too many names wait to be resolved.
    #[error("too many names wait to be resolved")]
    Busy,
    /// The system's resolver has failed. The text contains the name and the reason.
    #[error("{0}")]
    Failed(Box<str>),
}
