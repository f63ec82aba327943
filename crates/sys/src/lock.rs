//! A lock that threads and processes share, and that can be taken after its holder has ended.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::{
    io,
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::{self, NonNull},
};

/// A mutex in memory that forked children share (mmap(2), MAP_SHARED). When its holder ends without
/// releasing it, the kernel gives it to the next waiter (pthread_mutexattr_setrobust(3)).
#[derive(Debug)]
pub struct SharedLock(NonNull<libc::pthread_mutex_t>);

// SAFETY: it owns its mapping, and several threads may use a mutex.
unsafe impl Send for SharedLock {}
// SAFETY: as above.
unsafe impl Sync for SharedLock {}

/// A guard: the lock is held until it is dropped.
#[derive(Debug)]
pub struct HeldLock<'l> {
    lock: &'l SharedLock,
    /// Not `Send`: the thread that took the lock must release it.
    _here: PhantomData<*const ()>,
}

impl SharedLock {
    /// An unlocked lock.
    ///
    /// # Errors
    /// No memory, or a system without robust mutexes (ENOTSUP).
    pub fn new() -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses, backed by no file.
        let start = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                size_of::<libc::pthread_mutex_t>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        }?;
        let lock = Self(NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?);
        let mut kind = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: the attributes are written by the first call before the others use them; the mutex is
        // our own memory, not in use yet, large enough and aligned to a page.
        let outcome = unsafe {
            let kind = kind.as_mut_ptr();
            checked(libc::pthread_mutexattr_init(kind))
                .and_then(|()| {
                    checked(libc::pthread_mutexattr_setpshared(kind, libc::PTHREAD_PROCESS_SHARED))
                })
                .and_then(|()| {
                    checked(libc::pthread_mutexattr_setrobust(kind, libc::PTHREAD_MUTEX_ROBUST))
                })
                .and_then(|()| checked(libc::pthread_mutex_init(lock.0.as_ptr(), kind)))
        };
        outcome.map(|()| lock)
    }

    /// Waits until the lock is free. The holder must not lock it again.
    ///
    /// # Errors
    /// No error is known; the lock is not held after one.
    pub fn hold(&self) -> io::Result<HeldLock<'_>> {
        // SAFETY: it was initialised, and lives as long as `self`.
        match unsafe { libc::pthread_mutex_lock(self.0.as_ptr()) } {
            libc::EOWNERDEAD => {
                // The lock protects no data that a dead holder could have left incomplete.
                // SAFETY: this thread holds it.
                checked(unsafe { libc::pthread_mutex_consistent(self.0.as_ptr()) })?;
            }
            error => checked(error)?,
        }
        Ok(HeldLock { lock: self, _here: PhantomData })
    }
}

impl Drop for HeldLock<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds it: only `hold` makes a `HeldLock`, and it is not `Send`.
        unsafe { libc::pthread_mutex_unlock(self.lock.0.as_ptr()) };
    }
}

impl Drop for SharedLock {
    fn drop(&mut self) {
        // Not destroyed: another process may be using it.
        // SAFETY: the mapping is ours, and nothing in this process borrows from it.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<libc::pthread_mutex_t>()) };
    }
}

fn checked(error: libc::c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicU32, Ordering::SeqCst},
        thread,
        time::Duration,
    };

    #[test]
    fn one_holds_it_at_a_time() {
        let (lock, inside) = (SharedLock::new().unwrap(), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _held = lock.hold().unwrap();
                        assert_eq!(inside.fetch_add(1, SeqCst), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                    }
                });
            }
        });
    }

    #[test]
    fn a_process_that_ends_with_the_lock_leaves_it_to_the_next() {
        let lock = SharedLock::new().unwrap();
        thread::scope(|scope| {
            let holder = scope.spawn(|| std::mem::forget(lock.hold().unwrap()));
            holder.join().unwrap();
            // On some systems join() returns before the kernel releases the locks of the thread
            // (its robust list): the next holder waits for that.
            let next = scope.spawn(|| drop(lock.hold().unwrap()));
            thread::sleep(Duration::from_millis(1));
            next.join().unwrap();
        });
        drop(lock.hold().unwrap());
    }
}
