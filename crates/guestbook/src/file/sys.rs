//! Opens the LMDB environment, which is unsafe because it maps a file.
#![allow(unsafe_code)]

use super::snapshot::Snapshot;
use heed::{Env, EnvFlags, EnvOpenOptions, WithoutTls};
use std::path::Path;

/// The maximum number of simultaneous readers in all processes.
const READERS: u32 = 4096;

/// Opens the file at `path`, and the lock file `path-lock` beside it. With the previous snapshot no
/// other process may have it open, and none can open it until something is committed.
///
/// # Errors
/// The errors of LMDB.
pub(super) fn open(
    path: &Path,
    most_bytes: usize,
    snapshot: Snapshot,
) -> heed::Result<Env<WithoutTls>> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(most_bytes).max_readers(READERS).max_dbs(2);
    let mut flags = EnvFlags::NO_SUB_DIR | EnvFlags::NO_META_SYNC;
    flags.set(EnvFlags::PREV_SNAPSHOT, snapshot == Snapshot::Previous);
    // SAFETY: the flags do not change which processes may use the file, nor its locks. NO_SUB_DIR: the
    // path is the file itself. NO_META_SYNC: the page that makes a commit visible may reach the disk
    // with the next one; `File::serve` synchronises it after a remark was stored. PREV_SNAPSHOT: the
    // caller has checked that all of its pages exist.
    unsafe { options.flags(flags) };
    // SAFETY: only LMDB changes the mapped file, under its own locks, in this and in every other
    // process that opens it. The caller has checked that its pages exist. If another program
    // truncates the file later, this process ends with SIGBUS, as with any mapped file; the file's
    // mode is 0600.
    unsafe { options.open(path) }
}
