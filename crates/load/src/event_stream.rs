//! How a client recognizes an event stream.

use pollux_http::reply::ReplyHead;

/// The type of the content, without parameters; empty if the server names none.
pub(crate) fn media_type(head: &ReplyHead<'_>) -> String {
    let field = head.fields().find(|field| field.is(b"content-type"));
    let value = field.map(|field| String::from_utf8_lossy(field.value)).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_owned()
}

/// Whether a type is that of event streams. Every client must refuse others (HTML Standard §9.2.3).
pub(crate) fn is_event_stream(media_type: &str) -> bool {
    media_type.eq_ignore_ascii_case("text/event-stream")
}
