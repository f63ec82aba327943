//! The disk tier: stored responses are also written to a directory and survive a restart.
//!
//! One thread does everything that may block, so a worker never waits for the disk. Responses
//! stored in memory are queued for writing. If a requested response is only on disk, the thread
//! loads it into memory; meanwhile its requests wait as they would for another request's fetch.
//! Responses are always sent from memory, after their checksums were verified.
//!
//! A file is written under a temporary name and then renamed. If the process is killed in between,
//! the temporary file remains and the next start removes it. A file damaged by a power failure
//! fails its checksum and is removed. On a full disk only those responses are lost that could not
//! be written.

mod directory;
mod file;
mod index;
mod worker;

pub use directory::{Directory, FsDirectory};
pub(crate) use index::DiskEntry;
pub(crate) use worker::{DiskTier, DiskWorker, Job};
