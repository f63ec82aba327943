//! Reads a stream of server-sent events, as a subscriber does.

use pollux_http::text::bytes_without_mark;

/// The maximum length of the data of one event in bytes: a client must not store more.
pub const EVENT_BYTES: usize = 16 << 20;
/// The maximum length of one line: as much data, behind the name of its field.
const LINE_BYTES: usize = EVENT_BYTES + "data: ".len();

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

/// The data of an event is longer than [`EVENT_BYTES`], or another line of it is. Its content was discarded; the events
/// that follow are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {EVENT_BYTES} bytes was skipped (id {id:?})")]
pub struct TooLongError {
    /// As [`Event::id`].
    pub id: String,
}

/// Reads a stream (HTML Standard §9.2.6), which may arrive in any pieces.
#[derive(Debug, Default)]
pub struct EventReader {
    /// The start of a line whose end has not arrived.
    line: Vec<u8>,
    /// This line is too long. The rest of it is discarded as it arrives.
    line_is_cut: bool,
    /// The last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    /// A line was read: a byte order mark is no longer possible.
    has_begun: bool,
    /// The incomplete event. Its data ends in LF.
    event: Event,
    /// The incomplete event is too long, so its data is not stored.
    is_too_long: bool,
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

    /// Returns the events that `bytes` complete. An event that is too long is an error at its position. It has an
    /// identifier like any other event, so a client that connects again does not get it twice, unless the line that is too
    /// long is that of the identifier.
    pub fn read(&mut self, mut bytes: &[u8]) -> Vec<Result<Event, TooLongError>> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
            let part = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + part.len() > LINE_BYTES {
                self.line_is_cut = true;
                self.line = Vec::new();
                self.discard();
            }
            let Some(end) = end else {
                if !self.line_is_cut {
                    self.line.extend_from_slice(part);
                }
                break;
            };
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if std::mem::take(&mut self.line_is_cut) {
                self.has_begun = true;
                continue;
            }
            let line = if self.line.is_empty() {
                part.to_vec()
            } else {
                self.line.extend_from_slice(part);
                std::mem::take(&mut self.line)
            };
            events.extend(self.take(&line));
        }
        events
    }

    fn take(&mut self, mut line: &[u8]) -> Option<Result<Event, TooLongError>> {
        if !std::mem::replace(&mut self.has_begun, true) {
            line = bytes_without_mark(line);
        }
        if line.is_empty() {
            return self.dispatch();
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
            "data" if self.is_too_long => {}
            "data" => {
                if self.event.data.len() + value.len() > EVENT_BYTES {
                    self.discard();
                } else {
                    self.event.data.push_str(value);
                    self.event.data.push('\n');
                }
            }
            // A comment, such as a heartbeat, or an unknown field.
            _ => {}
        }
        None
    }

    /// Discards the data of the incomplete event, which is too long.
    fn discard(&mut self) {
        self.is_too_long = true;
        self.event.data = String::new();
    }

    /// Returns the complete event. An event without data only sets the identifier.
    fn dispatch(&mut self) -> Option<Result<Event, TooLongError>> {
        self.last_id.clone_from(&self.event.id);
        let next = Event { id: self.event.id.clone(), ..Event::default() };
        let mut event = std::mem::replace(&mut self.event, next);
        if std::mem::take(&mut self.is_too_long) {
            return Some(Err(TooLongError { id: event.id }));
        }
        event.data.pop().map(|_| Ok(event))
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
                .flat_map(|piece| reader.read(piece))
                .map(Result::unwrap)
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
        assert_eq!(reader.read(b"data: a\n\n"), [Ok(event("7", "", "a"))]);
    }

    #[test]
    fn an_event_that_is_too_long_is_skipped() {
        let long = "x".repeat(EVENT_BYTES);
        let half = &long[..EVENT_BYTES / 2];
        for skipped in [
            format!("id: 2\ndata: {long}x\n\n"),
            format!("data: {long}{long}\nid: 2\n\n"),
            format!("data: {half}\nid: 2\ndata: {half}\n\n"),
        ] {
            let text = format!("id: 1\ndata: a\n\n{skipped}data: b\n\nid: 3\ndata: c\n\n");
            let expected = [
                Ok(event("1", "", "a")),
                Err(TooLongError { id: "2".into() }),
                Ok(event("2", "", "b")),
                Ok(event("3", "", "c")),
            ];
            for pieces in [64 << 10, text.len()] {
                let mut reader = EventReader::new(None);
                let events: Vec<_> =
                    text.as_bytes().chunks(pieces).flat_map(|piece| reader.read(piece)).collect();
                assert!(events == expected, "in pieces of {pieces}");
            }
        }
        // The longest event that is possible.
        let mut reader = EventReader::new(None);
        let expected = [Ok(event("", "", &long))];
        assert!(reader.read(format!("data: {long}\n\n").as_bytes()) == expected);
        // With the line feed between its lines it is as long.
        let text = format!("data: {half}\ndata: {}\n\n", &half[1..]);
        assert!(reader.read(text.as_bytes())[0].as_ref().unwrap().data.len() == EVENT_BYTES);
    }

    #[test]
    fn what_never_ends_is_not_kept() {
        let piece = vec![b'x'; 1 << 20];
        let line = [b"data:", &piece[..], b"\n"].concat();
        for endless in [piece, line] {
            let mut reader = EventReader::new(None);
            for _ in 0..32 {
                assert_eq!(reader.read(&endless), []);
                assert!(reader.line.len() + reader.event.data.len() <= LINE_BYTES);
            }
            assert!(reader.is_too_long);
            assert_eq!((reader.line.capacity(), reader.event.data.capacity()), (0, 0));
        }
    }
}
