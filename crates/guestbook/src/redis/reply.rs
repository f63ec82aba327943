//! Replies, to what they mean here.

use crate::StoreError;
use redis_protocol::resp2::{decode::decode_range, types::RangeFrame};

/// The whole of one reply, whose length was measured.
pub(super) struct Reply<'a> {
    bytes: &'a [u8],
    frame: RangeFrame,
}

impl<'a> Reply<'a> {
    /// Decodes exactly `bytes`.
    ///
    /// # Errors
    /// They are no reply.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, StoreError> {
        match decode_range(bytes) {
            Ok(Some((frame, len))) if len == bytes.len() => Ok(Self { bytes, frame }),
            Ok(_) => Err(nonsense("a reply that ends elsewhere")),
            Err(error) => Err(StoreError::Nonsense(error.to_string())),
        }
    }

    /// What an error says, where this is one.
    fn refusal(&self) -> Option<StoreError> {
        let RangeFrame::Error((from, to)) = self.frame else { return None };
        let text = String::from_utf8_lossy(&self.bytes[from..to]).into_owned();
        let code = text.split(' ').next().unwrap_or_default();
        Some(match code {
            "LOADING" | "BUSY" | "MASTERDOWN" | "TRYAGAIN" | "CLUSTERDOWN" => StoreError::Loading,
            "READONLY" | "MISCONF" | "NOREPLICAS" => StoreError::ReadOnly(text),
            "OOM" => StoreError::Full(text),
            "NOAUTH" | "WRONGPASS" | "NOPERM" => StoreError::Refused(text),
            // Redis says `-ERR` of many things; of those that a login can meet this is one.
            _ if text.contains("AUTH") || text.contains("invalid password") => {
                StoreError::Refused(text)
            }
            _ => StoreError::Nonsense(text),
        })
    }

    /// Of AUTH and SELECT: done.
    pub(super) fn ok(self) -> Result<(), StoreError> {
        match (&self.frame, self.refusal()) {
            (_, Some(error)) => Err(error),
            (&RangeFrame::SimpleString((from, to)), _) if &self.bytes[from..to] == b"OK" => Ok(()),
            _ => Err(nonsense("no OK")),
        }
    }

    /// Of INCR and RPUSH: a number.
    pub(super) fn number(self) -> Result<i64, StoreError> {
        match (&self.frame, self.refusal()) {
            (_, Some(error)) => Err(error),
            (&RangeFrame::Integer(number), _) => Ok(number),
            _ => Err(nonsense("no number")),
        }
    }

    /// Of LRANGE: strings.
    pub(super) fn strings(self) -> Result<Vec<Vec<u8>>, StoreError> {
        let elements = match (&self.frame, self.refusal()) {
            (_, Some(error)) => return Err(error),
            (RangeFrame::Array(elements), _) => elements,
            _ => return Err(nonsense("no list")),
        };
        let strings = elements.iter().map(|element| match *element {
            RangeFrame::BulkString((from, to)) => Ok(self.bytes[from..to].to_vec()),
            _ => Err(nonsense("a list of something else than strings")),
        });
        strings.collect()
    }
}

fn nonsense(what: &str) -> StoreError {
    StoreError::Nonsense(what.to_owned())
}
