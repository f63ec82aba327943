//! The second tier: what is stored is in a folder too, and is there after a restart.
//!
//! A thread of its own does all that may block. What is stored in memory is handed to it to be written;
//! what is asked for and not in memory, but in the folder, it loads, while those who ask for it wait as
//! they would for another one's fetch. So a worker never waits for a disk, and content is checked
//! octet by octet before anybody gets it: it is sent from memory, not from the file.
//!
//! A file is written under a name that nobody reads, then renamed. Whoever is killed meanwhile leaves
//! that name, which the next start removes; a file that a power failure tore fails its checksum and goes.
//! A full disk costs what could not be written, and nothing else.

mod directory;
mod file;
mod index;
mod worker;

pub use directory::{Directory, FsDirectory};
pub(crate) use index::DiskEntry;
pub(crate) use worker::{DiskTier, DiskWorker, Job};

/// Octets of content that may wait to be written; what comes while there are more is not.
const QUEUE_BYTES_MAX: u64 = 16 << 20;
/// Octets of memory that the index of the files may take: those of some 600,000 files with short URLs.
const INDEX_BYTES_MAX: u64 = 256 << 20;
/// Loads that may wait; with more, the origin is asked instead.
const LOADS_MAX: usize = 1024;
