//! ppoll(2) and pselect(2).

use super::{Call, WakeMask, check, count};
use std::{io, os::fd::RawFd, time::Duration};

pub use libc::pollfd as PollFd;

/// The number of descriptors that the C library's `fd_set` holds. The kernel has no such limit: it takes bitmaps of any
/// length.
pub const FD_SETSIZE: usize = libc::FD_SETSIZE;

/// Bits in one word of an [`FdSet`]; the kernel's `fd_set` is an array of `unsigned long`.
pub const FD_SET_WORD_BITS: usize = usize::BITS as usize;

/// A set of descriptors, laid out as the kernel's `fd_set`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdSet(Box<[usize]>);

impl FdSet {
    /// An empty set that can hold the descriptors below `descriptors`.
    pub fn new(descriptors: usize) -> Self {
        Self(vec![0; descriptors.div_ceil(FD_SET_WORD_BITS)].into())
    }

    /// The number of descriptors that the set can hold, a multiple of [`FD_SET_WORD_BITS`].
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.len() * FD_SET_WORD_BITS
    }

    /// Adds `fd`.
    ///
    /// # Panics
    /// When `fd` is negative or not below [`FdSet::capacity`].
    #[inline]
    pub fn insert(&mut self, fd: RawFd) {
        let (word, bit) = Self::word_and_bit(fd);
        self.0[word] |= bit;
    }

    /// Removes `fd`.
    ///
    /// # Panics
    /// When `fd` is negative or not below [`FdSet::capacity`].
    #[inline]
    pub fn remove(&mut self, fd: RawFd) {
        let (word, bit) = Self::word_and_bit(fd);
        self.0[word] &= !bit;
    }

    /// Whether `fd` is in the set.
    ///
    /// # Panics
    /// When `fd` is negative or not below [`FdSet::capacity`].
    #[inline]
    pub fn contains(&self, fd: RawFd) -> bool {
        let (word, bit) = Self::word_and_bit(fd);
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

    /// Removes all descriptors from the first `words` words.
    #[inline]
    pub fn clear_words(&mut self, words: usize) {
        self.0[..words].fill(0);
    }

    #[inline]
    fn word_and_bit(fd: RawFd) -> (usize, usize) {
        let fd = usize::try_from(fd).expect("a descriptor is not negative");
        (fd / FD_SET_WORD_BITS, 1 << (fd % FD_SET_WORD_BITS))
    }
}

/// A time in the kernel's form, in nanoseconds; a time too large for its seconds becomes the maximum,
/// practically for ever.
#[inline]
pub(super) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        // As large as a `long` at most, because the field has 32 bits on some architectures.
        tv_sec: time.as_secs().min(libc::c_long::MAX as u64) as _,
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
/// When one of the sets cannot hold `limit` descriptors.
#[inline]
pub fn pselect(
    limit: usize,
    read: &mut FdSet,
    write: &mut FdSet,
    timeout: Option<Duration>,
) -> io::Result<usize> {
    let capacity = read.capacity().min(write.capacity());
    assert!(limit <= capacity, "the sets hold descriptors below {capacity} only");
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the words of a `FdSet` have the layout of the kernel's `fd_set`, an array of `unsigned long` in
    // which descriptor fd is bit fd % bits of word fd / bits; the C library passes the pointers on, and the
    // kernel accesses only the words that hold descriptors below `limit`, which both sets have; `time` lives
    // through the call; null sets and masks are allowed.
    let ready = count(Call::Select, || unsafe {
        check(libc::pselect(
            limit as libc::c_int,
            read.0.as_mut_ptr().cast(),
            write.0.as_mut_ptr().cast(),
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
        let empty = FdSet::new(FD_SETSIZE);
        assert_eq!(size_of_val(&*empty.0), size_of::<libc::fd_set>());
        for fd in [0, 1, 63, 64, 65, 1000, 1023] {
            let mut ours = empty.clone();
            ours.insert(fd);
            // SAFETY: both are plain arrays of the same size, and an `fd_set` is aligned as an `unsigned long`.
            let theirs: libc::fd_set = unsafe { ours.0.as_ptr().cast::<libc::fd_set>().read() };
            // SAFETY: `theirs` is initialised and `fd` is below FD_SETSIZE.
            assert!(unsafe { libc::FD_ISSET(fd, &theirs) });
            assert!(ours.contains(fd) && !ours.contains((fd + 1) % 1024));
            ours.remove(fd);
            assert_eq!(ours, empty);
        }
    }

    #[test]
    fn a_set_can_be_larger_than_that_of_the_c_library() {
        let mut set = FdSet::new(70_000);
        assert_eq!(set.capacity(), 70_016);
        set.insert(69_999);
        assert!(set.contains(69_999) && !set.contains(69_998));
        set.clear_words(set.capacity() / FD_SET_WORD_BITS);
        assert_eq!(set, FdSet::new(70_000));
    }
}
