//! The tests of the crate's public interface, in one program.

mod allocations;
mod body;
mod common;
mod conditional;
mod parse_helpers;
mod properties;
mod reader;
mod reply;
mod request_fields;
mod request_line;
mod smuggling;

use pollux_testkit::allocations::CountingAllocator;

/// For `allocations`, which counts the allocations of its own thread.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
