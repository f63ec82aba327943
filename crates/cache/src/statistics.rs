//! Counters of the cache.

macro_rules! statistics {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// Counters since the store was created.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Statistics {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Statistics {
            /// The names and values, in order.
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
    /// Requests served from the store with a fresh response.
    hits,
    /// Requests served from the store with a stale response, because the client accepts it, a
    /// refresh is pending, or the origin is failing and backs off.
    stale_hits,
    /// Requests served with a stale response after the origin failed (RFC 5861 §4).
    stale_if_error,
    /// Requests forwarded because no response was stored.
    misses,
    /// Requests forwarded to validate a stored response.
    validations,
    /// Validations that confirmed the stored response (304).
    revalidated,
    /// Background refreshes (RFC 5861 §3).
    refreshes,
    /// Requests forwarded unchanged.
    bypasses,
    /// Requests that waited for another request's fetch.
    collapsed,
    /// Requests answered with 504 because of `only-if-cached`.
    only_if_cached,
    /// Responses that were stored.
    stored,
    /// Responses to GET that were not stored.
    not_stored,
    /// Responses loaded from the disk tier.
    loaded,
    /// Fetches that failed.
    failures,
    /// Stored responses removed because of a request with an unsafe method (§4.4).
    invalidated,
    /// Stored responses that were purged.
    purged,
    /// URLs evicted from memory.
    evicted,
    /// URLs stored in memory now.
    entries,
    /// The memory that they occupy in bytes, metadata included.
    bytes,
    /// Files in the disk tier now.
    disk_files,
    /// Size of these files in bytes.
    disk_bytes,
    /// Files that could not be read or written.
    disk_failures,
    /// Requests that are being fetched from the origin now.
    fetching,
}

impl Statistics {
    /// Returns the values that only grow: without those that say what is there now.
    pub fn without_present(self) -> Self {
        Self { entries: 0, bytes: 0, disk_files: 0, disk_bytes: 0, fetching: 0, ..self }
    }
}
