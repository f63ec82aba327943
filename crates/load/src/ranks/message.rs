//! The messages between ranks, and their encoding: a length of four bytes, little endian, and the
//! message.

use super::clock::{ClockOffset, ClockReading};
use crate::idle::IdleReport;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{Read, Write};

/// The longest message before both sides are identified.
pub(super) const MAX_GREETING_BYTES: u32 = 1 << 20;

/// The longest message after that. Most of it is `--hdr`'s histograms, a few kilobytes per second
/// and thread.
pub(super) const MAX_MESSAGE_BYTES: u32 = 1 << 30;

/// Identifies the connections of this run; others are closed.
pub(super) type Secret = [u8; 16];

/// A rank's progress, sent once a second: the only data of a rank that dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Requests sent.
    pub sent: u64,
    /// Requests with a good reply.
    pub completed: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Its idle connections.
    pub idle: IdleReport,
}

/// Identifies a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) secret: Secret,
    pub(super) rank: u32,
    pub(super) host: String,
    pub(super) pid: u32,
    pub(super) version: String,
    /// A description of everything that must be the same on every rank.
    pub(super) task: String,
}

/// A message to rank 0.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToLeader {
    Hello(Identity),
    /// Requests rank 0's clocks.
    ReadClocks,
    /// This rank is set up; the run may start.
    Ready(Heartbeat),
    /// The clock comparison after the start was announced.
    Started(ClockOffset),
    Heartbeat(Heartbeat),
    /// The time at which this rank's supervisor ended, by rank 0's clock.
    Orphaned {
        since_ns: i64,
    },
    /// This rank failed.
    Failed(String),
    /// The measurements, and the clock comparison at the end.
    Result {
        offset: ClockOffset,
        interrupted: bool,
        measured: Vec<u8>,
    },
}

/// A message from rank 0.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToMember {
    Welcome,
    /// The rank has another version or other arguments.
    Mismatch(String),
    Clocks(ClockReading),
    /// Begin at this instant of rank 0's monotonic clock.
    Start {
        at_ns: i64,
    },
    /// End now and send the result.
    Stop,
    /// The run was aborted.
    Abort(String),
    /// The last message.
    Bye,
}

/// Sends one message.
///
/// # Errors
/// The errors of the connection; a message above [`MAX_MESSAGE_BYTES`].
pub(super) fn send(mut to: impl Write, message: &impl Serialize) -> Result<()> {
    // One write for both parts: two writes could become two segments.
    let mut bytes = vec![0; 4];
    postcard::to_io(message, &mut bytes).context("writing a message between ranks")?;
    let length = bytes.len() - 4;
    ensure!(
        length <= MAX_MESSAGE_BYTES as usize,
        "{length} bytes for rank 0: more than {MAX_MESSAGE_BYTES}; leave out --hdr, or shorten the run"
    );
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    to.write_all(&bytes)?;
    Ok(())
}

/// Receives one message of at most `limit` bytes; `None` when the other side has closed.
///
/// # Errors
/// The errors of the connection, or bytes that are not a message.
pub(super) fn receive<M: DeserializeOwned>(mut from: impl Read, limit: u32) -> Result<Option<M>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        outcome => outcome?,
    }
    let length = u32::from_le_bytes(length);
    ensure!(length <= limit, "a message of {length} bytes, above {limit}");
    // Allocates memory for bytes that arrive, not for the announced length.
    let mut bytes = Vec::new();
    from.take(length.into()).read_to_end(&mut bytes)?;
    ensure!(bytes.len() == length as usize, "a message was cut off");
    let (message, rest) = postcard::take_from_bytes(&bytes).context("no message between ranks")?;
    ensure!(rest.is_empty(), "{} bytes after a message", rest.len());
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let mut bytes = Vec::new();
        send(&mut bytes, &ToLeader::Failed("no ports".into())).unwrap();
        send(&mut bytes, &ToLeader::Heartbeat(Heartbeat { sent: 7, ..Heartbeat::default() }))
            .unwrap();
        let mut from = &bytes[..];
        let first = receive::<ToLeader>(&mut from, MAX_GREETING_BYTES).unwrap();
        assert!(matches!(first, Some(ToLeader::Failed(why)) if why == "no ports"));
        let second = receive::<ToLeader>(&mut from, MAX_GREETING_BYTES).unwrap();
        assert!(matches!(second, Some(ToLeader::Heartbeat(heartbeat)) if heartbeat.sent == 7));
        assert!(receive::<ToLeader>(&mut from, MAX_GREETING_BYTES).unwrap().is_none(), "the end");
    }

    #[test]
    fn what_is_no_message_is_an_error_and_costs_no_memory() {
        let long = [&u32::MAX.to_le_bytes()[..], b"x"].concat();
        assert!(receive::<ToLeader>(&long[..], MAX_GREETING_BYTES).is_err(), "too long");
        let cut = [&1000u32.to_le_bytes()[..], b"x"].concat();
        assert!(receive::<ToLeader>(&cut[..], MAX_GREETING_BYTES).is_err(), "cut off");
        let foreign = [&3u32.to_le_bytes()[..], b"GET"].concat();
        assert!(receive::<ToLeader>(&foreign[..], MAX_GREETING_BYTES).is_err(), "another protocol");
    }
}
