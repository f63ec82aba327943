//! Write readiness, where the kernel's signal for it is not reliable.
//!
//! The kernel sends POLL_OUT only after a send was refused. For all sockets but TCP it records the
//! refusal too late: if the reader makes room between the check of the buffer and that record, no
//! signal is sent (sock_alloc_send_pskb, Linux 6.18), and the writer would sleep for ever. So an
//! epoll instance watches sockets other than TCP once a caller has an interest in writing, and the
//! wait watches both. All their other events still arrive as signals.

use crate::{Error, Interest, Token};
use pollux_sys::{self as sys, EpollEvent, EpollOp, PollFd};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// How a descriptor reports that it is writable. Determined at the first interest in writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Notification {
    #[default]
    Unknown,
    /// By a signal, which is reliable for this kind of descriptor.
    Signal,
    /// By the epoll instance.
    Epoll,
}

/// How [`Writability::wait`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// The timeout is over, and nothing was reported.
    TimedOut,
    /// Signals are queued, or a watched socket is writable.
    Activity,
    /// A signal handler ran.
    Interrupted,
}

/// The most events of one epoll_wait; the others are reported by the next.
const BATCH: usize = 64;

/// The descriptors that epoll watches for write readiness.
#[derive(Debug, Default)]
pub(crate) struct Writability {
    /// By descriptor number.
    notifications: Vec<Notification>,
    /// Opened with the first socket that must be watched.
    epoll: Option<OwnedFd>,
    events: Vec<EpollEvent>,
}

impl Writability {
    /// Discards the state of the number: it belongs to a new registration.
    #[inline]
    pub(crate) fn reset(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        if let Some(kind) = self.notifications.get_mut(token.fd as usize) {
            *kind = Notification::Unknown;
        }
        self.require(token, interest)
    }

    /// Makes sure that `token` reports when it is writable, if `interest` includes writing.
    #[inline]
    pub(crate) fn require(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        if !interest.contains(Interest::WRITE) {
            return Ok(());
        }
        match self.notifications.get(token.fd as usize) {
            None | Some(Notification::Unknown) => self.classify(token),
            Some(_) => Ok(()),
        }
    }

    #[cold]
    fn classify(&mut self, token: Token) -> Result<(), Error> {
        let index = token.fd as usize;
        if index >= self.notifications.len() {
            self.notifications.resize((index + 1).next_multiple_of(1024), Notification::Unknown);
        }
        let signal_is_reliable = match sys::socket_protocol(token.fd) {
            Ok(protocol) => protocol == libc::IPPROTO_TCP,
            // Pipes and terminals record the refusal under the lock that protects the buffer.
            Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => true,
            Err(source) => return Err(Error::Io { call: "getsockopt(SO_PROTOCOL)", source }),
        };
        if signal_is_reliable {
            self.notifications[index] = Notification::Signal;
        } else {
            if self.epoll.is_none() {
                self.epoll = Some(sys::epoll_create().map_err(Error::io("epoll_create1"))?);
                self.events.reserve_exact(BATCH);
            }
            let epoll = self.epoll.as_ref().expect("just made").as_fd();
            let bits = (libc::EPOLLOUT | libc::EPOLLET) as u32;
            sys::epoll_ctl(epoll, EpollOp::Add, token.fd, bits, token.to_bits())
                .map_err(Error::io("epoll_ctl"))?;
            self.notifications[index] = Notification::Epoll;
        }
        Ok(())
    }

    /// Stops watching `token`; its descriptor stays open. (Closing a descriptor stops it as well.)
    pub(crate) fn remove(&mut self, token: Token) {
        let kind = self.notifications.get(token.fd as usize);
        if let (Some(Notification::Epoll), Some(epoll)) = (kind, &self.epoll) {
            let _ = sys::epoll_ctl(epoll.as_fd(), EpollOp::Remove, token.fd, 0, 0);
        }
    }

    /// Whether a socket has ever been watched: then each wait begins with [`Writability::wait`].
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.epoll.is_some()
    }

    /// Waits for signals and for watched sockets, and passes each socket that is writable to
    /// `room`.
    #[cold]
    pub(crate) fn wait(
        &mut self,
        signals: BorrowedFd<'_>,
        timeout: Option<Duration>,
        mut room: impl FnMut(Token),
    ) -> Result<WaitEnd, Error> {
        let Some(epoll) = &self.epoll else { return Ok(WaitEnd::TimedOut) };
        let entry = |fd| PollFd { fd, events: libc::POLLIN, revents: 0 };
        let mut entries = [entry(signals.as_raw_fd()), entry(epoll.as_raw_fd())];
        match sys::ppoll(&mut entries, timeout) {
            Ok(0) => return Ok(WaitEnd::TimedOut),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return Ok(WaitEnd::Interrupted);
            }
            Err(source) => return Err(Error::Io { call: "ppoll", source }),
        }
        if entries[1].revents != 0 {
            sys::epoll_wait(epoll.as_fd(), &mut self.events, 0).map_err(Error::io("epoll_wait"))?;
            for &EpollEvent { u64: token, .. } in &self.events {
                room(Token::from_bits(token));
            }
        }
        Ok(WaitEnd::Activity)
    }

    /// After fork(2), in the child: drops the epoll instance, which belongs to the parent.
    pub(crate) fn reopen_after_fork(&mut self) {
        *self = Self::default();
    }
}
