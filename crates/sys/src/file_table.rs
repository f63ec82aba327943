//! The table of open descriptors of one thread or process.

use super::{check, thread::unshare_file_table};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

/// The first descriptor above standard input, output and error.
const FIRST: RawFd = 3;

/// A program's promise that threads and processes which receive this value may have file tables of
/// their own.
///
/// A descriptor is an index into a file table. A thread with its own table does not find what the
/// rest of the program opened: that number is free in its table, and the next socket that the
/// thread opens gets it. A logger that writes to a file from that thread would then write into a
/// connection and send its line to the peer. Only the program as a whole can rule that out, so a
/// library takes this value from its caller and does not create it.
#[derive(Clone, Copy, Debug)]
pub struct OwnFileTables {
    _made_by_promise: (),
}

impl OwnFileTables {
    /// Makes the promise.
    ///
    /// # Safety
    /// A thread that calls [`own_file_table`] with this value does so before it owns a descriptor
    /// itself, and afterwards neither uses nor drops one that was opened outside it, but for the
    /// three standard ones and the copies that it was given. That holds for all that runs in the
    /// thread, not only for its own code: a `tracing` subscriber or a logger that writes to a file
    /// or a socket, a library that keeps a descriptor in a static. It holds likewise for the life of
    /// a child that [`fork`](super::fork) starts, with the descriptors that it keeps.
    pub const unsafe fn promise() -> Self {
        Self { _made_by_promise: () }
    }
}

/// Gives this thread a file table of its own that holds the three standard descriptors and
/// copies of `inherited`, and nothing else. Returns the copies, under the lowest numbers: select(2)
/// holds those below FD_SETSIZE only, and `inherited` may have come when the process had more open.
///
/// Besides a whole RLIMIT_NOFILE for the thread, this spares the kernel the reference count that
/// each system call on a shared table takes and gives back (`fdget` in fs/file.c). What the other
/// threads hold is closed *here*: an inherited copy of a listener or of a connection would keep it
/// open after its owner has closed it.
///
/// To be called first thing in a thread, as the promise says. `inherited` stays open in the other table,
/// where its owner is free to close it.
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
    let mut sorted = numbers.clone();
    sorted.sort_unstable();
    close_all_but(&sorted)?;
    // SAFETY: these descriptors are open in the new table, whose only user is this thread, and by
    // the promise nothing in this thread owns them yet.
    numbers.into_iter().map(|fd| lowest(unsafe { OwnedFd::from_raw_fd(fd) })).collect()
}

/// Closes all descriptors but the three standard ones and `inherited`, which are in ascending order. By
/// the promise nobody owns one of those that are closed.
pub(super) fn close_all_but(inherited: &[RawFd]) -> io::Result<()> {
    let mut first = FIRST;
    for &fd in inherited.iter().filter(|&&fd| fd >= FIRST) {
        close_range(first, fd - 1)?;
        first = first.max(fd + 1);
    }
    close_range(first, RawFd::MAX)
}

/// The same open file under the lowest free number, or as it is where that is the lowest.
fn lowest(fd: OwnedFd) -> io::Result<OwnedFd> {
    let copy = fd.try_clone()?;
    Ok(if copy.as_raw_fd() < fd.as_raw_fd() { copy } else { fd })
}

/// Raises this process's soft RLIMIT_NOFILE to the hard one. Returns the limit that holds then:
/// one more than the highest number that a descriptor may have.
///
/// # Errors
/// As setrlimit(2); the limit is what it was.
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
    // SAFETY: takes no pointer; what is closed belongs to nobody in this thread (the promise). The
    // system call itself: rustix does not have it, and glibc only since 2.34.
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
        // SAFETY: the threads below use what they open and are given alone; what a test prints is
        // captured in memory or goes to the standard descriptors.
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
    fn only_what_is_kept_is_in_the_new_table() {
        let (near, far) = UnixStream::pair().unwrap();
        let (mut kept_near, kept_far) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let copies = own_file_table(promise(), &[kept_far.as_fd()]).unwrap();
                let mut copy = UnixStream::from(copies.into_iter().next().unwrap());
                let mut bytes = [0; 2];
                // Returns when the other table writes, after it has closed `near`.
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
