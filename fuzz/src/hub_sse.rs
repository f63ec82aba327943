//! Server-sent events, in both directions: a subscriber reads exactly what was published, in whatever pieces it
//! arrives; and a stream of any bytes is read as the standard says, by a few lines that read all of it at once.

use pollux_hub::{
    event_reader::{Event, EventReader},
    update::{Frame, Publication},
};

/// The input is the size of the pieces, and a text: as the content of an update, and as a stream.
pub fn check(data: &[u8]) {
    let Some((size, rest)) = crate::in_pieces(data) else { return };
    if let Ok(text) = std::str::from_utf8(rest) {
        check_update(size, text);
    }
    let mut reader = EventReader::new(None);
    let events: Vec<_> = rest
        .chunks(size)
        .flat_map(|piece| reader.read(piece))
        .map(|event| event.expect("it is short"))
        .collect();
    let (expected, last_id) = read(rest);
    assert_eq!(events, expected, "in pieces of {size}: {}", rest.escape_ascii());
    assert_eq!(reader.last_id(), last_id);
}

fn check_update(size: usize, text: &str) {
    // The first line is the type, the others are the content.
    let (name, content) = text.split_once('\n').unwrap_or(("", text));
    let name = name.replace(['\r', '\0'], "");
    let publication = Publication {
        topics: vec!["t".into()],
        data: content.into(),
        event_type: Some(name.clone()),
        retry: Some("20".into()),
        ..Publication::default()
    };
    let frame = Frame::event("urn:id", &publication);
    let mut reader = EventReader::new(None);
    let events: Vec<_> = frame
        .text()
        .chunks(size)
        .flat_map(|piece| reader.read(piece))
        .map(|event| event.expect("short"))
        .collect();
    let mut data = content.replace("\r\n", "\n").replace('\r', "\n");
    if crate::planted() {
        // The planted fault: a line's end is lost.
        data = data.replacen('\n', "", 1);
    }
    assert_eq!(events, [Event { id: "urn:id".into(), name, data }]);
    assert_eq!(reader.retry_ms(), Some(20));
    let chunk = frame.chunk().bytes();
    let expected = format!("{:x}\r\n", frame.text().len());
    let inner = chunk.strip_prefix(expected.as_bytes()).and_then(|it| it.strip_suffix(b"\r\n"));
    assert_eq!(inner, Some(frame.text()));
}

/// The events of a stream (HTML Standard §9.2.6), and the last identifier.
fn read(stream: &[u8]) -> (Vec<Event>, String) {
    let stream = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let text = String::from_utf8_lossy(stream).replace("\r\n", "\n").replace('\r', "\n");
    // What follows the last line's end is no line.
    let Some((lines, _)) = text.rsplit_once('\n') else { return Default::default() };
    let (mut events, mut last_id) = (Vec::new(), String::new());
    let (mut id, mut name, mut data) = (String::new(), String::new(), Vec::new());
    for line in lines.split('\n') {
        if line.is_empty() {
            last_id.clone_from(&id);
            if !data.is_empty() {
                events.push(Event { id: id.clone(), name, data: data.join("\n") });
            }
            (name, data) = Default::default();
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" if !value.contains('\0') => id = value.into(),
            "event" => name = value.into(),
            "data" => data.push(value),
            _ => {}
        }
    }
    (events, last_id)
}
