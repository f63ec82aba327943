//! Records that come.

use super::{
    Receive,
    worker::{Extra, Worker},
};
use pollux_sys as sys;
use pollux_tls::{CONTROL_RECORD_MAX, Content, Error};
use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

impl Worker {
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        buffer: &mut [u8],
        receive: Receive,
    ) -> io::Result<usize> {
        self.may_have_more = false;
        let number = socket.as_raw_fd() as usize;
        let Some((session, extra)) = self.sessions.get_mut(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let is_established = session.is_established();
        let has_ended = session.has_received_close();
        if has_ended {
            return Ok(0);
        }
        if is_established && extra.is_none() {
            return self.open(socket, buffer, 0, receive);
        }
        if !is_established {
            self.handshake(socket, buffer, receive)?;
        }
        // Before the rest of a record comes the part that is here.
        let Some((_, extra)) = self.sessions.get_mut(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let mut len = 0;
        if let Some(extra) = extra {
            len = extra.input.len();
            buffer[..len].copy_from_slice(&extra.input);
            extra.input = Vec::new();
        }
        self.open(socket, buffer, len, receive)
    }

    /// Opens what the buffer has already, `len` bytes, and what can be received.
    fn open(
        &mut self,
        socket: BorrowedFd<'_>,
        buffer: &mut [u8],
        len: usize,
        receive: Receive,
    ) -> io::Result<usize> {
        let number = socket.as_raw_fd() as usize;
        let Some((session, extra)) = self.sessions.get_mut(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let keys = self.keys.keys_of(number, session);
        // Plaintext is in front, then what is not opened yet.
        let (mut plain, mut start, mut end) = (0, 0, len);
        let mut is_drained = false;
        let outcome = loop {
            match session.open(keys, &mut buffer[start..end]) {
                Ok(opening) => {
                    let at = start;
                    start += opening.consumed;
                    match opening.content {
                        Content::Data(range) => {
                            buffer.copy_within(at + range.start..at + range.end, plain);
                            plain += range.len();
                            continue;
                        }
                        // The record layer bounds how many of these there are.
                        Content::Control | Content::Tickets(_) => continue,
                        Content::Closed => {
                            start = end;
                            break Ok(0);
                        }
                        Content::Incomplete(_) => {}
                    }
                }
                Err(error) => {
                    let mut alert = [0; CONTROL_RECORD_MAX];
                    let len = session.seal_alert(keys, error, &mut alert);
                    let _ = sys::send_now(socket, &alert[..len], false);
                    tracing::debug!("closing a TLS connection: {error}");
                    break Err(refusal(error));
                }
            }
            buffer.copy_within(start..end, plain);
            (start, end) = (plain, plain + (end - start));
            // Only where there is something to give: else the end of the stream, which may stand behind
            // part of a record, would be passed over; and a blocking socket is to wait for more.
            if is_drained && plain > 0 {
                break Err(io::ErrorKind::WouldBlock.into());
            }
            if end == buffer.len() {
                debug_assert!(plain > 0, "a buffer has room for a record");
                break Err(io::ErrorKind::Interrupted.into());
            }
            match receive(socket, &mut buffer[end..]) {
                // Without close_notify the end may be a truncation by a third party (RFC 8446
                // §6.1).
                Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => {
                    is_drained = received < buffer.len() - end;
                    end += received;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted && plain == 0 => {}
                Err(error) => break Err(error),
            }
        };
        if start < end {
            let extra = extra.get_or_insert_with(Box::<Extra>::default);
            extra.input.extend_from_slice(&buffer[start..end]);
        } else if extra.as_ref().is_some_and(|extra| extra.is_empty()) {
            *extra = None;
        }
        match outcome {
            Ok(len) if plain == 0 => Ok(len),
            Err(error) if plain == 0 => Err(error),
            // The end or the error comes with the next call, unless the socket is just drained.
            outcome => {
                let is_over = !matches!(&outcome, Err(e) if e.kind() == io::ErrorKind::WouldBlock);
                self.may_have_more = is_over;
                Ok(plain)
            }
        }
    }
}

/// The error of a receive that stands for an error of the record layer.
fn refusal(error: Error) -> io::Error {
    match error {
        Error::PeerAlert(_) => io::Error::new(io::ErrorKind::ConnectionReset, error),
        _ => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}
