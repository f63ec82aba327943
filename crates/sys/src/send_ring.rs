//! The same bytes for many sockets, with one system call for a batch of sockets: io_uring(7).

use super::{Call, count};
use io_uring::{IoUring, opcode, types::Fd};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    process,
};

/// Sockets of one io_uring_enter(2).
const BATCH: usize = 256;

/// A ring that only sends. It belongs to the thread that opened it.
pub struct SendRing {
    ring: IoUring,
    /// A call is running, or has not ended normally. Then the queue may still hold requests that point at freed bytes, so it
    /// is never submitted again.
    is_unusable: bool,
}

impl std::fmt::Debug for SendRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendRing").field("fd", &self.ring.as_raw_fd()).finish_non_exhaustive()
    }
}

impl SendRing {
    /// Opens a ring whose requests run within io_uring_enter(2) (IORING_SETUP_DEFER_TASKRUN, Linux 6.1).
    ///
    /// # Errors
    /// EPERM and ENOSYS where io_uring is denied or absent, EINVAL on a kernel before 6.1, EMFILE, ENOMEM.
    pub fn open() -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_submit_all().setup_single_issuer().setup_defer_taskrun();
        let ring = count(Call::IoUringSetup, || builder.build(BATCH as u32))?;
        Ok(Self { ring, is_unusable: false })
    }

    /// Sends `bytes` to each of `sockets` with MSG_NOSIGNAL and MSG_DONTWAIT, and waits for all results. `on_result` receives
    /// the index of each socket and the result of its send(2): the number of bytes that were sent, or the error.
    ///
    /// # Errors
    /// The errors of io_uring_enter(2) except EINTR. The ring cannot be used after an error.
    pub fn send_to_all(
        &mut self,
        sockets: &[OwnedFd],
        bytes: &[u8],
        mut on_result: impl FnMut(usize, io::Result<usize>),
    ) -> io::Result<()> {
        if self.is_unusable {
            return Err(io::Error::other("an earlier call on this ring has failed"));
        }
        let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.is_unusable = true;
        for (number, batch) in sockets.chunks(BATCH).enumerate() {
            let first = number * BATCH;
            let mut queue = self.ring.submission();
            for (index, socket) in (first..).zip(batch) {
                let entry = opcode::Send::new(Fd(socket.as_raw_fd()), bytes.as_ptr(), length)
                    .flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
                    .build()
                    .user_data(index as u64);
                // SAFETY: the request points at `bytes`. This function returns only after all requests have completed
                // or none was submitted; in the second case `is_unusable` keeps the queue from being submitted.
                unsafe { queue.push(&entry) }.map_err(io::Error::other)?;
            }
            drop(queue);
            self.wait_for(batch.len())?;
            for completion in self.ring.completion() {
                let result = match completion.result() {
                    sent @ 0.. => Ok(sent as usize),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
                on_result(completion.user_data() as usize, result);
            }
        }
        self.is_unusable = false;
        Ok(())
    }

    /// Submits the queued requests and waits for this many completions.
    fn wait_for(&mut self, completions: usize) -> io::Result<()> {
        while self.ring.completion().len() < completions {
            let entered = count(Call::IoUringEnter, || self.ring.submit_and_wait(completions));
            match entered {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let queued = self.ring.submission().len();
                    if queued + self.ring.completion().len() < completions {
                        // The kernel has taken requests that it has not completed: their bytes must stay, for ever.
                        process::abort();
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
