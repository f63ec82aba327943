//! The format in which stores keep an update.

use anyhow::{Context, ensure};
use pollux_hub::update::Publication;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An update with its identifier and its time, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: String,
    /// In seconds since 1970.
    pub(super) at: u64,
    pub(super) publication: Publication,
}

impl Record {
    /// Encodes an update that is published now.
    pub(super) fn encode(id: &str, publication: &Publication) -> anyhow::Result<Vec<u8>> {
        let record = Self { id: id.to_owned(), at: unix_time(), publication: publication.clone() };
        Ok(serde_json::to_vec(&record)?)
    }

    /// Returns the time since the update was published.
    pub(super) fn age(&self) -> Duration {
        Duration::from_secs(unix_time().saturating_sub(self.at))
    }

    /// Decodes the output of [`Record::encode`].
    ///
    /// # Errors
    /// The record is malformed. Other programs can write to a store too, so a value that would add a
    /// field to the event that subscribers receive is refused.
    pub(super) fn decode(bytes: &[u8]) -> anyhow::Result<Self> {
        let record: Self = serde_json::from_slice(bytes).context("an update is malformed")?;
        let Publication { topics, event_type, retry, .. } = &record.publication;
        let has_break = |text: &str| text.contains(['\r', '\n', '\0']);
        ensure!(!topics.is_empty(), "an update has no topic");
        ensure!(!record.id.is_empty() && !has_break(&record.id), "an update's id is invalid");
        ensure!(!event_type.as_deref().is_some_and(has_break), "an update's type is invalid");
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        ensure!(retry.as_deref().is_none_or(is_number), "an update's retry is invalid");
        Ok(record)
    }
}

/// Returns the time in seconds since 1970, for tokens.
pub(super) fn unix_time() -> u64 {
    since_1970().as_secs()
}

/// The time since 1970.
pub(super) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_forge_a_field_is_refused() {
        let publication = Publication { topics: vec!["t".into()], ..Publication::default() };
        let text = String::from_utf8(Record::encode("i", &publication).unwrap()).unwrap();
        assert_eq!(Record::decode(text.as_bytes()).unwrap().publication, publication);
        for (from, to) in [
            (r#""id":"i""#, r#""id":"i\ndata: forged""#),
            (r#""id":"i""#, r#""id":"""#),
            (r#"["t"]"#, "[]"),
            (r#""event_type":null"#, r#""event_type":"a\rb""#),
            (r#""retry":null"#, r#""retry":"1\n""#),
            ("{", "["),
        ] {
            let other = text.replacen(from, to, 1);
            assert_ne!(other, text, "{from}");
            assert!(Record::decode(other.as_bytes()).is_err(), "{other}");
        }
    }
}
