//! Opening the environment, which is unsafe since it maps a file.
#![allow(unsafe_code)]

use super::snapshot::Snapshot;
use heed::{Env, EnvFlags, EnvOpenOptions, WithoutTls};
use std::path::Path;

/// The most readers at once, of all processes.
const READERS: u32 = 4096;

/// Opens the file at `path`, and beside it `path-lock`. Of the previous snapshot, nobody else may have
/// it open; until something is committed nobody else can open it.
///
/// # Errors
/// What LMDB says.
pub(super) fn open(
    path: &Path,
    most_bytes: usize,
    snapshot: Snapshot,
) -> heed::Result<Env<WithoutTls>> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(most_bytes).max_readers(READERS).max_dbs(2);
    let mut flags = EnvFlags::NO_SUB_DIR | EnvFlags::NO_META_SYNC;
    flags.set(EnvFlags::PREV_SNAPSHOT, snapshot == Snapshot::Previous);
    // SAFETY: the flags change neither who may use the file nor its locks. NO_SUB_DIR: the path is
    // the file itself. NO_META_SYNC: the page that makes a commit visible may reach the disk with
    // the next one; `File::serve` synchronises it where a remark was kept. PREV_SNAPSHOT: the caller has
    // seen that all of its pages are there.
    unsafe { options.flags(flags) };
    // SAFETY: the map is of a file that only LMDB changes, under its own locks, here and in every
    // other process that opens it. The caller has seen that its pages are in the file. Who truncates
    // it later, from outside, ends this process with SIGBUS, as with any mapped file; it has the mode
    // of a private one.
    unsafe { options.open(path) }
}
