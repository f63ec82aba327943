//! The C interface of pollux-event: pollux_event(3).
//!
//! A crate of its own, not a feature of `pollux-event`, so that users of the Rust crate do not
//! build a shared and a static library, and so that all raw pointers are here. Every function
//! checks its arguments as far as possible, returns a negated error number for misuse, and catches
//! panics.
#![allow(unsafe_code)] // the boundary to C: pointers come from the caller
#![allow(non_camel_case_types)] // types are called as in C

mod errors;

use ::pollux_event::{
    AnyMechanism, Capabilities, Interest, MechanismSpec, Readiness, Token, Waker,
    options::MOST_EVENTS, registry,
};
use errors::{catch_panics, number_of, remember};
use std::{
    ffi::{CStr, CString, c_char, c_int},
    os::fd::{BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    sync::OnceLock,
    time::Duration,
};

/// Report when a read would not block.
pub const POLLUX_READ: u32 = 1;
/// Report when a write would not block.
pub const POLLUX_WRITE: u32 = 2;

/// A read would not block: there is data, an end of stream, or an error to collect.
pub const POLLUX_READABLE: u32 = 1;
/// A write would not block.
pub const POLLUX_WRITABLE: u32 = 2;
/// The peer shut down its writing half.
pub const POLLUX_READ_CLOSED: u32 = 4;
/// Both directions are closed.
pub const POLLUX_HANGUP: u32 = 8;
/// An error is pending on the descriptor.
pub const POLLUX_ERROR: u32 = 16;
/// The descriptor was closed without the set's knowledge.
pub const POLLUX_INVALID: u32 = 32;

/// Capability: events come once per arrival; read or write until EAGAIN.
pub const POLLUX_EDGE: u32 = 1;
/// Capability: interest changes are gathered and sent to the kernel with the next wait.
pub const POLLUX_BATCHED_CHANGES: u32 = 2;
/// Capability: a wait's cost grows with the set, not with what is ready.
pub const POLLUX_SCANS: u32 = 4;
/// Capability: the kernel's event queue can overflow; the set recovers.
pub const POLLUX_OVERFLOWS: u32 = 8;
/// Capability: closing the descriptor removes it from the kernel's set, but not from this one.
pub const POLLUX_CLOSE_REMOVES: u32 = 16;
/// Capability: a wait may return for a descriptor whose interest does not include the event.
pub const POLLUX_SPURIOUS_WAKEUPS: u32 = 32;
/// Capability: an open file description reports to one set only, by one of its descriptors.
pub const POLLUX_ONE_OWNER: u32 = 64;
/// Capability: with an empty interest not even errors are reported.
pub const POLLUX_ERRORS_NEED_INTEREST: u32 = 128;
/// Capability: regular files and directories can be added, and are always ready.
pub const POLLUX_TAKES_FILES: u32 = 256;
/// Capability: it waits with io_uring, whose submissions no seccomp filter sees.
pub const POLLUX_USES_RING: u32 = 512;

/// The most events of one wait where pollux_open() is given 0.
pub const POLLUX_DEFAULT_EVENTS: usize = 512;

// These constants are passed to C and from C without conversion, so they must equal the bits of the
// Rust types.
const _: () = {
    assert!(POLLUX_READ == Interest::READ.bits() as u32);
    assert!(POLLUX_WRITE == Interest::WRITE.bits() as u32);
    assert!(POLLUX_READABLE == Readiness::READABLE.bits() as u32);
    assert!(POLLUX_WRITABLE == Readiness::WRITABLE.bits() as u32);
    assert!(POLLUX_READ_CLOSED == Readiness::READ_CLOSED.bits() as u32);
    assert!(POLLUX_HANGUP == Readiness::HANGUP.bits() as u32);
    assert!(POLLUX_ERROR == Readiness::ERROR.bits() as u32);
    assert!(POLLUX_INVALID == Readiness::INVALID.bits() as u32);
    assert!(POLLUX_EDGE == Capabilities::EDGE.bits());
    assert!(POLLUX_BATCHED_CHANGES == Capabilities::BATCHED_CHANGES.bits());
    assert!(POLLUX_SCANS == Capabilities::SCANS.bits());
    assert!(POLLUX_OVERFLOWS == Capabilities::OVERFLOWS.bits());
    assert!(POLLUX_CLOSE_REMOVES == Capabilities::CLOSE_REMOVES.bits());
    assert!(POLLUX_SPURIOUS_WAKEUPS == Capabilities::SPURIOUS_WAKEUPS.bits());
    assert!(POLLUX_ONE_OWNER == Capabilities::ONE_OWNER.bits());
    assert!(POLLUX_ERRORS_NEED_INTEREST == Capabilities::ERRORS_NEED_INTEREST.bits());
    assert!(POLLUX_TAKES_FILES == Capabilities::TAKES_FILES.bits());
    assert!(POLLUX_USES_RING == Capabilities::USES_RING.bits());
    assert!(Capabilities::all().bits() == 1023, "a capability has no constant here");
};

/// An interest set. Only one thread may use it at a time.
pub struct pollux_set {
    mechanism: AnyMechanism,
    capabilities: u32,
    /// A call has panicked: the state of the set is unknown.
    is_broken: bool,
}

/// A handle that makes a wait return, from any thread and from signal handlers.
pub struct pollux_waker {
    waker: Waker,
}

/// One descriptor that is, or recently was, ready.
#[repr(C)]
pub struct pollux_event {
    /// The token that pollux_add() returned for the descriptor.
    pub token: u64,
    /// The descriptor's number.
    pub fd: c_int,
    /// POLLUX_READABLE and others.
    pub readiness: u32,
}

/// # Safety
/// `text` is null or a C string.
unsafe fn spec_of(text: *const c_char) -> Result<MechanismSpec, c_int> {
    if text.is_null() {
        return Err(remember(libc::EINVAL, "the mechanism's name is NULL"));
    }
    // SAFETY: not null, and a C string by the contract.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    text.parse().map_err(|error| number_of(&error))
}

/// Runs `work` with the set, unless it is NULL or broken.
///
/// # Safety
/// `set` is null or comes from [`pollux_open`], was not closed, and no other thread uses it during the
/// call.
unsafe fn with_set(
    set: *mut pollux_set,
    work: impl FnOnce(&mut pollux_set) -> Result<c_int, c_int>,
) -> c_int {
    // SAFETY: by the contract.
    let Some(set) = (unsafe { set.as_mut() }) else {
        return remember(libc::EINVAL, "the set is NULL");
    };
    if set.is_broken {
        return remember(libc::ENOTRECOVERABLE, "an earlier call has left the set broken");
    }
    let outcome = catch_panics(|| work(set));
    set.is_broken = outcome == -libc::ENOTRECOVERABLE;
    outcome
}

fn interest_of(bits: u32) -> Result<Interest, c_int> {
    u8::try_from(bits).ok().and_then(Interest::from_bits).ok_or_else(|| {
        remember(libc::EINVAL, "interest has bits other than POLLUX_READ and POLLUX_WRITE")
    })
}

/// The name of mechanism number `index`, in the order of the tables; NULL behind the last.
#[unsafe(no_mangle)]
pub extern "C" fn pollux_name(index: usize) -> *const c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        registry::ALL.iter().filter_map(|entry| CString::new(entry.name).ok()).collect()
    });
    names.get(index).map_or(ptr::null(), |name| name.as_ptr())
}

/// Tries a mechanism on this kernel: 0, or a negated error number (ENOSYS: it is not available;
/// pollux_message() says why and what to do).
///
/// # Safety
/// `mechanism` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_probe(mechanism: *const c_char) -> c_int {
    catch_panics(|| {
        // SAFETY: by the contract.
        let spec = unsafe { spec_of(mechanism) }?;
        registry::probe(&spec).map(|()| 0).map_err(|error| number_of(&error))
    })
}

/// Opens an empty interest set of a mechanism, written `name` or `name:key=value,key=value`, whose
/// waits return at most `max_events` events (0: POLLUX_DEFAULT_EVENTS). 0 or a negated error number.
///
/// # Safety
/// `mechanism` is NULL or a C string; `set` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_open(
    mechanism: *const c_char,
    max_events: usize,
    set: *mut *mut pollux_set,
) -> c_int {
    if set.is_null() {
        return remember(libc::EINVAL, "there is no place for the set: its pointer is NULL");
    }
    catch_panics(|| {
        // SAFETY: by the contract.
        let spec = unsafe { spec_of(mechanism) }?;
        let max_events = if max_events == 0 { POLLUX_DEFAULT_EVENTS } else { max_events };
        if max_events > MOST_EVENTS {
            return Err(remember(libc::EINVAL, "max_events is above 1048576"));
        }
        let options = spec.options().with_max_events(max_events);
        let capabilities = registry::capabilities(&spec).map_err(|error| number_of(&error))?.bits();
        let mechanism =
            AnyMechanism::open(&spec.name, &options).map_err(|error| number_of(&error))?;
        let opened = Box::new(pollux_set { mechanism, capabilities, is_broken: false });
        // SAFETY: not null, and writable by the contract.
        unsafe { set.write(Box::into_raw(opened)) };
        Ok(0)
    })
}

/// A table has a cell for each number below the largest, so no memory may be allocated for a number
/// that is not a descriptor. The check costs a system call, so it is made only for numbers whose cells
/// take megabytes.
const LARGE_FD: c_int = 1 << 20;

fn is_open(fd: c_int) -> bool {
    // SAFETY: fcntl(2) only looks the number up; any number is allowed.
    unsafe { libc::fcntl(fd, libc::F_GETFD) != -1 }
}

/// Closes the set; the descriptors in it stay open. NULL is allowed.
///
/// # Safety
/// `set` is NULL or comes from pollux_open(), and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_close(set: *mut pollux_set) {
    if !set.is_null() {
        catch_panics(|| {
            // SAFETY: made by `Box::into_raw` in `pollux_open`; the caller gives it back.
            drop(unsafe { Box::from_raw(set) });
            Ok(0)
        });
    }
}

/// The capabilities of the set's mechanism: POLLUX_EDGE and others, 0 for NULL.
///
/// # Safety
/// `set` is NULL or an open set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_capabilities(set: *const pollux_set) -> u32 {
    // SAFETY: by the contract.
    unsafe { set.as_ref() }.map_or(0, |set| set.capabilities)
}

/// Adds a non-blocking descriptor; `token` gets the name of its registration. 0 or a negated error
/// number: EEXIST (its number is in the set), ERANGE (select: FD_SETSIZE), EPERM (no mechanism can
/// wait for it).
///
/// # Safety
/// `set` is NULL or an open set, `fd` stays open until it is removed, `token` is NULL or can be
/// written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_add(
    set: *mut pollux_set,
    fd: c_int,
    interest: u32,
    token: *mut u64,
) -> c_int {
    let work = |set: &mut pollux_set| {
        let interest = interest_of(interest)?;
        if fd < 0 {
            return Err(remember(libc::EBADF, "the descriptor is negative"));
        }
        if token.is_null() {
            return Err(remember(libc::EINVAL, "there is no place for the token: NULL"));
        }
        // Only select(2) needs an interest to report errors. It ignores a number beyond the process's
        // table of descriptors, so the set would never report that it is not open.
        let may_be_ignored = set.capabilities & POLLUX_ERRORS_NEED_INTEREST != 0;
        if (fd >= LARGE_FD || may_be_ignored) && !is_open(fd) {
            return Err(remember(libc::EBADF, "the descriptor is not open"));
        }
        // SAFETY: not -1, and open by the contract. The kernel refuses a descriptor that is not open,
        // or the set reports it as POLLUX_INVALID.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let added = set.mechanism.add(fd, interest).map_err(|error| number_of(&error))?;
        // SAFETY: not null, and writable by the contract.
        unsafe { token.write(added.to_bits()) };
        Ok(0)
    };
    // SAFETY: by the contract.
    unsafe { with_set(set, work) }
}

/// Replaces the interest in `token`. 0 or a negated error number: ENOENT (its registration has
/// ended).
///
/// # Safety
/// `set` is NULL or an open set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_modify(set: *mut pollux_set, token: u64, interest: u32) -> c_int {
    let work = |set: &mut pollux_set| {
        let interest = interest_of(interest)?;
        let changed = set.mechanism.modify(Token::from_bits(token), interest);
        changed.map(|()| 0).map_err(|error| number_of(&error))
    };
    // SAFETY: by the contract.
    unsafe { with_set(set, work) }
}

/// Takes `token` out of the set; its descriptor stays open. 0 or a negated error number: ENOENT.
///
/// # Safety
/// `set` is NULL or an open set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_remove(set: *mut pollux_set, token: u64) -> c_int {
    let work = |set: &mut pollux_set| {
        let removed = set.mechanism.remove(Token::from_bits(token));
        removed.map(|()| 0).map_err(|error| number_of(&error))
    };
    // SAFETY: by the contract.
    unsafe { with_set(set, work) }
}

/// Takes `token` out of the set and closes its descriptor `fd`, with the fewest system calls. 0 or a
/// negated error number: ENOENT (the descriptor is closed all the same), EINVAL (`fd` is not the
/// token's; nothing is closed).
///
/// # Safety
/// `set` is NULL or an open set; `fd` is open, belongs to the caller, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_close_fd(set: *mut pollux_set, token: u64, fd: c_int) -> c_int {
    let work = |set: &mut pollux_set| {
        let token = Token::from_bits(token);
        if fd < 0 || fd != token.fd {
            return Err(remember(libc::EINVAL, "the descriptor is not the token's"));
        }
        // SAFETY: the descriptor is open, and the caller gives up its ownership.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        set.mechanism.close(token, fd).map(|()| 0).map_err(|error| number_of(&error))
    };
    // SAFETY: by the contract.
    unsafe { with_set(set, work) }
}

/// Waits until something is ready, `timeout_ms` is over (negative: for ever), a waker is used or a
/// signal handler has run. Returns the largest possible number of events, or a negated error number.
///
/// # Safety
/// `set` is NULL or an open set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_wait(set: *mut pollux_set, timeout_ms: c_int) -> c_int {
    let work = |set: &mut pollux_set| {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let found = set.mechanism.wait(timeout).map_err(|error| number_of(&error))?;
        Ok(c_int::try_from(found).unwrap_or(c_int::MAX))
    };
    // SAFETY: by the contract.
    unsafe { with_set(set, work) }
}

/// The next event of the last wait: 1, or 0 when there is none left, or a negated error number.
///
/// # Safety
/// `set` is NULL or an open set; `event` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_next(set: *mut pollux_set, event: *mut pollux_event) -> c_int {
    let work = |set: &mut pollux_set| {
        if event.is_null() {
            return Err(remember(libc::EINVAL, "there is no place for the event: NULL"));
        }
        let Some(found) = set.mechanism.next_event() else { return Ok(0) };
        let report = pollux_event {
            token: found.token.to_bits(),
            fd: found.token.fd,
            readiness: u32::from(found.readiness.bits()),
        };
        // SAFETY: not null, and writable by the contract.
        unsafe { event.write(report) };
        Ok(1)
    };
    // SAFETY: by the contract.
    unsafe { with_set(set, work) }
}

/// After fork(2), in the child: gives the set kernel objects of its own, with the same descriptors,
/// interest and tokens. Before that the child shares those of its parent and may only close the set.
/// Wakers of the parent do not wake the child. 0 or a negated error number.
///
/// # Safety
/// `set` is NULL or an open set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_reopen_after_fork(set: *mut pollux_set) -> c_int {
    let work = |set: &mut pollux_set| {
        let reopened = set.mechanism.reopen_after_fork();
        reopened.map(|()| 0).map_err(|error| number_of(&error))
    };
    // SAFETY: by the contract.
    unsafe { with_set(set, work) }
}

/// Opens a waker of the set. 0 or a negated error number.
///
/// # Safety
/// `set` is NULL or an open set; `waker` is NULL or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_waker_open(
    set: *mut pollux_set,
    waker: *mut *mut pollux_waker,
) -> c_int {
    let work = |set: &mut pollux_set| {
        if waker.is_null() {
            return Err(remember(libc::EINVAL, "there is no place for the waker: NULL"));
        }
        let made = set.mechanism.waker().map_err(|error| number_of(&error))?;
        // SAFETY: not null, and writable by the contract.
        unsafe { waker.write(Box::into_raw(Box::new(pollux_waker { waker: made }))) };
        Ok(0)
    };
    // SAFETY: by the contract.
    unsafe { with_set(set, work) }
}

/// Makes the set's wait return, or its next. From any thread and from signal handlers. NULL is
/// allowed.
///
/// # Safety
/// `waker` is NULL or an open waker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_wake(waker: *const pollux_waker) {
    // `Waker::wake` cannot panic.
    // SAFETY: by the contract.
    if let Some(waker) = unsafe { waker.as_ref() } {
        waker.waker.wake();
    }
}

/// Closes a waker. NULL is allowed.
///
/// # Safety
/// `waker` is NULL or comes from pollux_waker_open(), and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pollux_waker_close(waker: *mut pollux_waker) {
    if !waker.is_null() {
        // SAFETY: made by `Box::into_raw` in `pollux_waker_open`; the caller gives it back.
        drop(unsafe { Box::from_raw(waker) });
    }
}

/// The reason why this thread's last failed call failed, as a sentence; valid until its next failed
/// call.
#[unsafe(no_mangle)]
pub extern "C" fn pollux_message() -> *const c_char {
    errors::message()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_of_events_is_that_of_rust() {
        assert_eq!(POLLUX_DEFAULT_EVENTS, <::pollux_event::Options>::default().max_events);
    }
}
