//! Sends an outbox to a peer, with the fewest system calls.

use crate::{
    config::LargeFile,
    transport::{
        Transport,
        outbox::{Next, Outbox},
    },
};
use std::io;

/// The maximum number of bytes of a file in one sendfile(2). After so many bytes, other connections are
/// served first.
const FILE_CHUNK: u64 = 1 << 20;

/// The result of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendOutcome {
    /// All output was sent.
    All,
    /// The socket is full.
    Blocked,
    /// The socket may have room, but other connections are served first.
    Paused,
}

/// Sends the outbox. Returns the result and the number of bytes that the kernel took.
///
/// # Errors
/// The error of send(2) or sendfile(2); UnexpectedEof when a file has become shorter than the
/// length in its response head.
// This function runs once for each request and has few instructions: it is inlined into its callers.
#[inline(always)]
pub(super) fn transmit(
    transport: &mut Transport,
    outbox: &mut Outbox,
    large_file: LargeFile,
) -> (io::Result<SendOutcome>, u64) {
    // The hot path: one response, or a few, in one send.
    if let Some(bytes) = outbox.only_bytes() {
        return match transport.send(bytes, false) {
            Ok(sent) if sent == bytes.len() => {
                outbox.clear_bytes();
                (Ok(SendOutcome::All), sent as u64)
            }
            Ok(sent) => {
                outbox.advance(sent);
                (Ok(SendOutcome::Blocked), sent as u64)
            }
            Err(error) => (block_or_fail(error), 0),
        };
    }
    transmit_rest(transport, outbox, large_file)
}

/// Sends an outbox that contains more than bytes: files, and pieces of several kinds.
#[inline(never)]
fn transmit_rest(
    transport: &mut Transport,
    outbox: &mut Outbox,
    large_file: LargeFile,
) -> (io::Result<SendOutcome>, u64) {
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
) -> (io::Result<SendOutcome>, u64) {
    let mut total = 0;
    loop {
        // `offered` is the number of bytes that were passed to the send. A send that takes fewer bytes has
        // filled the socket.
        let (outcome, offered) = match outbox.next() {
            Next::Nothing => return (Ok(SendOutcome::All), total),
            _ if total >= FILE_CHUNK => return (Ok(SendOutcome::Paused), total),
            Next::Bytes(bytes) => (transport.send(bytes, false), bytes.len()),
            Next::Two(first, second) => {
                (transport.send_two(first, second), first.len() + second.len())
            }
            Next::BytesBeforeFile(bytes) => (transport.send(bytes, !is_corked), bytes.len()),
            Next::File { file, mut offset, len } => {
                // sendfile(2) may send less than requested if a page must first be read from the disk. That
                // does not mean that the socket is full; the next call shows whether it is.
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
                if sent < offered {
                    return (Ok(SendOutcome::Blocked), total);
                }
            }
            Err(error) => return (block_or_fail(error), total),
        }
    }
}

#[cold]
fn block_or_fail(error: io::Error) -> io::Result<SendOutcome> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(SendOutcome::Blocked),
        io::ErrorKind::Interrupted => Ok(SendOutcome::Paused),
        _ => Err(error),
    }
}
