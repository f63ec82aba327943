//! perf_event_open(2), for counting function calls with a kprobe, and for counting context switches.

use std::{
    ffi::CStr,
    io,
    os::fd::{FromRawFd, OwnedFd},
};

/// `struct perf_event_attr` in its second size (PERF_ATTR_SIZE_VER1), the first size with space for the
/// name of a function.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    function: u64,
    offset: u64,
}

/// Threads that a counted thread starts later are also counted.
const INHERIT: u64 = 1 << 1;
/// PERF_FLAG_FD_CLOEXEC
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
/// Any CPU, or no group.
const NONE: libc::c_int = -1;

/// Starts to count the calls that thread `tid` (0: this thread) makes of the kernel's `function`, on all
/// CPUs. `kind` is the number of the kprobe events in this kernel. The count is read from the descriptor as
/// a `u64`; closing the descriptor removes the probe.
///
/// # Errors
/// ENOENT or EINVAL for a function that cannot be probed, EACCES or EPERM without CAP_PERFMON, ESRCH when
/// the thread has ended.
pub fn count_calls(kind: u32, function: &CStr, tid: u32) -> io::Result<OwnedFd> {
    open(&Attributes { kind, function: function.as_ptr() as u64, ..Attributes::default() }, tid)
}

/// PERF_TYPE_SOFTWARE
const SOFTWARE: u32 = 1;
/// PERF_COUNT_SW_CONTEXT_SWITCHES
const CONTEXT_SWITCHES: u64 = 3;

/// Starts to count how often thread `tid`, and the threads and processes that it starts later, leave a CPU.
/// The count is read as with [`count_calls`].
///
/// # Errors
/// EACCES or EPERM without CAP_PERFMON, ESRCH when the thread has ended.
pub fn count_switches(tid: u32) -> io::Result<OwnedFd> {
    open(&Attributes { kind: SOFTWARE, config: CONTEXT_SWITCHES, ..Attributes::default() }, tid)
}

/// Opens a counter with `attributes` for thread `tid` and the threads and processes that it starts later. A
/// function in `attributes` is a C string.
fn open(attributes: &Attributes, tid: u32) -> io::Result<OwnedFd> {
    let size = size_of::<Attributes>() as u32;
    let attributes = Attributes { size, flags: INHERIT, ..*attributes };
    // SAFETY: the kernel reads `size` bytes of `attributes`, and the function name, which the caller's
    // borrow keeps valid; all other arguments are numbers.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            tid as libc::pid_t,
            NONE,
            NONE,
            CLOSE_ON_EXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that no other code uses.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attributes_have_the_kernels_size() {
        assert_eq!(size_of::<Attributes>(), 72);
    }
}
