//! A channel for messages, one packet each: a UNIX socket of the kind SOCK_SEQPACKET.

use super::message::{MESSAGE_MAX, Message, MessageError};
use anyhow::{Context, bail, ensure};
use pollux_sys as sys;
use socket2::SockRef;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

/// What the kernel may hold of messages that are not received yet.
const QUEUE_BYTES: usize = 1 << 20;

/// Between two tries to send where there was no room.
const PAUSE: Duration = Duration::from_millis(1);

/// One end. The other one is in the other process.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// Both ends.
    ///
    /// # Errors
    /// The errors of socketpair(2).
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (near, far) = sys::packet_pair()?;
        for end in [&near, &far] {
            // As much as the kernel lets us.
            let _ = SockRef::from(end).set_send_buffer_size(QUEUE_BYTES);
        }
        Ok((Self(near), Self(far)))
    }

    /// The end that this socket is.
    pub(crate) fn of(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// The socket.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.0
    }

    /// Sends without waiting: what is in flight at a time always has room.
    ///
    /// # Errors
    /// As sendmsg(2): the other end is gone, or takes nothing.
    pub(crate) fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        debug_assert_eq!(message.descriptors(), descriptors.len());
        let mut bytes = message.encode();
        let outcome = sys::send_with_descriptors(self.0.as_fd(), &bytes, descriptors);
        // There may be secrets in it.
        bytes.fill(0);
        std::hint::black_box(&bytes);
        outcome.map(drop)
    }

    /// As [`Channel::send`], but waits until `deadline` while the other end takes nothing.
    ///
    /// # Errors
    /// As [`Channel::send`]; the time is over.
    pub(crate) fn send_until(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> anyhow::Result<()> {
        loop {
            match self.send(message, descriptors) {
                Err(error) if is_full(&error) && Instant::now() < deadline => {
                    thread::sleep(PAUSE);
                }
                outcome => return outcome.context("the channel of the upgrade"),
            }
        }
    }

    /// The next message, and the descriptors that came with it. Waits where the socket is blocking.
    /// `None` when the other end is closed.
    ///
    /// # Errors
    /// The errors of recvmsg(2); the received bytes are no message, or its descriptors are missing.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
        let received = match sys::receive_with_descriptors(self.0.as_fd(), buffer) {
            // The other end was closed before it had received everything. The kernel reports that first, once,
            // and keeps what the other end had sent, such as why it ends.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                sys::receive_with_descriptors(self.0.as_fd(), buffer)
            }
            outcome => outcome,
        };
        let (len, descriptors) = received?;
        if len == 0 {
            return Ok(None);
        }
        let message = Message::decode(&buffer[..len]).map_err(malformed)?;
        if message.descriptors() != descriptors.len() {
            return Err(malformed(MessageError::Value));
        }
        Ok(Some((message, descriptors)))
    }

    /// As [`Channel::receive`], on a blocking socket and until `deadline`. The end of the channel is an
    /// error, too.
    ///
    /// # Errors
    /// As [`Channel::receive`]; the time is over.
    pub(crate) fn expect(&self, deadline: Instant) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the other process says nothing in time");
        // Zero would be no timeout at all.
        let left = left.max(Duration::from_millis(1));
        SockRef::from(&self.0).set_read_timeout(Some(left)).context("SO_RCVTIMEO")?;
        let mut buffer = vec![0; MESSAGE_MAX];
        match self.receive(&mut buffer) {
            Ok(Some(received)) => Ok(received),
            Ok(None) => bail!("the other process has closed the channel"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                bail!("the other process says nothing in time")
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a message can be sent later: too many messages, or descriptors, are on their way.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ETOOMANYREFS | libc::ENOBUFS))
}

fn malformed(error: MessageError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The operator was shown "connection reset" in place of the reason.
    #[test]
    fn a_reason_is_read_although_the_other_end_left_messages_unread() {
        let (near, far) = Channel::pair().unwrap();
        near.send(&Message::Begin { listeners: 0 }, &[]).unwrap();
        let failed = Message::Failed { reason: "why".into() };
        far.send(&failed, &[]).unwrap();
        drop(far);
        let mut buffer = vec![0; MESSAGE_MAX];
        assert_eq!(near.receive(&mut buffer).unwrap().map(|(message, _)| message), Some(failed));
        assert!(near.receive(&mut buffer).unwrap().is_none());
    }
}
