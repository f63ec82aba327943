//! Room to write, where the kernel's signal for it cannot be relied upon.
//!
//! POLL_OUT is sent only to who was refused, and with all but TCP sockets the refusal is noted too
//! late: a reader that makes room between the look at the buffer and the note is not told that
//! somebody waits (sock_alloc_send_pskb, Linux 6.18), and the writer sleeps for ever. So for
//! sockets other than TCP, once somebody wants to write to them, an epoll instance tells of the
//! room, and the wait watches both. Everything else about them still comes by signals.

use crate::{Error, Interest, Token};
use pollux_sys::{self as sys, EpollEvent, EpollOp, PollFd};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// What is known of a descriptor. Asked when somebody first wants to write to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Notification {
    #[default]
    Unknown,
    /// Its signal is good.
    Signal,
    /// In the epoll instance.
    Epoll,
}

/// How [`Writability::wait`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// The time is over, and there is nothing.
    TimedOut,
    /// There are signals, or there is room somewhere.
    Activity,
    /// A signal handler ran.
    Interrupted,
}

/// The most events of one look; others wait for the next.
const BATCH: usize = 64;

/// The descriptors that are watched for room.
#[derive(Debug, Default)]
pub(crate) struct Writability {
    /// By descriptor number.
    notifications: Vec<Notification>,
    /// Made with the first that is to be watched.
    epoll: Option<OwnedFd>,
    events: Vec<EpollEvent>,
}

impl Writability {
    /// The number belongs to a new registration.
    #[inline]
    pub(crate) fn reset(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        if let Some(kind) = self.notifications.get_mut(token.fd as usize) {
            *kind = Notification::Unknown;
        }
        self.require(token, interest)
    }

    /// Somebody may want to write to `token`.
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
            // Pipes and terminals note it under the lock under which they look.
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

    /// The registration ends, and the descriptor stays open. (Closing ends the watching itself.)
    pub(crate) fn remove(&mut self, token: Token) {
        let kind = self.notifications.get(token.fd as usize);
        if let (Some(Notification::Epoll), Some(epoll)) = (kind, &self.epoll) {
            let _ = sys::epoll_ctl(epoll.as_fd(), EpollOp::Remove, token.fd, 0, 0);
        }
    }

    /// Whether anything has ever been watched: then a wait begins with [`Writability::wait`].
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.epoll.is_some()
    }

    /// Waits until there are signals or there is room, and names those where there is.
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

    /// After fork(2), in the child: the instance is the parent's.
    pub(crate) fn reopen_after_fork(&mut self) {
        *self = Self::default();
    }
}
