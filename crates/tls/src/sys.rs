//! The only `unsafe` code of this crate: pages for secrets.

#![allow(unsafe_code)]

use crate::table::Entry;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::{
    io,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
};

/// The number of entries of a block, which fill eight pages.
pub(crate) const BLOCK_ENTRIES: usize = (8 * 4096) / size_of::<Entry<()>>();

/// A block of entries in pages of their own, which are excluded from core dumps, and which are filled
/// with zeros in a forked child: no other process has a connection's secrets, or uses its nonces again.
pub(crate) struct Block<E> {
    entries: NonNull<[Entry<E>; BLOCK_ENTRIES]>,
}

// SAFETY: a block owns its entries like a Box does.
unsafe impl<E: Send> Send for Block<E> {}

impl<E> Block<E> {
    /// A block of entries that are not in use.
    ///
    /// # Errors
    /// mmap(2).
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a new private mapping, which nothing else refers to.
        let pages = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                Self::LEN,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        for advice in [Advice::LinuxDontDump, Advice::LinuxWipeOnFork] {
            // SAFETY: the whole mapping made above. Neither advice changes the content of the pages in
            // this process. A kernel that does not support one of them (before 4.14) still provides the
            // pages.
            let _ = unsafe { madvise(pages, Self::LEN, advice) };
        }
        let entries = NonNull::new(pages.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // Zeros are a valid entry: see `Entry`.
        Ok(Self { entries })
    }

    const LEN: usize = size_of::<[Entry<E>; BLOCK_ENTRIES]>();
}

impl<E> Deref for Block<E> {
    type Target = [Entry<E>; BLOCK_ENTRIES];
    fn deref(&self) -> &Self::Target {
        // SAFETY: mapped and aligned to a page since `new`, and owned by self. Fresh pages, and those
        // wiped by a fork, are zeros, which are a valid `Entry` (its documentation says why).
        unsafe { self.entries.as_ref() }
    }
}

impl<E> DerefMut for Block<E> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: as above; only &mut self gives access to it.
        unsafe { self.entries.as_mut() }
    }
}

impl<E> Drop for Block<E> {
    fn drop(&mut self) {
        // SAFETY: the entries are dropped once, which zeroes their secrets, and the mapping of `new` is
        // not used after that.
        unsafe {
            ptr::drop_in_place(self.entries.as_ptr());
            let _ = munmap(self.entries.as_ptr().cast(), Self::LEN);
        }
    }
}
