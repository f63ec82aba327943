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
enum CountMode {
    Unknown,
    Old,
    New,
}

static NEW_THREAD_COUNT: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);
static IS_WATCHING: AtomicBool = AtomicBool::new(false);

thread_local! {
    static THREAD_COUNT: Cell<u64> = const { Cell::new(0) };
    static MODE: Cell<CountMode> = const { Cell::new(CountMode::Unknown) };
}

/// How often the calling thread has allocated or reallocated so far.
pub fn allocations_here() -> u64 {
    THREAD_COUNT.get()
}

/// From now on the allocations of threads are counted which have not allocated before.
pub fn watch_new_threads() {
    IS_WATCHING.store(true, Ordering::SeqCst);
}

/// How often those threads have allocated or reallocated so far.
pub fn allocations_of_new_threads() -> u64 {
    NEW_THREAD_COUNT.load(Ordering::SeqCst)
}

/// Bytes that are allocated and not given back, by all threads.
pub fn bytes_held() -> i64 {
    LIVE_BYTES.load(Ordering::SeqCst)
}

/// Called where memory is given back.
pub(crate) fn note_free(bytes: i64) {
    LIVE_BYTES.fetch_sub(bytes, Ordering::SeqCst);
}

/// Called at each allocation of so many bytes more, so that it must not allocate itself.
pub(crate) fn note(bytes: i64) {
    LIVE_BYTES.fetch_add(bytes, Ordering::SeqCst);
    // A thread that is ending has no cells any more; its last allocations are not counted.
    let _ = THREAD_COUNT.try_with(|here| here.set(here.get() + 1));
    let kind = MODE.try_with(|kind| {
        if kind.get() == CountMode::Unknown {
            let is_new = IS_WATCHING.load(Ordering::SeqCst);
            kind.set(if is_new { CountMode::New } else { CountMode::Old });
        }
        kind.get()
    });
    if kind == Ok(CountMode::New) {
        NEW_THREAD_COUNT.fetch_add(1, Ordering::SeqCst);
    }
}
