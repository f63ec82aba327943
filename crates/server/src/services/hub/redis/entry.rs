//! Entries of the stream in the replies of Redis. Any other reply is an error.

use super::{connection::RedisError, resp::Reply};
use crate::services::hub::record::Record;
use std::fmt;

/// The field of an entry that contains the update.
pub(super) const FIELD: &[u8] = b"u";

/// The identifier of an entry, `EPOCH-NUMBER`. A stream that is created again has a later epoch, in which
/// numbers begin at 0. Within an epoch no number is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryId {
    pub(super) epoch: u64,
    pub(super) number: u64,
}

impl EntryId {
    pub(super) const MAX: Self = Self { epoch: u64::MAX, number: u64::MAX };

    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (epoch, number) = std::str::from_utf8(text).ok()?.split_once('-')?;
        Some(Self { epoch: epoch.parse().ok()?, number: number.parse().ok()? })
    }

    /// Returns whether entries between the two may be missing.
    pub(super) fn leaves_out(self, next: Self) -> bool {
        match self {
            Self { epoch: 0, .. } => next.number > 0,
            _ => next.epoch != self.epoch || next.number > self.number.saturating_add(1),
        }
    }

    /// Returns the previous identifier in the order of the stream.
    pub(super) fn before(self) -> Option<Self> {
        match self {
            Self { epoch, number: 0 } => {
                Some(Self { epoch: epoch.checked_sub(1)?, number: u64::MAX })
            }
            Self { epoch, number } => Some(Self { epoch, number: number - 1 }),
        }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.number)
    }
}

/// An entry with its identifier. The content is an error if no hub wrote it.
pub(super) type StreamEntry = (EntryId, anyhow::Result<Record>);

/// Returns the entries of a reply to XRANGE or XREVRANGE.
///
/// # Errors
/// The reply has another form.
pub(super) fn entries(reply: Reply) -> Result<Vec<StreamEntry>, RedisError> {
    const EXPECTED: RedisError = RedisError::Unexpected("XRANGE");
    match reply {
        Reply::Nil => Ok(Vec::new()),
        Reply::List(entries) => entries.into_iter().map(entry).collect(),
        Reply::Error(text) => Err(RedisError::Refused(text)),
        _ => Err(EXPECTED),
    }
}

/// Returns the entries of a reply to XREAD of one stream: none if no entry arrived in time.
///
/// # Errors
/// The errors of [`entries`].
pub(super) fn read_entries(reply: Reply) -> Result<Vec<StreamEntry>, RedisError> {
    let streams = match reply {
        Reply::Nil => return Ok(Vec::new()),
        Reply::List(streams) => streams,
        Reply::Error(text) => return Err(RedisError::Refused(text)),
        _ => return Err(RedisError::Unexpected("XREAD")),
    };
    match streams.into_iter().next() {
        Some(Reply::List(mut stream)) if stream.len() == 2 => {
            entries(stream.pop().unwrap_or(Reply::Nil))
        }
        _ => Err(RedisError::Unexpected("XREAD")),
    }
}

/// Returns the only entry of a reply to XREVRANGE with COUNT 1, if the stream has any.
///
/// # Errors
/// The errors of [`entries`].
pub(super) fn last_entry(reply: Reply) -> Result<Option<StreamEntry>, RedisError> {
    Ok(entries(reply)?.into_iter().next())
}

fn entry(reply: Reply) -> Result<StreamEntry, RedisError> {
    let Reply::List(parts) = reply else { return Err(RedisError::Unexpected("XRANGE")) };
    let mut parts = parts.into_iter();
    let (Some(Reply::Text(id)), Some(fields)) = (parts.next(), parts.next()) else {
        return Err(RedisError::Unexpected("XRANGE"));
    };
    let id = EntryId::parse(&id).ok_or(RedisError::Unexpected("XRANGE"))?;
    let record = match fields {
        Reply::List(fields) => match fields.as_slice() {
            [Reply::Text(name), Reply::Text(value)] if name == FIELD => Record::decode(value),
            _ => Err(anyhow::anyhow!("an entry has other fields than an update")),
        },
        // A deleted entry.
        _ => Err(anyhow::anyhow!("an entry has no fields")),
    };
    Ok((id, record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn replies() -> impl Strategy<Value = Reply> {
        let text = prop_oneof![
            Just(b"0-1".to_vec()),
            Just(b"0-18446744073709551615".to_vec()),
            Just(FIELD.to_vec()),
            Just(b"{}".to_vec()),
            any::<Vec<u8>>()
        ];
        let leaf = prop_oneof![
            Just(Reply::Nil),
            any::<i64>().prop_map(Reply::Number),
            text.prop_map(Reply::Text),
            Just(Reply::Error("ERR".into())),
        ];
        leaf.prop_recursive(4, 40, 4, |inner| {
            prop::collection::vec(inner, 0..4).prop_map(Reply::List)
        })
    }

    proptest! {
        #[test]
        fn no_reply_makes_it_panic(reply in replies()) {
            let _ = entries(reply.clone());
            let _ = read_entries(reply.clone());
            let _ = last_entry(reply);
        }
    }

    #[test]
    fn names_have_an_order_without_gaps() {
        let id = |text: &str| EntryId::parse(text.as_bytes()).unwrap();
        assert_eq!(id("17-3").to_string(), "17-3");
        for other in ["17", "", "-", "0-x", "0-99999999999999999999", "1-2-3"] {
            assert_eq!(EntryId::parse(other.as_bytes()), None, "{other}");
        }
        for (one, next, is_gap) in [
            ("0-0", "7-0", false),
            ("0-0", "7-1", true),
            ("7-0", "7-1", false),
            ("7-0", "7-2", true),
            ("7-5", "8-0", true),
        ] {
            assert!(id(one) < id(next));
            assert_eq!(id(one).leaves_out(id(next)), is_gap, "{one} {next}");
        }
        assert_eq!(id("7-5").before(), Some(id("7-4")));
        assert!(id("7-0").before().unwrap() < id("7-0"));
        assert_eq!(id("0-0").before(), None);
    }
}
