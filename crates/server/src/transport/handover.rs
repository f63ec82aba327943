//! Sends clients' connections to another process on this host, as phhttpd passed its connections to
//! the server behind it (Provos & Lever, section 2).
//!
//! Each connection is one message on a UNIX socket of type SOCK_SEQPACKET. The message contains the
//! bytes that were received of the request and behind it, and the descriptor (SCM_RIGHTS). The kernel
//! sends such a message completely or not at all. On a stream socket it could send a part, and the
//! receiver would have to find where each message ends. Several processes may receive from one
//! listener.

use pollux_sys as sys;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The maximum number of bytes that the kernel queues for a slow receiver. It has room for the longest
/// request head and the bytes received behind it. The kernel reduces this to net.core.wmem_max.
const QUEUE_BYTES: usize = 1 << 20;

/// The connections to the receiving processes: one for each process.
#[derive(Debug, Default)]
pub(crate) struct Receivers(Vec<(Arc<Path>, Socket)>);

impl Receivers {
    /// Sends to `receiver` the descriptor `client`, the request's `head` and `behind`, the bytes received after
    /// it. The
    /// receiver gets a blocking socket, as accept(2) would return it. This function never waits.
    ///
    /// # Errors
    /// No process listens on the path, or its queue is full. The client's socket is unchanged.
    pub(crate) fn pass(
        &mut self,
        receiver: &Arc<Path>,
        head: &[u8],
        client: BorrowedFd<'_>,
        behind: &[u8],
    ) -> io::Result<()> {
        SockRef::from(&client).set_nonblocking(false)?;
        let outcome = self.pass_blocking(receiver, head, client, behind);
        if outcome.is_err() {
            SockRef::from(&client).set_nonblocking(true)?;
        }
        outcome
    }

    fn pass_blocking(
        &mut self,
        receiver: &Arc<Path>,
        head: &[u8],
        client: BorrowedFd<'_>,
        behind: &[u8],
    ) -> io::Result<()> {
        let parts = [IoSlice::new(head), IoSlice::new(behind)];
        if let Some(index) = self.0.iter().position(|(path, _)| path == receiver) {
            let socket = &self.0[index].1;
            match sys::send_with_descriptor(socket.as_fd(), &parts, client) {
                Ok(_) => return Ok(()),
                // The receiving process may have been restarted: connect again.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN)
                    ) =>
                {
                    self.0.swap_remove(index);
                }
                Err(error) => return Err(error),
            }
        }
        let socket = connect(receiver)?;
        sys::send_with_descriptor(socket.as_fd(), &parts, client)?;
        self.0.push((receiver.clone(), socket));
        Ok(())
    }
}

/// Connects without waiting. EAGAIN means that the receiver's backlog is full.
fn connect(path: &Path) -> io::Result<Socket> {
    let kind = Type::SEQPACKET.nonblocking().cloexec();
    let socket = sys::count(sys::Call::Socket, || Socket::new(Domain::UNIX, kind, None))?;
    // If the kernel refuses, its default size remains.
    let _ = socket.set_send_buffer_size(QUEUE_BYTES);
    let address = SockAddr::unix(PathBuf::from(path))?;
    sys::count(sys::Call::Connect, || socket.connect(&address))?;
    Ok(socket)
}
