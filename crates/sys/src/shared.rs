//! Memory that a process shares with its forked children.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::{
    io,
    ops::Deref,
    ptr::{self, NonNull},
    slice,
    sync::atomic::AtomicU64,
};

/// Words of memory that are shared with children (mmap(2), MAP_SHARED). All are 0 at first; the kernel
/// allocates memory only for pages that have been written to.
#[derive(Debug)]
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: it owns its mapping, and the words are atomic.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps `len` words.
    ///
    /// # Errors
    /// The errors of mmap(2); EINVAL if `len` is 0.
    pub fn new(len: usize) -> io::Result<Self> {
        let bytes = len.checked_mul(size_of::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let readable_and_writable = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses, backed by no file.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, readable_and_writable, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `len` words, aligned to a page, zeroed by the kernel, and lives as
        // long as `self`; all other users of it, also in other processes, use atomics.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len * size_of::<AtomicU64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn there_are_as_many_words_as_requested_and_all_are_0() {
        let words = SharedWords::new(1000).unwrap();
        assert_eq!(words.len(), 1000);
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        words[999].store(7, Relaxed);
        assert_eq!(words[999].load(Relaxed), 7);
        assert!(SharedWords::new(0).is_err());
        assert!(SharedWords::new(usize::MAX).is_err());
    }
}
