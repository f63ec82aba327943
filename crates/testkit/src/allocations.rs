//! Counts allocations, for tests which show that an operation allocates nothing.
//!
//! The threads of the test harness allocate at any time. A test therefore counts either the
//! allocations of the calling thread, or those of the threads that the test has started.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
};

/// The system's allocator, with counters. A test installs it as its `#[global_allocator]`:
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

/// Returns how often the calling thread has allocated or reallocated so far.
pub fn allocations_here() -> u64 {
    THREAD_COUNT.get()
}

/// Starts to count the allocations of new threads: of each thread that makes its first allocation
/// after this call.
pub fn watch_new_threads() {
    IS_WATCHING.store(true, Ordering::SeqCst);
}

/// Returns how often the threads that [`watch_new_threads`] selects have allocated or reallocated so
/// far.
pub fn allocations_of_new_threads() -> u64 {
    NEW_THREAD_COUNT.load(Ordering::SeqCst)
}

/// Returns the number of bytes that all threads have allocated and not freed.
pub fn bytes_held() -> i64 {
    LIVE_BYTES.load(Ordering::SeqCst)
}

/// Records that `bytes` were freed.
pub(crate) fn note_free(bytes: i64) {
    LIVE_BYTES.fetch_sub(bytes, Ordering::SeqCst);
}

/// Records an allocation that adds `bytes`. The allocator calls this function at each allocation, so
/// it must not allocate.
pub(crate) fn note(bytes: i64) {
    LIVE_BYTES.fetch_add(bytes, Ordering::SeqCst);
    // The thread-local counters of an ending thread are already destroyed; its last allocations are
    // not counted.
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
