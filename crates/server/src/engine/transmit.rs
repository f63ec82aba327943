//! Sends an outbox to a peer, with the fewest system calls.

use crate::{
    config::LargeFile,
    transport::{
        Transport,
        outbox::{Next, Outbox},
    },
};
use std::io;

/// The most octets of a file that one sendfile(2) is asked for, and after which one connection has
/// had its turn: others are waiting too.
const FILE_CHUNK: u64 = 1 << 20;

/// How far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Everything has left.
    All,
    /// The socket takes no more for now.
    Blocked,
    /// The socket may take more, but this connection has had its turn.
    Paused,
}

/// Sends; returns how far it came and how many octets the kernel took.
///
/// # Errors
/// What send(2) or sendfile(2) said; UnexpectedEof when a file has become shorter than the length
/// that its head has promised.
// Once a request, with few instructions of its own: it is to be part of its callers.
#[inline(always)]
pub(super) fn transmit(
    transport: &mut Transport,
    outbox: &mut Outbox,
    large_file: LargeFile,
) -> (io::Result<Sent>, u64) {
    // The hot path: one response, or a few, in one send.
    if let Some(bytes) = outbox.only_bytes() {
        return match transport.send(bytes, false) {
            Ok(sent) if sent == bytes.len() => {
                outbox.clear_bytes();
                (Ok(Sent::All), sent as u64)
            }
            Ok(sent) => {
                outbox.advance(sent);
                (Ok(Sent::Blocked), sent as u64)
            }
            Err(error) => (block_or_fail(error), 0),
        };
    }
    transmit_rest(transport, outbox, large_file)
}

/// Where it is more than octets: files, and pieces of several kinds.
#[inline(never)]
fn transmit_rest(
    transport: &mut Transport,
    outbox: &mut Outbox,
    large_file: LargeFile,
) -> (io::Result<Sent>, u64) {
    let is_corked = large_file == LargeFile::Cork && outbox.has_file();
    if is_corked {
        transport.set_cork(true);
    }
    let outcome = transmit_parts(transport, outbox, is_corked);
    if is_corked {
        transport.set_cork(false);
    }
    outcome
}

fn transmit_parts(
    transport: &mut Transport,
    outbox: &mut Outbox,
    is_corked: bool,
) -> (io::Result<Sent>, u64) {
    let mut total = 0;
    loop {
        // With each outcome goes the number of octets that were offered: a send that takes fewer has
        // filled the socket.
        let (outcome, asked) = match outbox.next() {
            Next::Nothing => return (Ok(Sent::All), total),
            _ if total >= FILE_CHUNK => return (Ok(Sent::Paused), total),
            Next::Bytes(bytes) => (transport.send(bytes, false), bytes.len()),
            Next::Two(first, second) => {
                (transport.send_two(first, second), first.len() + second.len())
            }
            Next::BytesBeforeFile(bytes) => (transport.send(bytes, !is_corked), bytes.len()),
            Next::File { file, mut offset, len } => {
                // A file may give less than was asked at a page that must be read first: that
                // says nothing about the socket, and the next call will tell.
                match transport.send_file(file, &mut offset, len.min(FILE_CHUNK) as usize) {
                    Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), total),
                    outcome => (outcome, 0),
                }
            }
        };
        match outcome {
            Ok(sent) => {
                total += sent as u64;
                outbox.advance(sent);
                if sent < asked {
                    return (Ok(Sent::Blocked), total);
                }
            }
            Err(error) => return (block_or_fail(error), total),
        }
    }
}

#[cold]
fn block_or_fail(error: io::Error) -> io::Result<Sent> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(Sent::Blocked),
        io::ErrorKind::Interrupted => Ok(Sent::Paused),
        _ => Err(error),
    }
}
