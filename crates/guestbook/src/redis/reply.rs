//! Interprets replies of Redis.

use crate::StoreError;
use redis_protocol::resp2::{decode::decode_range, types::RangeFrame};

/// One complete reply.
pub(super) struct Reply<'a> {
    bytes: &'a [u8],
    frame: RangeFrame,
}

impl<'a> Reply<'a> {
    /// Decodes exactly `bytes`.
    ///
    /// # Errors
    /// They are not a valid reply.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, StoreError> {
        match decode_range(bytes) {
            Ok(Some((frame, len))) if len == bytes.len() => Ok(Self { bytes, frame }),
            Ok(_) => Err(protocol_error("a reply has trailing bytes")),
            Err(error) => Err(StoreError::Protocol(error.to_string())),
        }
    }

    /// The error, if this is an error reply.
    fn refusal(&self) -> Option<StoreError> {
        let RangeFrame::Error((from, to)) = self.frame else { return None };
        let text = printable(&self.bytes[from..to]);
        let code = text.split(' ').next().unwrap_or_default();
        Some(match code {
            "LOADING" | "BUSY" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN" => StoreError::Loading,
            "READONLY" | "MISCONF" | "NOREPLICAS" => StoreError::ReadOnly(text),
            "OOM" => StoreError::Full(text),
            "MOVED" | "ASK" => StoreError::Cluster(text),
            "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => StoreError::Refused(text),
            _ if text.contains("max number of clients") => StoreError::Unreachable(text),
            // `-ERR` has many meanings; this one occurs during a login.
            _ if text.contains("AUTH") || text.contains("invalid password") => {
                StoreError::Refused(text)
            }
            _ => StoreError::Protocol(text),
        })
    }

    /// The reply to AUTH and SELECT: success.
    pub(super) fn ok(self) -> Result<(), StoreError> {
        match (&self.frame, self.refusal()) {
            (_, Some(error)) => Err(error),
            (&RangeFrame::SimpleString((from, to)), _) if &self.bytes[from..to] == b"OK" => Ok(()),
            _ => Err(protocol_error("no OK")),
        }
    }

    /// The reply to INCR and RPUSH: a number.
    pub(super) fn number(self) -> Result<i64, StoreError> {
        match (&self.frame, self.refusal()) {
            (_, Some(error)) => Err(error),
            (&RangeFrame::Integer(number), _) => Ok(number),
            _ => Err(protocol_error("no number")),
        }
    }

    /// The reply to LRANGE: strings.
    pub(super) fn strings(self) -> Result<Vec<Vec<u8>>, StoreError> {
        let elements = match (&self.frame, self.refusal()) {
            (_, Some(error)) => return Err(error),
            (RangeFrame::Array(elements), _) => elements,
            _ => return Err(protocol_error("no list")),
        };
        let mut strings = Vec::with_capacity(elements.len());
        for element in elements {
            let RangeFrame::BulkString((from, to)) = *element else {
                return Err(protocol_error("a list contains something other than strings"));
            };
            strings.push(self.bytes[from..to].to_vec());
        }
        Ok(strings)
    }
}

/// Escapes control characters, so that the server's text can be shown in a terminal or a log.
fn printable(text: &[u8]) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in String::from_utf8_lossy(text).chars() {
        if character.is_control() {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
}

fn protocol_error(what: &str) -> StoreError {
    StoreError::Protocol(what.to_owned())
}
