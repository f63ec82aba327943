//! /dev/poll, as `kmod/devpoll` implements it: devpoll(4). Numbers and structures are those of its
//! `<linux/devpoll.h>`.

use super::{Call, PollFd, check, count};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    mm::{MapFlags, ProtFlags, mmap, munmap},
    process::{Resource, getrlimit},
};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    slice,
};

/// In `events` of a change: removes the descriptor from the set (POLLREMOVE of `<poll.h>`).
pub const POLL_REMOVE: i16 = 0x1000;

/// Poll every entry at every scan; to be set while the set is empty.
pub const DEVPOLL_NO_HINTS: i32 = 0x2;

/// Walk the whole set at every scan, as the paper did.
pub const DEVPOLL_TABLE: i32 = 0x4;

const DP_POLL: libc::c_ulong = 0xD001;
const DP_ALLOC: libc::c_ulong = 0xD010;
const DP_UPDATE_POLL: libc::c_ulong = 0xD012;
const DP_HPOLL: libc::c_ulong = 0xD013;
const DP_SETOPTIONS: libc::c_ulong = 0xD020;
const DP_GETSTATISTICS: libc::c_ulong = 0xD022;

/// `struct dvpoll`
#[repr(C)]
struct PollArguments {
    results: *mut PollFd,
    room: libc::c_int,
    timeout_ms: libc::c_int,
    signal_mask: *const libc::c_void,
}

/// `struct dvpoll_update`
#[repr(C)]
struct UpdatePollArguments {
    changes: *const PollFd,
    results: *mut PollFd,
    signal_mask: *const libc::c_void,
    changes_len: libc::c_int,
    room: libc::c_int,
    timeout_ms: libc::c_int,
    flags: libc::c_int,
}

/// `struct dvpoll_statistics`: the counters of one open /dev/poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DevPollStatistics {
    size: u64,
    /// Interests now in the set.
    pub entries: u64,
    /// The entries that have a hook in their socket.
    pub hinted: u64,
    /// Calls that looked for events.
    pub waits: u64,
    /// Scans of the pending entries; several for a wait that slept.
    pub scans: u64,
    /// Calls of a driver's poll function by scans.
    pub driver_polls: u64,
    /// Calls of it by changes, to place a hook.
    pub hook_polls: u64,
    /// Hints that drivers posted.
    pub hints: u64,
    /// Entries examined only because they were ready the last time.
    pub cached: u64,
    /// Entries that were skipped because they had no hint, where whole tables are scanned.
    pub skipped: u64,
    /// Results reported.
    pub results: u64,
    /// Times that a caller went to sleep.
    pub sleeps: u64,
    /// Times that a caller was woken before its timeout.
    pub wakeups: u64,
    /// Changes applied.
    pub changes: u64,
}

/// Opens an interest set: /dev/poll, for reading and writing, close-on-exec.
pub fn devpoll_open() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(count(Call::Open, || openat(CWD, c"/dev/poll", flags, Mode::empty()))?)
}

/// DP_SETOPTIONS: sets exactly these options, regardless of the module's defaults.
pub fn devpoll_set_options(device: BorrowedFd<'_>, options: i32) -> io::Result<()> {
    // SAFETY: the argument is a number.
    count(Call::Ioctl, || unsafe {
        check(libc::ioctl(device.as_raw_fd(), DP_SETOPTIONS as _, options)).map(drop)
    })
}

/// DP_GETSTATISTICS.
pub fn devpoll_statistics(device: BorrowedFd<'_>) -> io::Result<DevPollStatistics> {
    let size = size_of::<DevPollStatistics>() as u64;
    let mut statistics = DevPollStatistics { size, ..Default::default() };
    // SAFETY: the kernel writes at most `size` bytes, the size of the structure, into it.
    count(Call::Ioctl, || unsafe {
        check(libc::ioctl(device.as_raw_fd(), DP_GETSTATISTICS as _, &raw mut statistics))
    })?;
    Ok(statistics)
}

/// Sends `changes` to the set with write(2). Returns how many were taken. A refused change does not
/// prevent those after it from being applied; the first refusal is the error.
#[inline]
pub fn devpoll_write(device: BorrowedFd<'_>, changes: &[PollFd]) -> io::Result<usize> {
    const { assert!(size_of::<PollFd>() == 8) }
    // SAFETY: the bytes of `changes`, which is borrowed as long as they are; a `PollFd` (an int and two
    // shorts) has no padding.
    let bytes =
        unsafe { slice::from_raw_parts(changes.as_ptr().cast::<u8>(), size_of_val(changes)) };
    let taken = count(Call::Write, || rustix::io::write(device, bytes))?;
    Ok(taken / size_of::<PollFd>())
}

/// Applies `changes`, if there are any, and waits, in one call (DP_POLL, DP_UPDATE_POLL). Returns the
/// number of results. A timeout below 0 waits for ever.
#[inline]
pub fn devpoll_wait(
    device: BorrowedFd<'_>,
    changes: &[PollFd],
    results: &mut ResultSpace,
    timeout_ms: i32,
) -> io::Result<usize> {
    let (results, room) = results.target();
    // SAFETY: both structures live through their call; the kernel only reads `changes`, and writes at
    // most `room` results to `results` or, if that is null, to the set's own mapping.
    let found = count(Call::Ioctl, || unsafe {
        if changes.is_empty() {
            let mut wait = PollArguments { results, room, timeout_ms, signal_mask: ptr::null() };
            check(libc::ioctl(device.as_raw_fd(), DP_POLL as _, &raw mut wait))
        } else {
            let mut wait = UpdatePollArguments {
                changes: changes.as_ptr(),
                results,
                signal_mask: ptr::null(),
                changes_len: changes.len().min(i32::MAX as usize) as libc::c_int,
                room,
                timeout_ms,
                flags: 0,
            };
            check(libc::ioctl(device.as_raw_fd(), DP_UPDATE_POLL as _, &raw mut wait))
        }
    })?;
    Ok(found as usize)
}

/// DP_HPOLL: polls the whole array like poll(2), but queries only drivers with a hint since the last
/// call. Returns how many of `fds` have `revents`. A timeout below 0 waits for ever.
#[inline]
pub fn devpoll_hinting_poll(
    device: BorrowedFd<'_>,
    fds: &mut [PollFd],
    timeout_ms: i32,
) -> io::Result<usize> {
    // The limit is more than a set can contain; the module returns EINVAL for more than RLIMIT_NOFILE.
    let room = fds.len().min(i32::MAX as usize) as libc::c_int;
    let mut call =
        PollArguments { results: fds.as_mut_ptr(), room, timeout_ms, signal_mask: ptr::null() };
    // SAFETY: the structure lives through the call; the kernel reads and writes `room` entries of
    // `fds`.
    let ready = count(Call::Ioctl, || unsafe {
        check(libc::ioctl(device.as_raw_fd(), DP_HPOLL as _, &raw mut call))
    })?;
    Ok(ready as usize)
}

/// The memory for a set's results.
#[derive(Debug)]
pub enum ResultSpace {
    /// The kernel copies them here.
    Copied(Box<[PollFd]>),
    /// The kernel writes them to pages that are mapped here (provos §3.3).
    Mapped(ResultArea),
}

impl ResultSpace {
    /// Memory of our own for `room` results.
    pub fn copied(room: usize) -> Self {
        let room = room.clamp(1, i32::MAX as usize);
        Self::Copied(vec![PollFd { fd: -1, events: 0, revents: 0 }; room].into())
    }

    /// The set's own area for `room` results; at most RLIMIT_NOFILE, because no more descriptors can be
    /// ready.
    ///
    /// # Errors
    /// ENOSPC at the user's limit of entries (the module's `max_user_entries`), EPERM when the set
    /// has an area already, ENOMEM.
    pub fn mapped(device: BorrowedFd<'_>, room: usize) -> io::Result<Self> {
        ResultArea::new(device, room).map(Self::Mapped)
    }

    /// The address and size to pass to the kernel.
    #[inline]
    fn target(&mut self) -> (*mut PollFd, libc::c_int) {
        match self {
            Self::Copied(results) => (results.as_mut_ptr(), results.len() as libc::c_int),
            Self::Mapped(area) => (ptr::null_mut(), area.room as libc::c_int),
        }
    }

    /// The result at `index`, of those that the last wait found.
    ///
    /// # Panics
    /// When `index` is beyond the room for results.
    #[inline]
    pub fn get(&self, index: usize) -> PollFd {
        match self {
            Self::Copied(results) => results[index],
            Self::Mapped(area) => area.get(index),
        }
    }
}

/// The mapping of a set's results.
#[derive(Debug)]
pub struct ResultArea {
    results: NonNull<PollFd>,
    room: usize,
}

// SAFETY: the mapping belongs to the process, not to the thread that made it.
unsafe impl Send for ResultArea {}

impl ResultArea {
    fn new(device: BorrowedFd<'_>, room: usize) -> io::Result<Self> {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(limit).unwrap_or(usize::MAX).min(i32::MAX as usize / 8);
        let room = room.clamp(1, most.max(1));
        // SAFETY: the argument is a number.
        count(Call::Ioctl, || unsafe {
            check(libc::ioctl(device.as_raw_fd(), DP_ALLOC as _, room as libc::c_int))
        })?;
        let bytes = room * size_of::<PollFd>();
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address = unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, flags, device, 0) }?;
        let results = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { results, room })
    }

    #[inline]
    fn get(&self, index: usize) -> PollFd {
        assert!(index < self.room, "result {index} of {}", self.room);
        // SAFETY: within the mapping, which lives as long as `self`; any bits are a `PollFd`. The read
        // is volatile because the kernel may write at the same time, if this process has forked and its
        // parent waits.
        unsafe { self.results.add(index).read_volatile() }
    }
}

impl Drop for ResultArea {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and nothing refers to it any more.
        let _ = unsafe { munmap(self.results.as_ptr().cast(), self.room * size_of::<PollFd>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<PollArguments>(), 2 * size_of::<usize>() + 8);
        assert_eq!(size_of::<UpdatePollArguments>(), 3 * size_of::<usize>() + 16);
        assert_eq!(size_of::<DevPollStatistics>(), 14 * 8);
    }

    #[test]
    fn results_never_have_no_room() {
        let mut space = ResultSpace::copied(0);
        assert_eq!(space.target().1, 1);
        assert_eq!(space.get(0).fd, -1);
    }
}
