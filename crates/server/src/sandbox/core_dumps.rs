//! Core dumps without the memory of the server.

use std::{fs, io};

/// The kinds of memory that a core dump of this process contains (core(5)), in hexadecimal.
const FILTER: &str = "/proc/self/coredump_filter";

/// Excludes all memory from core dumps of this process, and of the processes that it starts: secrets of TLS
/// are in keys of certificates and tickets, in expanded keys, in handshakes, and in decrypted data. A core dump then
/// contains only the registers.
///
/// PR_SET_DUMPABLE would also exclude the registers. It is not used because the kernel would then refuse
/// profilers, debuggers and measurements of memory to the server's own user. A server that has changed its
/// user (`--user`) is not dumpable in any case: the kernel does that.
///
/// Call it before the process changes its user or enters the sandbox, which both forbid it.
///
/// # Errors
/// /proc is not mounted, or the kernel makes no core dumps.
pub fn exclude_memory_from_core_dumps() -> io::Result<()> {
    fs::write(FILTER, "0")
}
