//! Connections of clients are handed over to another process on this host, as phhttpd handed its
//! own to the server behind it.
//!
//! A message on a UNIX socket of the kind SOCK_SEQPACKET is one connection: its bytes are what was
//! received of it and belongs to the request or stands behind it, and the descriptor goes with them
//! (SCM_RIGHTS). On a stream a message could leave in part, with the descriptor at its first byte,
//! and the receiver would have to find the ends; here it leaves whole or not at all, and several
//! processes may receive from the same listener.

use crate::reactor::HandOver;
use pollux_sys as sys;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

/// What the kernel may hold for a receiver that is slow: a head of the longest kind and what came
/// behind it have room. It cuts this to net.core.wmem_max.
const QUEUE_BYTES: usize = 1 << 20;

/// Connections to the receiving processes: one to each.
#[derive(Debug, Default)]
pub(crate) struct Receivers(Vec<(Arc<Path>, Socket)>);

impl Receivers {
    /// Hands `client` over, with what was received behind the head. It is blocking then, as a socket
    /// is that was just accepted. Nothing here waits.
    ///
    /// # Errors
    /// Nobody is there, or takes it: nothing has changed then.
    pub(crate) fn pass(
        &mut self,
        what: &HandOver,
        client: BorrowedFd<'_>,
        behind: &[u8],
    ) -> io::Result<()> {
        SockRef::from(&client).set_nonblocking(false)?;
        let outcome = self.pass_blocking(what, client, behind);
        if outcome.is_err() {
            SockRef::from(&client).set_nonblocking(true)?;
        }
        outcome
    }

    fn pass_blocking(
        &mut self,
        what: &HandOver,
        client: BorrowedFd<'_>,
        behind: &[u8],
    ) -> io::Result<()> {
        let parts = [IoSlice::new(&what.head), IoSlice::new(behind)];
        if let Some(place) = self.0.iter().position(|(path, _)| *path == what.path) {
            let socket = &self.0[place].1;
            match sys::send_with_descriptor(socket.as_fd(), &parts, client) {
                Ok(_) => return Ok(()),
                // It was started anew, perhaps.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN)
                    ) =>
                {
                    self.0.swap_remove(place);
                }
                Err(error) => return Err(error),
            }
        }
        let socket = connect(&what.path)?;
        sys::send_with_descriptor(socket.as_fd(), &parts, client)?;
        self.0.push((what.path.clone(), socket));
        Ok(())
    }
}

/// Connected at once, or not at all: EAGAIN is a full backlog.
fn connect(path: &Path) -> io::Result<Socket> {
    let kind = Type::SEQPACKET.nonblocking().cloexec();
    let socket = sys::count(sys::Call::Socket, || Socket::new(Domain::UNIX, kind, None))?;
    // As much as the kernel lets us.
    let _ = socket.set_send_buffer_size(QUEUE_BYTES);
    let address = SockAddr::unix(PathBuf::from(path))?;
    sys::count(sys::Call::Connect, || socket.connect(&address))?;
    Ok(socket)
}
