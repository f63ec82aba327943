//! The tests of the crate's public interface, in one program.

mod disk;
mod harness;
mod histories;
mod memory;
mod rfc;

use pollux_testkit::allocations::CountingAllocator;

/// For `memory`, which counts the allocations of its own thread.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
