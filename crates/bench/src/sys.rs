//! The promise of the program as a whole to its libraries.
#![allow(unsafe_code)]

use pollux_sys::OwnFileTables;

/// The thread that holds the far ends of the connections may have a file table of its own.
pub(crate) fn own_file_tables() -> OwnFileTables {
    // SAFETY: that thread begins with its file table, opens its connections itself, and reports
    // over a channel; nothing here logs, and no library keeps a descriptor that it would use.
    unsafe { OwnFileTables::promise() }
}
