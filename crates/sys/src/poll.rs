//! ppoll(2) and pselect(2).

use super::{Call, WakeMask, check, count};
use std::{io, os::fd::RawFd, time::Duration};

pub use libc::pollfd as PollFd;

/// The number of descriptors that an [`FdSet`] holds: the limit of select(2).
pub const FD_SETSIZE: usize = libc::FD_SETSIZE;

/// Bits in one word of an [`FdSet`]; the kernel's `fd_set` is an array of `unsigned long`.
pub const FD_SET_WORD_BITS: usize = usize::BITS as usize;

const WORDS: usize = FD_SETSIZE / FD_SET_WORD_BITS;

/// A set of descriptors below [`FD_SETSIZE`], laid out as the kernel's `fd_set`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct FdSet([usize; WORDS]);

impl FdSet {
    /// Adds `fd`.
    ///
    /// # Panics
    /// When `fd` is negative or not below [`FD_SETSIZE`].
    #[inline]
    pub fn insert(&mut self, fd: RawFd) {
        let (word, bit) = Self::place(fd);
        self.0[word] |= bit;
    }

    /// Removes `fd`.
    ///
    /// # Panics
    /// When `fd` is negative or not below [`FD_SETSIZE`].
    #[inline]
    pub fn remove(&mut self, fd: RawFd) {
        let (word, bit) = Self::place(fd);
        self.0[word] &= !bit;
    }

    /// Whether `fd` is in the set.
    ///
    /// # Panics
    /// When `fd` is negative or not below [`FD_SETSIZE`].
    #[inline]
    pub fn contains(&self, fd: RawFd) -> bool {
        let (word, bit) = Self::place(fd);
        self.0[word] & bit != 0
    }

    /// The bits of the descriptors from `index * FD_SET_WORD_BITS` on.
    #[inline]
    pub fn word(&self, index: usize) -> usize {
        self.0[index]
    }

    /// Copies the first `words` words of `other`.
    #[inline]
    pub fn copy_words(&mut self, other: &Self, words: usize) {
        self.0[..words].copy_from_slice(&other.0[..words]);
    }

    #[inline]
    fn place(fd: RawFd) -> (usize, usize) {
        let fd = usize::try_from(fd).expect("a descriptor is not negative");
        (fd / FD_SET_WORD_BITS, 1 << (fd % FD_SET_WORD_BITS))
    }
}

/// A time in the kernel's form, in nanoseconds; a time too large for its seconds becomes the maximum,
/// practically for ever.
#[inline]
pub(super) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().min(i64::MAX as u64) as _,
        tv_nsec: time.subsec_nanos() as _,
    }
}

/// ppoll(2) without a signal mask. Returns how many of `fds` have `revents`. `None` waits for ever.
#[inline]
pub fn ppoll(fds: &mut [PollFd], timeout: Option<Duration>) -> io::Result<usize> {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads and writes `fds.len()` entries of `fds`; `time` lives through the
    // call; a null mask is allowed.
    let ready = count(Call::Poll, || unsafe {
        check(libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, std::ptr::null()))
    })?;
    Ok(ready as usize)
}

/// As [`ppoll`]; [`wake`](crate::wake) ends the wait with an error of the kind Interrupted.
pub fn ppoll_wakeable(
    fds: &mut [PollFd],
    timeout: Option<Duration>,
    mask: &WakeMask,
) -> io::Result<usize> {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: as in `ppoll`; the mask is an initialised set.
    let ready = count(Call::Poll, || unsafe {
        check(libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, mask.as_ptr()))
    })?;
    Ok(ready as usize)
}

/// pselect(2) without a signal mask over the descriptors below `limit`. Returns how many bits are set
/// in both sets together. `None` waits for ever.
///
/// # Panics
/// When `limit` is above [`FD_SETSIZE`].
#[inline]
pub fn pselect(
    limit: usize,
    read: &mut FdSet,
    write: &mut FdSet,
    timeout: Option<Duration>,
) -> io::Result<usize> {
    assert!(limit <= FD_SETSIZE, "select(2) holds descriptors below {FD_SETSIZE} only");
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `FdSet` has the layout of `fd_set`, an array of `unsigned long` in which descriptor fd is
    // bit fd % bits of word fd / bits; the kernel accesses only the words below `limit`, which is
    // within; `time` lives through the call; null sets and masks are allowed.
    let ready = count(Call::Select, || unsafe {
        check(libc::pselect(
            limit as libc::c_int,
            std::ptr::from_mut(read).cast(),
            std::ptr::from_mut(write).cast(),
            std::ptr::null_mut(),
            time,
            std::ptr::null(),
        ))
    })?;
    Ok(ready as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_has_the_layout_of_the_c_library() {
        assert_eq!(size_of::<FdSet>(), size_of::<libc::fd_set>());
        for fd in [0, 1, 63, 64, 65, 1000, 1023] {
            let mut ours = FdSet::default();
            ours.insert(fd);
            // SAFETY: both are plain arrays of the same size; FD_ISSET reads one bit below 1,024.
            let theirs: libc::fd_set = unsafe { std::mem::transmute(ours) };
            // SAFETY: `theirs` is initialised and `fd` is below FD_SETSIZE.
            assert!(unsafe { libc::FD_ISSET(fd, &theirs) });
            assert!(ours.contains(fd) && !ours.contains((fd + 1) % 1024));
            ours.remove(fd);
            assert_eq!(ours, FdSet::default());
        }
    }
}
