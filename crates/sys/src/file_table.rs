//! The table of open descriptors of one thread or process.

use super::{check, thread::unshare_file_table};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    cell::Cell,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// The number of tables that [`own_file_table`] has made.
static TABLES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The table of this thread.
    static TABLE: Cell<FileTableId> = const { Cell::new(FileTableId(0)) };
}

/// The identity of a file table. A descriptor can be used and closed only where its table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileTableId(u64);

/// Returns the table of this thread: that of the program, unless the thread has called [`own_file_table`].
///
/// A new thread shares the table of the thread that started it, but here it always has that of the program:
/// if the first thread had a table of its own, it must pass on the identity.
pub fn file_table_of_this_thread() -> FileTableId {
    TABLE.get()
}

/// The first descriptor above standard input, output and error.
const FIRST: RawFd = 3;

/// A program's promise that threads and processes which receive this value may have file tables of
/// their own.
///
/// A descriptor is an index into a file table. A thread with its own table does not find descriptors
/// that the rest of the program opened: their numbers are free in its table, and the next socket that
/// the thread opens gets such a number. A logger that writes to a file from that thread would then
/// write into a connection and send its line to the peer. Only the program as a whole can rule that
/// out, so a library takes this value from its caller and does not create it.
#[derive(Clone, Copy, Debug)]
pub struct OwnFileTables {
    _made_by_promise: (),
}

impl OwnFileTables {
    /// Makes the promise.
    ///
    /// # Safety
    /// A thread that calls [`own_file_table`] with this value calls it before it owns a descriptor
    /// itself. Afterwards it neither uses nor drops a descriptor that was opened outside it, except for
    /// the three standard ones and the copies that it was given. That holds for all code that runs in
    /// the thread, not only for the program's own: a `tracing` subscriber or a logger that writes to a
    /// file or a socket, a library that keeps a descriptor in a static. It also holds for the lifetime
    /// of a child that [`fork`](super::fork) starts, with the descriptors that it keeps.
    pub const unsafe fn promise() -> Self {
        Self { _made_by_promise: () }
    }
}

/// Gives this thread a file table of its own that holds the three standard descriptors and copies of
/// `inherited`, and nothing else. Returns the copies, under the lowest free numbers: select(2) supports
/// only numbers below FD_SETSIZE, and `inherited` may have been opened when the process had more
/// descriptors open.
///
/// The thread has a whole RLIMIT_NOFILE for itself, and the kernel need not update the reference count
/// that each system call on a shared table takes and releases (`fdget` in fs/file.c). The descriptors
/// of the other threads are closed in this table: an inherited copy of a listener or of a connection
/// would keep it open after its owner has closed it.
///
/// A thread must call this first, as the promise says. `inherited` stays open in the other table, where
/// its owner may close it.
///
/// # Errors
/// As unshare(2) (EPERM under a seccomp filter, as in many containers) and close_range(2)
/// (Linux 5.9). After an error of unshare(2) nothing has changed.
pub fn own_file_table(
    _promise: OwnFileTables,
    inherited: &[BorrowedFd<'_>],
) -> io::Result<Vec<OwnedFd>> {
    let numbers: Vec<RawFd> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
    unshare_file_table()?;
    TABLE.set(FileTableId(TABLES.fetch_add(1, Relaxed) + 1));
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    close_all_but(&sorted)?;
    // SAFETY: these descriptors are open in the new table, which only this thread uses, and by the
    // promise nothing in this thread owns them yet.
    numbers.into_iter().map(|fd| lowest(unsafe { OwnedFd::from_raw_fd(fd) })).collect()
}

/// Closes all descriptors except the three standard ones and `inherited`, which must be in ascending
/// order. By the promise, nothing in this thread owns a descriptor that is closed here.
pub(super) fn close_all_but(inherited: &[RawFd]) -> io::Result<()> {
    let mut first = FIRST;
    for &fd in inherited.iter().filter(|&&fd| fd >= FIRST) {
        close_range(first, fd - 1)?;
        first = first.max(fd + 1);
    }
    close_range(first, RawFd::MAX)
}

/// Duplicates `fd` to the lowest free number; returns `fd` itself if its number is lower.
fn lowest(fd: OwnedFd) -> io::Result<OwnedFd> {
    let copy = fd.try_clone()?;
    Ok(if copy.as_raw_fd() < fd.as_raw_fd() { copy } else { fd })
}

/// Raises this process's soft RLIMIT_NOFILE to the hard one. Returns the new limit: one more than the
/// highest number that a descriptor may have.
///
/// # Errors
/// As setrlimit(2); the limit is then unchanged.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

fn close_range(first: RawFd, last: RawFd) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: takes no pointer; nothing in this thread owns the descriptors that are closed (the
    // promise). The system call is made directly: rustix does not have it, and glibc only since 2.34.
    let returned = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    check(returned as libc::c_int).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        os::{fd::AsFd, unix::net::UnixStream},
        thread,
        time::Duration,
    };

    fn promise() -> OwnFileTables {
        // SAFETY: the threads below use only descriptors that they open or are given; the output of a
        // test is captured in memory or goes to the standard descriptors.
        unsafe { OwnFileTables::promise() }
    }

    #[test]
    fn the_copies_have_the_lowest_numbers() {
        let many: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
        let (first, last) = (&many[0].0, &many[99].1);
        assert!(last.as_raw_fd() > 200);
        thread::scope(|scope| {
            let numbers = scope.spawn(|| {
                let copies = own_file_table(promise(), &[last.as_fd(), first.as_fd()]).unwrap();
                copies.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>()
            });
            let mut numbers = numbers.join().unwrap();
            numbers.sort_unstable();
            assert!(numbers[0] >= FIRST && numbers[1] <= FIRST + 2, "{numbers:?}");
        });
    }

    #[test]
    fn each_table_has_its_identity() {
        let of_own = || {
            own_file_table(promise(), &[]).unwrap();
            file_table_of_this_thread()
        };
        let [one, other] = [(); 2].map(|()| thread::spawn(of_own).join().unwrap());
        let shared = thread::spawn(file_table_of_this_thread).join().unwrap();
        assert_eq!(shared, file_table_of_this_thread());
        assert!(one != other && one != shared && other != shared);
    }

    #[test]
    fn only_what_is_kept_is_in_the_new_table() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut kept_near, kept_far) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let copies = own_file_table(promise(), &[kept_far.as_fd()]).unwrap();
                let mut copy = UnixStream::from(copies.into_iter().next().unwrap());
                let mut bytes = [0; 2];
                // `read_exact` returns when the other table's thread writes, after it has closed
                // `near`.
                copy.read_exact(&mut bytes).unwrap();
                copy.write_all(&bytes).unwrap();
            });
            // If the thread still held a copy of `near`, `far` would see no end of stream.
            drop(near);
            let mut far = far;
            far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut seen = [0; 1];
            assert_eq!(far.read(&mut seen).unwrap(), 0);
            kept_near.write_all(b"ok").unwrap();
            let mut bytes = [0; 2];
            kept_near.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"ok");
            thread.join().unwrap();
        });
    }
}
