//! Encrypts output into TLS records and sends them.

use super::{
    kernel,
    worker::{Extra, Worker},
};
use pollux_sys as sys;
use pollux_tls::CONTROL_RECORD_MAX;
use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// Plaintext to be sent.
pub(super) enum Source<'a> {
    /// Two pieces, one after the other.
    Bytes(&'a [u8], &'a [u8]),
    /// Up to `len` bytes of a file.
    File { file: BorrowedFd<'a>, offset: u64, len: usize },
}

impl Source<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(first, second) => first.len() + second.len(),
            Self::File { len, .. } => *len,
        }
    }

    fn skip(&mut self, count: usize) {
        match self {
            Self::Bytes(first, second) => {
                let of_first = count.min(first.len());
                *first = &first[of_first..];
                *second = &second[count - of_first..];
            }
            Self::File { offset, len, .. } => {
                *offset += count as u64;
                *len -= count;
            }
        }
    }

    /// Moves bytes from the front into `buffer`. `Ok(0)` is the end of the output, or of the file.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(self.len());
        let filled = match self {
            Self::Bytes(first, second) => {
                let of_first = len.min(first.len());
                buffer[..of_first].copy_from_slice(&first[..of_first]);
                buffer[of_first..len].copy_from_slice(&second[..len - of_first]);
                len
            }
            Self::File { file, offset, .. } => {
                rustix::io::pread(*file, &mut buffer[..len], *offset)?
            }
        };
        self.skip(filled);
        Ok(filled)
    }
}

impl Worker {
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        mut source: Source<'_>,
        more: bool,
    ) -> io::Result<usize> {
        let number = socket.as_raw_fd() as usize;
        let Some((session, extra)) = self.sessions.get_mut(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if !session.is_established() {
            // Without keys nothing can be sent, not even a response that the handshake has timed out.
            return Err(io::ErrorKind::NotConnected.into());
        }
        if session.has_sent_close() {
            // A malformed record directly followed a request that is answered now: the alert has ended the
            // connection.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut taken = 0;
        if let Some(extra) = extra {
            flush(socket, &mut extra.output)?;
            if session.is_sealed_by_kernel() && extra.sealed_ahead > 0 && !sys::is_writable(socket)?
            {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // The repeated bytes were sent by now.
            taken = extra.sealed_ahead.min(source.len());
            extra.sealed_ahead -= taken;
            source.skip(taken);
        }
        if extra.as_ref().is_some_and(|extra| extra.is_empty()) {
            *extra = None;
        }
        if let Some(kernel) = self.kernel
            && kernel.takes(session, &source)
            && !session.is_sealed_by_kernel()
        {
            let keys = self.keys.keys_of(number, session);
            self.kernel_counts.give(socket, session, keys);
        }
        if session.is_sealed_by_kernel() {
            if source.len() == 0 {
                return Ok(taken);
            }
            return match kernel::send(socket, session, extra, &source, more, self.kernel) {
                Ok(sent) => Ok(taken + sent),
                // The next call returns the error.
                Err(_) if taken > 0 => Ok(taken),
                Err(error) => Err(error),
            };
        }
        while source.len() > 0 {
            let keys = self.keys.keys_of(number, session);
            let out = &mut self.output;
            let mut written = session.update_keys_if_due(keys, out).map_err(io::Error::other)?;
            let mut sealed = 0;
            let mut result = Ok(());
            loop {
                // It is also 0 if the key may seal no further record: the next round changes the key.
                let room = session.room_for_content(out.len() - written);
                if room == 0 {
                    break;
                }
                let start = written + session.content_offset();
                let len = match source.fill(&mut out[start..][..room]) {
                    Ok(0) => break,
                    Ok(len) => len,
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                };
                let record = session.seal_in_place(keys, &mut out[written..], len);
                written += record.map_err(io::Error::other)?;
                sealed += len;
            }
            if written == 0 {
                // The file has ended, or cannot be read.
                return result.map(|()| taken);
            }
            let more = more || source.len() > 0;
            let sent = match sys::send_now(socket, &out[..written], more) {
                Ok(sent) => sent,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => 0,
                    _ => return Err(error),
                },
            };
            if sent < written {
                let extra = extra.get_or_insert_with(Box::<Extra>::default);
                extra.output.extend_from_slice(&out[sent..written]);
                extra.sealed_ahead = sealed;
                return if taken > 0 { Ok(taken) } else { Err(io::ErrorKind::WouldBlock.into()) };
            }
            taken += sealed;
            result?;
            if sealed == 0 {
                return Ok(taken);
            }
        }
        Ok(taken)
    }

    pub(super) fn close_notify(&mut self, socket: BorrowedFd<'_>) {
        let number = socket.as_raw_fd() as usize;
        let Some((session, extra)) = self.sessions.get_mut(number) else { return };
        if !session.is_established() || session.has_sent_close() {
            return;
        }
        if let Some(extra) = extra
            && flush(socket, &mut extra.output).is_err()
        {
            // The client could not read close_notify behind a partial record.
            return;
        }
        if session.is_sealed_by_kernel() {
            return kernel::close(socket, session);
        }
        let mut record = [0; CONTROL_RECORD_MAX];
        let keys = self.keys.keys_of(number, session);
        let len = session.seal_close(keys, &mut record);
        let _ = sys::send_now(socket, &record[..len], false);
    }
}

/// Sends stored records.
///
/// # Errors
/// `WouldBlock` while unsent records are left; the errors of send(2).
pub(super) fn flush(socket: BorrowedFd<'_>, output: &mut Vec<u8>) -> io::Result<()> {
    while !output.is_empty() {
        match sys::send_now(socket, output, false) {
            Ok(sent) if sent == output.len() => *output = Vec::new(),
            Ok(sent) => drop(output.drain(..sent)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_tls::{Content, Direction, Role, Session, Suite};
    use std::{
        io::Read as _,
        os::{fd::AsFd as _, unix::net::UnixStream},
    };

    /// The last record that a key may seal can be any record of a send.
    #[test]
    fn a_send_continues_with_the_next_key() {
        let suite = Suite::Tls13Aes128Gcm;
        let there = Direction { secret: &[1; 32], sequence: (1 << 23) - 1 };
        let back = Direction { secret: &[2; 32], sequence: 0 };
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut worker = Worker::default();
        let number = near.as_raw_fd() as usize;
        worker.sessions.insert(number, Box::default()).unwrap();
        let (session, extra) = worker.sessions.get_mut(number).unwrap();
        *session = Session::new(suite, Role::Server, &back, &there);
        *extra = None;

        let data = vec![b'd'; 40_000];
        let sent = worker.send(near.as_fd(), Source::Bytes(&data, &[]), false).unwrap();
        assert_eq!(sent, data.len());
        drop(near);

        let mut records = Vec::new();
        far.read_to_end(&mut records).unwrap();
        let mut client = Session::new(suite, Role::Client, &there, &back);
        let mut keys = client.derive_keys();
        let (mut rest, mut received) = (&mut records[..], 0);
        while !rest.is_empty() {
            let opening = client.open(&mut keys, rest).unwrap();
            if let Content::Data(range) = opening.content {
                received += range.len();
            }
            rest = &mut rest[opening.consumed..];
        }
        assert_eq!(received, data.len());
    }
}
