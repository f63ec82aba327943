//! A promise that only the whole program can make: its threads may have separate file tables.
#![allow(unsafe_code)]

use pollux_server::OwnFileTables;

/// Permits the threads of `serve`, `load` and `idle`, and the processes of `serve`, to have their own file tables.
pub(crate) fn own_file_tables() -> OwnFileTables {
    // SAFETY: a descriptor must be used only by threads whose table has it. Messages go to standard error
    // (`message::init`), which every table has. The access log, the interval log and the progress bar are written by
    // threads with the program's own table, or by a process that opens the log itself. No library here keeps a
    // descriptor in a static that a worker or a load thread uses.
    unsafe { OwnFileTables::promise() }
}
