//! Counters by outcome.

macro_rules! statistics {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// What became of requests and responses, since the store is there.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Statistics {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Statistics {
            /// Names and values, in order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }

        impl std::ops::AddAssign for Statistics {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

statistics! {
    /// Answered from the store, fresh.
    hits,
    /// Answered from the store though stale: the client allows it, a refresh is on its way, or the
    /// origin fails and is not asked for a while.
    stale_hits,
    /// Answered from the store because the origin failed (RFC 5861 §4).
    stale_if_error,
    /// Went on: nothing was stored.
    misses,
    /// Went on to be validated.
    validations,
    /// Validations that found what is stored unchanged (304).
    revalidated,
    /// Fetches in the background (RFC 5861 §3).
    refreshes,
    /// Went on as they were.
    bypasses,
    /// Waited for another one's fetch.
    collapsed,
    /// Answered 504 because of only-if-cached.
    only_if_cached,
    /// Responses that were stored.
    stored,
    /// Responses to GET that were not.
    not_stored,
    /// Responses that were loaded from the second tier.
    loaded,
    /// Fetches that failed.
    failures,
    /// Stored responses that went because of a request with an unsafe method (§4.4).
    invalidated,
    /// Stored responses that were purged.
    purged,
    /// URLs that went from memory for want of room.
    evicted,
    /// URLs in the store now.
    entries,
    /// Octets that they take, metadata included.
    bytes,
    /// Files of the second tier now.
    disk_files,
    /// Octets in them.
    disk_bytes,
    /// Files that could not be read or written.
    disk_failures,
    /// Requests that are on their way to the origin now.
    fetching,
}
