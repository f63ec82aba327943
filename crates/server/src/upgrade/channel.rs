//! A channel for messages, one packet each: a UNIX socket of type SOCK_SEQPACKET.

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

/// The size of the kernel's buffer for messages that have not been received yet.
const QUEUE_BYTES: usize = 1 << 20;

/// The pause between two attempts to send while the buffer is full.
const PAUSE: Duration = Duration::from_millis(1);

/// One end of a channel; the other end is in the other process.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// Creates both ends.
    ///
    /// # Errors
    /// The errors of socketpair(2).
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (near, far) = sys::packet_pair()?;
        for end in [&near, &far] {
            // The kernel may allow less.
            let _ = SockRef::from(end).set_send_buffer_size(QUEUE_BYTES);
        }
        Ok((Self(near), Self(far)))
    }

    /// Creates the end from its socket.
    pub(crate) fn of(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Returns the socket.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.0
    }

    /// Sends a message without waiting. There is always room for all messages that are in flight at
    /// a time.
    ///
    /// # Errors
    /// The errors of sendmsg(2): the other end is closed, or its buffer is full.
    pub(crate) fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        debug_assert_eq!(message.descriptors(), descriptors.len());
        let mut bytes = message.encode();
        let outcome = sys::send_with_descriptors(self.0.as_fd(), &bytes, descriptors);
        // The message may contain secrets.
        bytes.fill(0);
        std::hint::black_box(&bytes);
        outcome.map(drop)
    }

    /// Does the same as [`Channel::send`], but waits until `deadline` while the buffer is full.
    ///
    /// # Errors
    /// The errors of [`Channel::send`]; also if `deadline` has passed.
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

    /// Receives the next message with its descriptors. Waits if the socket is blocking. Returns
    /// `None` when the other end is closed.
    ///
    /// # Errors
    /// The errors of recvmsg(2); also if the received bytes are no message, or descriptors are
    /// missing.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
        let received = match sys::receive_with_descriptors(self.0.as_fd(), buffer) {
            // The other end was closed before it had received everything. The kernel reports this
            // once, first, and keeps the messages of the other end, such as the reason why it ends.
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

    /// Does the same as [`Channel::receive`], on a blocking socket and until `deadline`. A closed
    /// channel is an error, too.
    ///
    /// # Errors
    /// The errors of [`Channel::receive`]; also if `deadline` has passed.
    pub(crate) fn expect(&self, deadline: Instant) -> anyhow::Result<(Message, Vec<OwnedFd>)> {
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the other process says nothing in time");
        // A timeout of zero would mean no timeout.
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

/// Returns whether a message can be sent later: too many messages or descriptors are in flight.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ETOOMANYREFS | libc::ENOBUFS))
}

fn malformed(error: MessageError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the operator got "connection reset" instead of the reason.
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
