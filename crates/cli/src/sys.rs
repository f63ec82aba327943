//! What the program as a whole promises to the libraries that it is made of.
#![allow(unsafe_code)]

use pollux_server::OwnFileTables;

/// The threads of `serve`, `load` and `idle`, and the processes of `serve`, may have file tables of
/// their own.
pub(crate) fn own_file_tables() -> OwnFileTables {
    // SAFETY: messages go to standard error (`message::init`), which every table has; the access
    // log, the interval log and the progress bar are written by threads with the program's table, or
    // by a process that opens the log itself;
    // no library here keeps a descriptor in a static that a worker or a load thread would use.
    unsafe { OwnFileTables::promise() }
}
