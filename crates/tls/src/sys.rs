//! The one piece of `unsafe`: pages for secrets.

#![allow(unsafe_code)]

use crate::table::Entry;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::{
    io,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
};

/// How many entries a block has: what fills eight pages.
pub(crate) const BLOCK_ENTRIES: usize = (8 * 4096) / size_of::<Entry<()>>();

/// A block of entries in pages of their own, which are in no core dump, and which a forked child finds
/// filled with zeros: no other process has a connection's secrets, or uses its nonces again.
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
            // SAFETY: the mapping above, whole. Neither advice changes what this process finds in it. A
            // kernel that knows one of them not (before 4.14) has the pages all the same.
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
        // SAFETY: as above; &mut self is the only way to it.
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
