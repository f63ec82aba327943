//! What rustix leaves out: fork(2), _exit(2), sigaction(2), tgkill(2); and an allocator.
#![allow(unsafe_code)]

use crate::allocations::{self, CountingAllocator};
use rustix::process::Pid;
use std::alloc::{GlobalAlloc, Layout, System};

/// For tests whose threads may have file tables of their own: they use what they open themselves,
/// and say what they have to say to the standard descriptors.
pub fn own_file_tables() -> pollux_sys::OwnFileTables {
    // SAFETY: so it is in this repository's tests; each that calls this starts the threads itself.
    unsafe { pollux_sys::OwnFileTables::promise() }
}

/// fork(2): the child's number in the parent, nothing in the child.
pub(crate) fn fork() -> Option<Pid> {
    // SAFETY: the child goes on with the calling thread alone. glibc takes its own locks (malloc,
    // stdio) around fork; what else the child touches is its caller's care, in tests only.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    Pid::from_raw(child)
}

/// _exit(2): no destructors, no flushing of buffers that belong to the parent.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: takes no pointer and does not return.
    unsafe { libc::_exit(status) }
}

extern "C" fn do_nothing(_signal: libc::c_int) {}

/// Gives `signal` a handler that does nothing, without SA_RESTART.
pub(crate) fn handle_quietly(signal: i32) {
    // SAFETY: an all-zero sigaction is a valid one (empty mask, no flags).
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: `action` lives through the call; the handler is async-signal-safe: it does nothing.
    let result = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    assert_eq!(result, 0, "sigaction: {}", std::io::Error::last_os_error());
}

/// tgkill(2). A thread that has ended is no error.
pub(crate) fn signal_thread(process: Pid, thread: Pid, signal: i32) {
    // SAFETY: takes no pointer; a thread that is gone is ESRCH.
    unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            process.as_raw_nonzero().get(),
            thread.as_raw_nonzero().get(),
            signal,
        );
    }
}

// SAFETY: everything is passed on to the system's allocator as it came; the counter neither
// allocates nor panics.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocations::note(layout.size() as i64);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocations::note(layout.size() as i64);
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        allocations::note(size as i64 - layout.size() as i64);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        allocations::note_free(layout.size() as i64);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(block, layout) }
    }
}
