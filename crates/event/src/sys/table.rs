//! The table of open descriptors of one thread or process.

use super::{check, thread::unshare_file_table};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

/// The first descriptor above standard input, output and error.
const FIRST: RawFd = 3;

/// Gives this thread a file table of its own that holds the three standard descriptors and
/// copies of `kept`, and nothing else. Returns the copies, under the lowest numbers: select(2)
/// holds those below FD_SETSIZE only, and `kept` may have come when the process had more open.
///
/// Besides a whole RLIMIT_NOFILE for the thread, this spares the kernel the reference count that
/// each system call on a shared table takes and gives back (`fdget` in fs/file.c). What the other
/// threads hold is closed *here*: an inherited copy of a listener or of a connection would keep it
/// open after its owner has closed it.
///
/// To be called first thing in a thread, before it owns any other descriptor. `kept` stays open in
/// the other table, where its owner is free to close it.
///
/// # Errors
/// As unshare(2) (EPERM under a seccomp filter, as in many containers) and close_range(2)
/// (Linux 5.9). After an error of unshare(2) nothing has changed.
pub fn own_file_table(kept: &[BorrowedFd<'_>]) -> io::Result<Vec<OwnedFd>> {
    let numbers: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    unshare_file_table()?;
    let mut sorted: Vec<RawFd> = numbers.iter().copied().filter(|&fd| fd >= FIRST).collect();
    sorted.sort_unstable();
    let mut first = FIRST;
    for &fd in &sorted {
        close_range(first, fd - 1)?;
        first = first.max(fd + 1);
    }
    close_range(first, RawFd::MAX)?;
    // SAFETY: these descriptors are open in the new table, whose only user is this thread, and by
    // the contract above nothing in this thread owns them yet.
    numbers.into_iter().map(|fd| lowest(unsafe { OwnedFd::from_raw_fd(fd) })).collect()
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
    // SAFETY: an all-zero rlimit is a valid value of the type.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: `limit` is written and lives through the call.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    if limit.rlim_cur != limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` lives through the call.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) })?;
    }
    Ok(limit.rlim_cur)
}

fn close_range(first: RawFd, last: RawFd) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: takes no pointer; what is closed belongs to nobody in this thread (see above). The
    // system call itself, since glibc has its wrapper only since 2.34.
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

    #[test]
    fn the_copies_have_the_lowest_numbers() {
        let many: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
        let (first, last) = (&many[0].0, &many[99].1);
        assert!(last.as_raw_fd() > 200);
        thread::scope(|scope| {
            let numbers = scope.spawn(|| {
                let copies = own_file_table(&[last.as_fd(), first.as_fd()]).unwrap();
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
                let copies = own_file_table(&[kept_far.as_fd()]).unwrap();
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
