//! The queues from which the workers of an architecture accept connections: the kernel's queues, and the
//! order in which listeners take turns.

use super::{
    listener::{self, SocketFile},
    passed,
};
use crate::config::{Accepting, Listen};
use anyhow::Context;
use libc::{POLLIN, POLLRDHUP};
use pollux_sys::{self as sys, PollFd, SharedLock};
use socket2::SockRef;
use std::{
    net::Shutdown,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    thread,
    time::Duration,
};

/// How often a stop checks whether a queue is empty on which workers block, and the pause between two
/// checks: a second in all.
const LOOKS: (u32, Duration) = (100, Duration::from_millis(10));

/// The maximum length of a queue whose length the kernel does not report (a UNIX socket's): Linux' own
/// limit (net.core.somaxconn) is no larger by default.
const QUEUE_MAX: u32 = 4096;

/// Decides which of several listeners is next, and which connections are still accepted at a stop.
///
/// Listeners take turns; otherwise connections at the second listener would wait for as long as there are
/// connections at the first.
#[derive(Debug, Default)]
pub(crate) struct ListenerRotation {
    next: usize,
    /// The number of connections, by listener, that waited when a stop began and are still to be accepted;
    /// `None` before a stop.
    left: Option<Vec<u32>>,
}

impl ListenerRotation {
    /// Returns the indices of `count` listeners, in the order in which to check them now.
    pub(crate) fn order(&self, count: usize) -> impl Iterator<Item = usize> + use<> {
        let next = self.next;
        (0..count).map(move |index| (next + index) % count)
    }

    /// Begins a stop: connections that wait at the listeners when this is first called are still accepted,
    /// and no others. With a steady stream of new connections, a queue would never be found empty.
    pub(crate) fn stop(&mut self, listeners: &[OwnedFd]) {
        self.left.get_or_insert_with(|| listeners.iter().map(waiting_at).collect());
    }

    /// Returns whether one more of the connections that wait at this listener may be accepted.
    pub(crate) fn may_take(&self, index: usize) -> bool {
        self.left.as_ref().is_none_or(|left| left[index] > 0)
    }

    /// Records that a connection was accepted which [`ListenerRotation::may_take`] has allowed.
    pub(crate) fn took(&mut self, index: usize) {
        self.next = index + 1;
        if let Some(left) = &mut self.left {
            left[index] -= 1;
        }
    }
}

/// Returns the number of connections that wait at this listener, or the maximum if the kernel does not
/// report it.
pub(crate) fn waiting_at(listener: &OwnedFd) -> u32 {
    sys::waiting_connections(listener.as_fd()).unwrap_or(QUEUE_MAX)
}

/// The queues of all workers.
#[derive(Debug)]
pub(crate) struct Queues {
    /// One set of listeners for all workers, or one for each.
    sets: Vec<Vec<OwnedFd>>,
    /// The listeners that the service manager has passed. It keeps them open for the next server.
    of_manager: Vec<RawFd>,
    way: Accepting,
    lock: Option<SharedLock>,
}

/// The queues of one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue<'q> {
    /// The listeners.
    pub(crate) sockets: &'q [OwnedFd],
    /// Those of them that belong to the service manager.
    pub(crate) of_manager: &'q [RawFd],
    /// The way in which the worker waits for them.
    pub(crate) way: Accepting,
    /// The lock that the waiting worker must hold.
    pub(crate) lock: Option<&'q SharedLock>,
    /// Whether no other worker has these listeners.
    pub(crate) is_own: bool,
}

impl Queues {
    /// Creates the listeners at `addresses` for `workers` workers, which accept in this `way`. Also returns the files of UNIX sockets.
    ///
    /// # Errors
    /// The error names the address at fault.
    pub(crate) fn open(
        addresses: &[Listen],
        backlog: u32,
        way: Accepting,
        workers: usize,
    ) -> anyhow::Result<(Self, Vec<SocketFile>)> {
        let mut files = Vec::new();
        let mut first = Vec::new();
        let mut of_manager = Vec::new();
        let shares = way == Accepting::Reuseport;
        for listen in addresses {
            match listen {
                Listen::Tcp(address) => {
                    if shares {
                        listener::check_free(*address)?;
                    }
                    first.push(listener::tcp(*address, backlog, shares)?);
                }
                Listen::Unix(path) => {
                    let (socket, file) = listener::unix(path, backlog)?;
                    files.push(file);
                    first.push(socket);
                }
                Listen::Passed(name) => {
                    let sockets = passed::take(name.as_deref())?;
                    of_manager.extend(sockets.iter().map(AsRawFd::as_raw_fd));
                    first.extend(sockets);
                }
            }
        }
        if way == Accepting::Blocking {
            for socket in &first {
                SockRef::from(socket).set_nonblocking(false)?;
            }
        }
        let mut sets = vec![first];
        while shares && sets.len() < workers {
            // Use the addresses of the first set, whose ports are known.
            let mut set = Vec::new();
            for listen in sets[0].iter().map(listener::address_of) {
                if let Listen::Tcp(address) = listen? {
                    set.push(listener::tcp(address, backlog, true).with_context(|| {
                        format!("listener {} of {workers} (fewer: --pool)", sets.len())
                    })?);
                }
            }
            sets.push(set);
        }
        let lock = match way {
            Accepting::Mutex => Some(SharedLock::new().context("a lock that workers share")?),
            _ => None,
        };
        Ok((Self { sets, of_manager, way, lock }, files))
    }

    /// Returns the queues of the worker with this index.
    pub(crate) fn of(&self, index: usize) -> Queue<'_> {
        // If there is only one set, all workers share it; after a stop there is none.
        let sockets = self.sets.get(index % self.sets.len().max(1)).map_or(&[][..], Vec::as_slice);
        let is_own = self.way == Accepting::Reuseport;
        let (of_manager, way) = (self.of_manager.as_slice(), self.way);
        Queue { sockets, of_manager, way, lock: self.lock.as_ref(), is_own }
    }

    /// Returns the addresses on which workers listen.
    ///
    /// # Errors
    /// The errors of getsockname(2).
    pub(crate) fn addresses(&self) -> anyhow::Result<Vec<Listen>> {
        self.of(0).sockets.iter().map(listener::address_of).collect()
    }

    /// Closes this process's listeners; other processes that have one keep it.
    pub(crate) fn close(&mut self) {
        self.sets.clear();
    }

    /// Makes workers that block in accept(2) notice a stop; they do not wait for the notifier. Must be
    /// called after the scoreboard shows the stop.
    ///
    /// From now on, accept(2) does not block. A worker that finds a queue empty ends its accepting and
    /// shuts the listener down ([`shut_down`]), which wakes all workers that block on it. This function
    /// does the same, as soon as it finds the queue empty. So a worker can block only on a queue that is
    /// empty and about to be shut down; on a queue that stays full, no worker blocks.
    pub(crate) fn begin_stop(&self) {
        if self.way != Accepting::Blocking {
            return;
        }
        for socket in self.sets.iter().flatten() {
            let _ = SockRef::from(socket).set_nonblocking(true);
            for _ in 0..LOOKS.0 {
                if !has_connections(socket.as_fd()) {
                    shut_down(socket.as_fd());
                    break;
                }
                thread::sleep(LOOKS.1);
            }
        }
    }
}

/// Returns whether the events that poll(2) has reported for a listener mean a waiting connection, and not a
/// listener that was shut down. The wait must have requested [`QUEUE_EVENTS`].
pub(crate) fn shows_connection(revents: i16) -> bool {
    revents == POLLIN
}

/// The events to poll a listener for. A UNIX socket that was shut down is readable; POLLRDHUP reports the
/// shutdown.
pub(crate) const QUEUE_EVENTS: i16 = POLLIN | POLLRDHUP;

/// Returns whether a connection waits to be accepted. This is false for a listener that was shut down,
/// although the kernel reports it as readable.
pub(crate) fn has_connections(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd { fd: socket.as_raw_fd(), events: QUEUE_EVENTS, revents: 0 }];
    sys::ppoll(&mut polled, Some(Duration::ZERO)).is_ok() && shows_connection(polled[0].revents)
}

/// Returns whether a listener was shut down.
pub(crate) fn is_shut_down(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd { fd: socket.as_raw_fd(), events: QUEUE_EVENTS, revents: 0 }];
    sys::ppoll(&mut polled, Some(Duration::ZERO)).is_ok() && polled[0].revents & !POLLIN != 0
}

/// Ends a listener for every process that shares it: new connections are refused, and accept(2)
/// fails with EINVAL. The service manager shares the listeners that it has passed; they must stay usable.
pub(crate) fn shut_down(listener: BorrowedFd<'_>) {
    // Another worker may have done this first.
    let _ = SockRef::from(&listener).shutdown(Shutdown::Read);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_kernel_reports_how_many_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let listener = OwnedFd::from(listener);
        assert_eq!(waiting_at(&listener), 0);
        let _clients = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        assert_eq!(waiting_at(&listener), 3);
        drop(sys::accept(listener.as_fd()).unwrap());
        assert_eq!(waiting_at(&listener), 2);
        assert!(has_connections(listener.as_fd()));
        shut_down(listener.as_fd());
        assert!(!has_connections(listener.as_fd()), "nobody can be accepted any more");
        assert!(is_shut_down(listener.as_fd()));
        let directory = tempfile::tempdir().unwrap();
        let (unix, _file) = listener::unix(&directory.path().join("s"), 16).unwrap();
        assert_eq!(waiting_at(&unix), QUEUE_MAX);
        assert!(!has_connections(unix.as_fd()) && !is_shut_down(unix.as_fd()));
        let _client = std::os::unix::net::UnixStream::connect(directory.path().join("s")).unwrap();
        assert!(has_connections(unix.as_fd()));
        shut_down(unix.as_fd());
        assert!(!has_connections(unix.as_fd()), "nobody can be accepted any more");
    }
}
