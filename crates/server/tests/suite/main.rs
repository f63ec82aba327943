//! The tests of the crate's public interface, in one program.

mod admin;
mod allocations;
mod compress;
mod conformance;
mod e2e;
mod embedded;
mod frontend;
mod frontend_memory;
mod frontend_storm;
mod guestbook;
mod hub;
mod service;
mod site_rules;

use pollux_testkit::allocations::CountingAllocator;

/// Counts allocations for `allocations`, `frontend_memory` and `service`, whose tests run in their own
/// processes.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
