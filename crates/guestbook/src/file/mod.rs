//! The guestbook in a local file: LMDB, through `heed`.
//!
//! LMDB was chosen because several processes may open a file at once, which the forking
//! architectures require; redb reserves the file for one process. A commit never overwrites the
//! pages of the previous one, so no recovery is needed after a crash. A truncated file is detected
//! when it is opened. If the commit before the last one is complete, the file continues from there
//! ([`File::is_truncated`]); otherwise it is rejected.
//!
//! # Durability
//!
//! An acknowledged remark is on the disk: its commit is synchronised, including the page that makes
//! it visible and, for a new file, the directory entry. Visits are counted in commits whose last
//! page may reach the disk with the next commit. If the machine loses power, recent visits may be
//! lost; if a process is killed, nothing is lost.
//!
//! # Processes
//!
//! A process opens the file once ([`File::open`]) and clones the result. After fork(2) the child
//! must open it again. A process may end while it holds the writer lock; the lock is then released.

mod snapshot;
mod store;
mod sys;
mod worker;

pub use store::{File, OpenError};
pub use worker::FileWorker;
