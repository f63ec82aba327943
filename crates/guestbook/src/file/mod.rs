//! The guestbook in a file of this host: LMDB, through `heed`.
//!
//! LMDB and not another embedded store since several processes may have it open at once, which the
//! forking architectures need: redb takes the file for one process. A commit never overwrites what
//! the last one wrote, so that nothing has to be recovered after a crash. A file that was cut short
//! from outside is noticed when it is opened: it goes on with the commit before the last one where
//! that is whole ([`File::is_truncated`]), and is refused where it is not.
//!
//! # What is durable
//!
//! A remark that was acknowledged is on the disk: its commit has been synchronised, the page that
//! makes it visible included, and so has the directory when the file was made. Visits are counted in
//! commits whose last page may follow with the next one: when the machine loses power, the counter
//! may go back by what came since; when a process is killed, nothing is lost.
//!
//! # Processes
//!
//! A process opens the file once ([`File::open`]) and clones what it got; after fork(2) the child
//! opens it anew. A process that dies with the lock of the writer in its hands does no harm.

mod snapshot;
mod store;
mod sys;
mod worker;

pub use store::{File, OpenError};
pub use worker::FileWorker;
