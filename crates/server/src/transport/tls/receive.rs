//! Receives and decrypts TLS records.

use super::{
    HandshakeStep, Receive, kernel,
    send::flush,
    worker::{Extra, Worker},
};
use pollux_sys as sys;
use pollux_tls::{ALERT_MAX, CONTROL_RECORD_MAX, Content, Error, Keys, Session};
use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

impl Worker {
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        buffer: &mut [u8],
        read_socket: Receive,
    ) -> io::Result<usize> {
        self.may_have_more = false;
        self.has_shaken_hands = false;
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
            return self.open_records(socket, buffer, 0, read_socket);
        }
        if !is_established && self.handshake(socket, buffer, read_socket)? != HandshakeStep::Done {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // Put the saved start of a record before its newly received rest.
        let Some((_, extra)) = self.sessions.get_mut(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let mut len = 0;
        if let Some(extra) = extra {
            len = extra.input.len();
            buffer[..len].copy_from_slice(&extra.input);
            extra.input = Vec::new();
        }
        self.open_records(socket, buffer, len, read_socket)
    }

    /// Continues the handshake of a connection that a client has made, without waiting; reports `Done` if
    /// there is none.
    pub(super) fn establish(
        &mut self,
        socket: BorrowedFd<'_>,
        buffer: &mut [u8],
    ) -> io::Result<HandshakeStep> {
        match self.sessions.get_mut(socket.as_raw_fd() as usize) {
            Some((session, _)) if session.is_established() => Ok(HandshakeStep::Done),
            _ => self.handshake(socket, buffer, sys::recv_now),
        }
    }

    pub(super) fn awaits_room(&mut self, socket: BorrowedFd<'_>) -> bool {
        let session = self.sessions.get_mut(socket.as_raw_fd() as usize);
        session.is_some_and(|(session, extra)| {
            !session.is_established()
                && extra.as_ref().is_some_and(|extra| !extra.output.is_empty())
        })
    }

    pub(super) fn has_part_of_record(&mut self, socket: BorrowedFd<'_>) -> bool {
        let session = self.sessions.get_mut(socket.as_raw_fd() as usize);
        session
            .is_some_and(|(_, extra)| extra.as_ref().is_some_and(|extra| !extra.input.is_empty()))
    }

    pub(super) fn has_ended(&mut self, socket: BorrowedFd<'_>) -> bool {
        let session = self.sessions.get_mut(socket.as_raw_fd() as usize);
        session.is_some_and(|(session, _)| session.has_received_close() || session.has_sent_close())
    }

    /// Decrypts the first `len` bytes of the buffer and all that can be received. `read_socket` may wait, once:
    /// if it waited for each part of a record, a client that sends single bytes would put off the caller's deadline.
    fn open_records(
        &mut self,
        socket: BorrowedFd<'_>,
        buffer: &mut [u8],
        len: usize,
        mut read_socket: Receive,
    ) -> io::Result<usize> {
        let number = socket.as_raw_fd() as usize;
        let Some((session, extra)) = self.sessions.get_mut(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let keys = self.keys.keys_of(number, session);
        // The buffer contains the plaintext first, then the bytes that are not decrypted yet.
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
                            if let Some(extra) = extra.as_mut() {
                                extra.tickets = None;
                            }
                            continue;
                        }
                        Content::Control
                            if session.is_sealed_by_kernel()
                                && !session.has_sent_close()
                                && kernel::cannot_update_keys(session, self.kernel) =>
                        {
                            // The current key may not be used any more (RFC 8446 §4.6.3), so requests that
                            // arrived before cannot be answered either.
                            kernel::close(socket, session);
                            tracing::debug!(
                                "closing a TLS connection: its client changes keys, which the kernel cannot"
                            );
                            (plain, start) = (0, end);
                            break Err(io::ErrorKind::ConnectionAborted.into());
                        }
                        Content::Control if session.owes_key_update() => {
                            answer_key_update(socket, session, keys, extra);
                            continue;
                        }
                        // pollux_tls limits the number of such records.
                        Content::Control => continue,
                        Content::Tickets(range) => {
                            let receiver = extra.as_mut().and_then(|extra| extra.tickets.as_mut());
                            if let Some(receiver) = receiver {
                                let tickets = &buffer[at + range.start..at + range.end];
                                // A malformed ticket is useless, but does no harm.
                                let _ = receiver.receive_messages(tickets);
                            }
                            continue;
                        }
                        Content::Closed => {
                            start = end;
                            break Ok(0);
                        }
                        Content::Incomplete(_) => {}
                    }
                }
                Err(error) if session.is_sealed_by_kernel() => {
                    kernel::alert(socket, session, error);
                    tracing::debug!("closing a TLS connection: {error}");
                    break Err(io_error(error));
                }
                Err(error) => {
                    let mut alert = [0; ALERT_MAX];
                    let len = session.seal_alert(keys, error, &mut alert);
                    // The client could not read the alert behind a partial record.
                    if extra.as_mut().is_none_or(|extra| flush(socket, &mut extra.output).is_ok()) {
                        let _ = sys::send_now(socket, &alert[..len], false);
                    }
                    tracing::debug!("closing a TLS connection: {error}");
                    break Err(io_error(error));
                }
            }
            buffer.copy_within(start..end, plain);
            (start, end) = (plain, plain + (end - start));
            // Stop after a short read only if there is plaintext to return. Otherwise read again, so that
            // an end of stream is noticed.
            if is_drained && plain > 0 {
                break Err(io::ErrorKind::WouldBlock.into());
            }
            if end == buffer.len() {
                debug_assert!(plain > 0, "a buffer has room for a record");
                break Err(io::ErrorKind::Interrupted.into());
            }
            match read_socket(socket, &mut buffer[end..]) {
                // Without close_notify, the end of the stream may be a truncation by a third party (RFC
                // 8446 §6.1).
                Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => {
                    read_socket = sys::recv_now;
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
            // The next call returns the end, the error, or the input for which the full buffer had no room.
            // A drained socket needs no further call.
            outcome => {
                self.may_have_more =
                    !matches!(&outcome, Err(e) if e.kind() == io::ErrorKind::WouldBlock);
                Ok(plain)
            }
        }
    }
}

/// Answers the peer's request for a KeyUpdate at once: a peer may replace the keys of a connection on which nothing
/// will be sent for long. If other records wait to be sent before the answer, the next output contains the answer.
#[cold]
fn answer_key_update(
    socket: BorrowedFd<'_>,
    session: &mut Session,
    keys: &mut Keys,
    extra: &mut Option<Box<Extra>>,
) {
    let waits = extra.as_ref().is_some_and(|extra| !extra.output.is_empty());
    if waits || session.has_sent_close() || session.is_sealed_by_kernel() {
        return;
    }
    let mut record = [0; CONTROL_RECORD_MAX];
    // An error would mean TLS 1.2, which has no KeyUpdate.
    let Ok(len) = session.update_keys_if_due(keys, &mut record) else { return };
    let sent = sys::send_now(socket, &record[..len], false).unwrap_or(0);
    if sent < len {
        let extra = extra.get_or_insert_with(Box::<Extra>::default);
        extra.output.extend_from_slice(&record[sent..len]);
    }
}

/// Converts an error of the record layer into an I/O error.
fn io_error(error: Error) -> io::Error {
    match error {
        Error::PeerAlert(_) => io::Error::new(io::ErrorKind::ConnectionReset, error),
        _ => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}
