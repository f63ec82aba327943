//! The input and output of a TLS connection: its handshake, and then records.

use super::{Extra, HandshakeEnd, TlsConnections, TlsError};
use pollux_sys as sys;
use pollux_tls::{ALERT_MAX, CONTROL_RECORD_MAX, Content, Error, Handshake, Progress};
use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, RawFd},
};

/// The alert of a server that requires a certificate of the client (RFC 8446 §6).
const CERTIFICATE_REQUIRED: u8 = 116;

impl TlsConnections {
    /// Begins the handshake of a connection whose TCP handshake is complete. Nothing is sent yet.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn begin(&mut self, fd: RawFd) -> io::Result<()> {
        let handshake = Handshake::client(self.config.clone(), self.plan.name.clone());
        let mut handshake =
            handshake.map_err(|error| TlsError::of_handshake(&error, &self.plan))?;
        let mut output = Vec::new();
        let first = handshake.advance(&[], &mut output);
        first.map_err(|error| TlsError::of_handshake(&error, &self.plan))?;
        let handshake = Some(Box::new(handshake));
        self.sessions.insert(fd as usize, Box::new(Extra { handshake, output, ..Extra::default() }))
    }

    /// Continues a handshake; `scratch` is overwritten.
    ///
    /// # Errors
    /// `WouldBlock` until it is complete; the reason when it has failed.
    pub(crate) fn handshake(
        &mut self,
        socket: BorrowedFd<'_>,
        scratch: &mut [u8],
    ) -> io::Result<HandshakeEnd> {
        let number = socket.as_raw_fd() as usize;
        let Some((session, Some(extra))) = self.sessions.get_mut(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let Some(handshake) = &mut extra.handshake else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        loop {
            flush(socket, &mut extra.output)?;
            let received = match sys::recv(socket, scratch) {
                Ok(0) => {
                    return Err(TlsError::into_io(
                        "the server closed the connection during the TLS handshake: does it speak \
                         https on this port?"
                            .into(),
                    ));
                }
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            match handshake.advance(&scratch[..received], &mut extra.output) {
                Ok(Progress::NeedsInput) => {}
                Ok(Progress::Complete) => break,
                Err(error) => {
                    let _ = sys::send(socket, &extra.output, false); // the alert
                    return Err(TlsError::of_handshake(&error, &self.plan));
                }
            }
        }
        let Some(handshake) = extra.handshake.take() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let established = handshake.finish();
        let established =
            established.map_err(|error| TlsError::of_handshake(&error, &self.plan))?;
        *session = established.session;
        extra.input = established.input;
        let tickets = established.tickets.filter(|_| self.plan.options.resumes);
        extra.tickets = tickets.map(Box::new);
        // Output that cannot be sent now is sent before the first request.
        match flush(socket, &mut extra.output) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        self.drop_empty(number);
        Ok(HandshakeEnd { is_resumed: established.is_resumed })
    }

    fn drop_empty(&mut self, number: usize) {
        if let Some((_, extra)) = self.sessions.get_mut(number)
            && extra.as_ref().is_some_and(|extra| extra.is_empty())
        {
            *extra = None;
        }
    }

    /// Sends plaintext, and returns how many bytes of it were sent. The remaining bytes must be passed
    /// again: part of them may be sealed already.
    ///
    /// # Errors
    /// send(2); `WouldBlock` when nothing was sent.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
        let number = socket.as_raw_fd() as usize;
        let Some((session, extra)) = self.sessions.get_mut(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if !session.is_established() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if session.has_sent_close() {
            // A bad record arrived immediately after a response: the alert has ended the connection.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if let Some(extra) = extra {
            flush(socket, &mut extra.output)?;
            if extra.sealed_ahead > 0 {
                let taken = extra.sealed_ahead.min(bytes.len());
                extra.sealed_ahead -= taken;
                self.drop_empty(number);
                return Ok(taken);
            }
        }
        let keys = self.keys.keys_of(number, session);
        let sealing = session.seal(keys, bytes, &mut self.output);
        let sealing = sealing.map_err(|error| TlsError::into_io(error.to_string()))?;
        let records = &self.output[..sealing.written];
        let sent = match sys::send(socket, records, false) {
            Ok(sent) => sent,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => 0,
                _ => return Err(error),
            },
        };
        if sent < records.len() {
            let extra = extra.get_or_insert_with(Box::<Extra>::default);
            extra.output.extend_from_slice(&records[sent..]);
            extra.sealed_ahead = sealing.plaintext;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(sealing.plaintext)
    }

    /// Receives plaintext into `buffer`, which must have room for a record. `Ok(0)` is the server's
    /// close_notify, `UnexpectedEof` an end without it.
    ///
    /// # Errors
    /// recv(2); `WouldBlock` when nothing was received; a record that cannot be opened.
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        self.may_have_more = false;
        let number = socket.as_raw_fd() as usize;
        let Some((session, extra)) = self.sessions.get_mut(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if !session.is_established() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if session.has_received_close() {
            return Ok(0);
        }
        let keys = self.keys.keys_of(number, session);
        // The buffer contains plaintext first, then received bytes that are not opened yet.
        let (mut plain, mut start, mut end) = (0, 0, 0);
        if let Some(extra) = extra {
            end = extra.input.len();
            buffer[..end].copy_from_slice(&extra.input);
            extra.input = Vec::new();
        }
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
                        Content::Tickets(range) => {
                            // One record of tickets is enough: each full or resumed handshake brings more.
                            let receiver = extra.as_mut().and_then(|extra| extra.tickets.take());
                            let tickets = &buffer[at + range.start..at + range.end];
                            if let Some(mut receiver) = receiver
                                && let Err(error) = receiver.receive_messages(tickets)
                            {
                                break Err(TlsError::into_io(error.to_string()));
                            }
                            continue;
                        }
                        Content::Control => continue,
                        Content::Closed => {
                            start = end;
                            break Ok(());
                        }
                        Content::Incomplete(_) => {}
                    }
                }
                Err(error) => {
                    let mut alert = [0; ALERT_MAX];
                    let len = session.seal_alert(keys, error, &mut alert);
                    let _ = sys::send(socket, &alert[..len], false);
                    break Err(TlsError::into_io(match error {
                        // In TLS 1.3 a client learns this after its handshake.
                        Error::PeerAlert(CERTIFICATE_REQUIRED) => {
                            "the server requires a certificate of the client, which is not supported"
                                .into()
                        }
                        _ => error.to_string(),
                    }));
                }
            }
            buffer.copy_within(start..end, plain);
            (start, end) = (plain, plain + (end - start));
            if is_drained && plain > 0 {
                break Err(io::ErrorKind::WouldBlock.into());
            }
            if end == buffer.len() {
                break Err(io::ErrorKind::Interrupted.into());
            }
            match sys::recv(socket, &mut buffer[end..]) {
                Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => {
                    is_drained = received < buffer.len() - end;
                    end += received;
                }
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
            outcome if plain == 0 => outcome.map(|()| 0),
            // The next call returns the end or the error, unless the socket is only drained.
            outcome => {
                self.may_have_more =
                    !matches!(&outcome, Err(e) if e.kind() == io::ErrorKind::WouldBlock);
                Ok(plain)
            }
        }
    }

    /// Whether the server has ended its side: no reply can follow (RFC 8446 §6.1).
    #[inline]
    pub(crate) fn has_received_close(&mut self, fd: RawFd) -> bool {
        let found = self.sessions.get_mut(fd as usize);
        found.is_some_and(|(session, _)| session.has_received_close())
    }

    /// Ends a connection: sends close_notify if `is_polite` and it can be sent at once, and zeroes the
    /// secrets.
    pub(crate) fn end(&mut self, socket: BorrowedFd<'_>, is_polite: bool) {
        let number = socket.as_raw_fd() as usize;
        if is_polite
            && let Some((session, extra)) = self.sessions.get_mut(number)
            && session.is_established()
            && !session.has_sent_close()
            && extra.as_ref().is_none_or(|extra| extra.output.is_empty())
        {
            let mut record = [0; CONTROL_RECORD_MAX];
            let keys = self.keys.keys_of(number, session);
            let len = session.seal_close(keys, &mut record);
            let _ = sys::send(socket, &record[..len], false);
        }
        if let Some((session, _)) = self.sessions.remove(number) {
            self.keys.forget(number, &session);
        }
    }
}

/// Sends the stored output.
///
/// # Errors
/// `WouldBlock` if some output remains; send(2).
fn flush(socket: BorrowedFd<'_>, output: &mut Vec<u8>) -> io::Result<()> {
    while !output.is_empty() {
        match sys::send(socket, output, false) {
            Ok(sent) if sent == output.len() => *output = Vec::new(),
            Ok(sent) => drop(output.drain(..sent)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
