//! The system calls that rustix lacks: fork(2), _exit(2), sigaction(2), tgkill(2), unshare(2); and an allocator.
#![allow(unsafe_code)]

use crate::allocations::{self, CountingAllocator};
use rustix::process::Pid;
use std::alloc::{GlobalAlloc, Layout, System};

/// Promises, for a test, that its threads may have their own file tables: each thread uses only the
/// descriptors that it opens itself, and the standard descriptors.
pub fn own_file_tables() -> pollux_sys::OwnFileTables {
    // SAFETY: the tests of this repository keep this promise; each test that calls this function
    // starts the threads itself.
    unsafe { pollux_sys::OwnFileTables::promise() }
}

/// Calls fork(2). Returns the child's process ID in the parent and `None` in the child.
pub(crate) fn fork() -> Option<Pid> {
    // SAFETY: only the calling thread continues in the child. glibc takes its own locks (malloc,
    // stdio) around fork; the caller is responsible for all other state that the child uses, and only
    // tests call it.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    Pid::from_raw(child)
}

/// Calls _exit(2): runs no destructors and does not flush buffers that belong to the parent.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: takes no pointer and does not return.
    unsafe { libc::_exit(status) }
}

/// Moves the calling thread into a new network namespace (unshare(2)).
pub(crate) fn own_network() -> std::io::Result<()> {
    // SAFETY: takes no pointer, and changes only the calling thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error())
}

extern "C" fn do_nothing(_signal: libc::c_int) {}

/// Gives `signal` a handler that does nothing, without SA_RESTART.
pub(crate) fn handle_quietly(signal: i32) {
    // SAFETY: an all-zero sigaction is a valid one (empty mask, no flags).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: `action` is valid during the call; the handler is async-signal-safe because it does
    // nothing.
    let result = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    assert_eq!(result, 0, "sigaction: {}", std::io::Error::last_os_error());
}

/// Calls tgkill(2). If the thread has ended, this is not an error.
pub(crate) fn signal_thread(process: Pid, thread: Pid, signal: i32) {
    // SAFETY: takes no pointer; for a thread that has ended the call returns ESRCH.
    unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            process.as_raw_nonzero().get(),
            thread.as_raw_nonzero().get(),
            signal,
        );
    }
}

// SAFETY: every call is passed to the system's allocator with the same arguments; the counter neither
// allocates nor panics.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocations::note(layout.size() as i64);
        // SAFETY: the caller fulfils the requirements of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocations::note(layout.size() as i64);
        // SAFETY: the caller fulfils the requirements of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        allocations::note(size as i64 - layout.size() as i64);
        // SAFETY: the caller fulfils the requirements of `System`.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        allocations::note_free(layout.size() as i64);
        // SAFETY: the caller fulfils the requirements of `System`.
        unsafe { System.dealloc(block, layout) }
    }
}
