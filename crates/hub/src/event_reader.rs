//! Reads a stream of server-sent events, as a subscriber does.

use pollux_http::text::bytes_without_mark;

/// The maximum length of one event, and of one line, in bytes: a client must not store more.
pub const EVENT_BYTES: usize = 16 << 20;

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The identifier of this event, or of the last one before it that has one.
    pub id: String,
    /// The value of `event`; empty without one.
    pub name: String,
    /// The lines of `data`.
    pub data: String,
}

/// The reason why a stream cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// An event or a line is too long.
    #[error("the server sends an event of more than {EVENT_BYTES} bytes")]
    TooLong,
}

/// Reads a stream (HTML Standard §9.2.6), which may arrive in any pieces.
#[derive(Debug, Default)]
pub struct EventReader {
    /// The start of a line whose end has not arrived.
    line: Vec<u8>,
    /// The last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    /// A line was read: a byte order mark is no longer possible.
    has_begun: bool,
    /// The incomplete event. Its data ends in LF.
    event: Event,
    last_id: String,
    retry_ms: Option<u64>,
}

impl EventReader {
    /// A reader that starts after the event `last_id`.
    #[must_use]
    pub fn new(last_id: Option<&str>) -> Self {
        let last_id = last_id.unwrap_or_default().to_owned();
        let event = Event { id: last_id.clone(), ..Event::default() };
        Self { event, last_id, ..Self::default() }
    }

    /// The identifier of the last event that was complete. A reader that continues sends it as `Last-Event-ID`.
    #[must_use]
    pub fn last_id(&self) -> &str {
        &self.last_id
    }

    /// The time in milliseconds after which the server wants the client to connect again, if it has set
    /// one.
    #[must_use]
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// Returns the events that `bytes` complete.
    ///
    /// # Errors
    /// An event is longer than [`EVENT_BYTES`].
    pub fn read(&mut self, mut bytes: &[u8]) -> Result<Vec<Event>, StreamError> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            let part = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + part.len() > EVENT_BYTES {
                return Err(StreamError::TooLong);
            }
            let Some(end) = end else {
                self.line.extend_from_slice(part);
                break;
            };
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            let line = if self.line.is_empty() {
                part.to_vec()
            } else {
                self.line.extend_from_slice(part);
                std::mem::take(&mut self.line)
            };
            events.extend(self.take(&line)?);
        }
        Ok(events)
    }

    fn take(&mut self, mut line: &[u8]) -> Result<Option<Event>, StreamError> {
        if !std::mem::replace(&mut self.has_begun, true) {
            line = bytes_without_mark(line);
        }
        if line.is_empty() {
            return Ok(self.dispatch());
        }
        let line = String::from_utf8_lossy(line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" if !value.contains('\0') => value.clone_into(&mut self.event.id),
            "event" => value.clone_into(&mut self.event.name),
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.retry_ms = Some(value.parse().unwrap_or(u64::MAX));
            }
            "data" => {
                if self.event.data.len() + value.len() >= EVENT_BYTES {
                    return Err(StreamError::TooLong);
                }
                self.event.data.push_str(value);
                self.event.data.push('\n');
            }
            // A comment, such as a heartbeat, or an unknown field.
            _ => {}
        }
        Ok(None)
    }

    /// Returns the complete event. An event without data only sets the identifier.
    fn dispatch(&mut self) -> Option<Event> {
        self.last_id.clone_from(&self.event.id);
        let next = Event { id: self.event.id.clone(), ..Event::default() };
        let mut event = std::mem::replace(&mut self.event, next);
        event.data.pop().map(|_| event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, name: &str, data: &str) -> Event {
        Event { id: id.into(), name: name.into(), data: data.into() }
    }

    #[test]
    fn events_are_the_same_however_they_arrive() {
        let text = "\u{feff}id: 1\ndata: a\ndata\ndata:  b\n\n:comment\r\n\r\nevent: x\rdata:c\r\r\
                    id\ndata: d\nretry: 50\nretry: 1s\nid: a\0b\nother: e\n\nid: 9\n\nid: 10\ndata: cut";
        let expected = [event("1", "", "a\n\n b"), event("1", "x", "c"), event("", "", "d")];
        for pieces in 1..=text.len() {
            let mut reader = EventReader::new(None);
            let events: Vec<_> = text
                .as_bytes()
                .chunks(pieces)
                .flat_map(|piece| reader.read(piece).unwrap())
                .collect();
            assert_eq!(events, expected, "in pieces of {pieces}");
            assert_eq!(reader.retry_ms(), Some(50));
            assert_eq!(
                reader.last_id(),
                "9",
                "that of an event that is not complete does not count"
            );
        }
    }

    #[test]
    fn a_reader_continues_after_an_event() {
        let mut reader = EventReader::new(Some("7"));
        assert_eq!(reader.last_id(), "7");
        assert_eq!(reader.read(b"data: a\n\n").unwrap(), [event("7", "", "a")]);
    }

    #[test]
    fn what_never_ends_is_not_kept() {
        let piece = vec![b'x'; 1 << 20];
        let mut reader = EventReader::new(None);
        let outcome = (0..32).find_map(|_| reader.read(&piece).err());
        assert_eq!(outcome, Some(StreamError::TooLong));
        let line = [b"data:", &piece[..], b"\n"].concat();
        let mut reader = EventReader::new(None);
        let outcome = (0..32).find_map(|_| reader.read(&line).err());
        assert_eq!(outcome, Some(StreamError::TooLong));
    }
}
