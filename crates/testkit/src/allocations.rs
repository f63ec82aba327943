//! Counts what is allocated, for tests that something allocates nothing.
//!
//! The test harness has threads that allocate when they like. So either the calling thread's
//! allocations are counted, or those of the threads that a test has started.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
};

/// The system's allocator, with counters. To be a test's `#[global_allocator]`:
///
/// ```
/// use pollux_testkit::allocations::{CountingAllocator, allocations_here};
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator;
///
/// let before = allocations_here();
/// drop(std::hint::black_box(Box::new(1)));
/// assert_eq!(allocations_here() - before, 1);
/// ```
#[derive(Debug)]
pub struct CountingAllocator;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    Old,
    New,
}

static OF_NEW: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicI64 = AtomicI64::new(0);
static IS_WATCHING: AtomicBool = AtomicBool::new(false);

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
    static KIND: Cell<Kind> = const { Cell::new(Kind::Unknown) };
}

/// How often the calling thread has allocated or reallocated so far.
pub fn allocations_here() -> u64 {
    HERE.get()
}

/// From now on the allocations of threads are counted which have not allocated before.
pub fn watch_new_threads() {
    IS_WATCHING.store(true, Ordering::SeqCst);
}

/// How often those threads have allocated or reallocated so far.
pub fn allocations_of_new_threads() -> u64 {
    OF_NEW.load(Ordering::SeqCst)
}

/// Bytes that are allocated and not given back, by all threads.
pub fn bytes_held() -> i64 {
    HELD.load(Ordering::SeqCst)
}

/// Called where memory is given back.
pub(crate) fn note_free(octets: i64) {
    HELD.fetch_sub(octets, Ordering::SeqCst);
}

/// Called at each allocation of so many bytes more, so that it must not allocate itself.
pub(crate) fn note(octets: i64) {
    HELD.fetch_add(octets, Ordering::SeqCst);
    // A thread that is ending has no cells any more; what it allocates then counts for nobody.
    let _ = HERE.try_with(|here| here.set(here.get() + 1));
    let kind = KIND.try_with(|kind| {
        if kind.get() == Kind::Unknown {
            let is_new = IS_WATCHING.load(Ordering::SeqCst);
            kind.set(if is_new { Kind::New } else { Kind::Old });
        }
        kind.get()
    });
    if kind == Ok(Kind::New) {
        OF_NEW.fetch_add(1, Ordering::SeqCst);
    }
}
