//! Opening the environment, which is unsafe since it maps a file.
#![allow(unsafe_code)]

use heed::{Env, EnvFlags, EnvOpenOptions, WithoutTls};
use std::path::Path;

/// The most readers at once, of all processes.
const READERS: u32 = 4096;

/// Opens the file at `path`, and beside it `path-lock`.
///
/// # Errors
/// What LMDB says.
pub(super) fn open(path: &Path, most_bytes: usize) -> heed::Result<Env<WithoutTls>> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(most_bytes).max_readers(READERS).max_dbs(2);
    // SAFETY: the flags change neither who may use the file nor its locks. NO_SUB_DIR: the path is
    // the file itself. NO_META_SYNC: the page that makes a commit visible may reach the disk with
    // the next one; `File::serve` synchronises it where a remark was kept.
    unsafe { options.flags(EnvFlags::NO_SUB_DIR | EnvFlags::NO_META_SYNC) };
    // SAFETY: the map is of a file that only LMDB changes, under its own locks, here and in every
    // other process that opens it. Who truncates it from outside ends this process with SIGBUS, as
    // with any mapped file; it has the mode of a private one.
    unsafe { options.open(path) }
}
