//! One line of a log: Common Log Format, the combined format, or a JSON object.
//!
//! Data that a client sends can neither begin a new line nor end its field: bytes that could do so
//! are escaped, as nginx and Apache do.

use super::{Peer, record::RequestRecord};
use crate::config::{LogConfig, LogField, LogFormat};
use pollux_http::date::DateCache;
use std::io::Write;

/// The data of a request that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEntry<'a> {
    /// The request line: visible ASCII and spaces; `-` if there was none.
    pub(crate) request: &'a [u8],
    /// The status of the response; 0 if it is not known.
    pub(crate) status: u16,
    /// The number of bytes of content.
    pub(crate) len: u64,
    /// Milliseconds since the head of the request was complete.
    pub(crate) elapsed_ms: u32,
    /// The data that was kept of the request.
    pub(crate) record: Option<&'a RequestRecord>,
}

/// The present second in the forms of the logs.
#[derive(Debug)]
pub(super) struct Date {
    unix_second: u64,
    clf: String,
    rfc3339: String,
}

impl Date {
    /// Creates a date that is not set yet.
    pub(super) fn new() -> Self {
        Self { unix_second: u64::MAX, clf: String::new(), rfc3339: String::new() }
    }

    pub(super) fn update(&mut self, date: &DateCache) {
        let second = date.unix_second();
        if second != self.unix_second {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(second);
            let rfc3339 = humantime::format_rfc3339_seconds(time).to_string();
            *self = Self { unix_second: second, clf: clf_date(date.value()), rfc3339 };
        }
    }
}

/// Converts `Sun, 06 Nov 1994 08:49:37 GMT` to `06/Nov/1994:08:49:37 +0000`.
fn clf_date(http: &[u8]) -> String {
    let text = String::from_utf8_lossy(http);
    let mut words = text.split(' ').skip(1);
    let mut word = || words.next().unwrap_or_default();
    format!("{}/{}/{}:{} +0000", word(), word(), word(), word())
}

/// All data of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogLine<'a> {
    /// The format and its fields.
    pub(super) config: &'a LogConfig,
    /// The present second.
    pub(super) date: &'a Date,
    /// The client.
    pub(super) peer: Peer,
    /// The request and its response.
    pub(super) entry: &'a LogEntry<'a>,
}

/// Appends the line. `is_slow` adds the time that the request took, if the format does not contain
/// it.
pub(super) fn put(out: &mut Vec<u8>, line: &LogLine<'_>, is_slow: bool) {
    let LogLine { config, entry, .. } = line;
    match config.format {
        LogFormat::Json => return put_json(out, line, is_slow),
        LogFormat::Clf => put_common(out, line),
        LogFormat::Combined => {
            put_common(out, line);
            for name in ["referer", "user-agent"] {
                out.extend_from_slice(b" \"");
                let value = entry.record.and_then(|record| record.field(name));
                put_escaped(out, value.unwrap_or(b"-"));
                out.push(b'"');
            }
        }
    }
    if is_slow {
        let _ = write!(out, " {}ms", entry.elapsed_ms);
    }
    out.push(b'\n');
}

/// Appends a line in Common Log Format, without the end of the line.
fn put_common(out: &mut Vec<u8>, line: &LogLine<'_>) {
    let LogLine { date, peer, entry, .. } = line;
    // Writing to a Vec cannot fail.
    let _ = match peer {
        Peer::Known(Some(peer)) => write!(out, "{peer}"),
        Peer::Known(None) | Peer::Unknown => write!(out, "-"),
    };
    out.extend_from_slice(b" - ");
    match entry.record.and_then(|record| record.user()) {
        Some(user) => put_word(out, user),
        None => out.push(b'-'),
    }
    let _ = write!(out, " [{}] \"", date.clf);
    put_escaped(out, entry.request);
    let _ = write!(out, "\" {:03} {}", entry.status, entry.len);
}

/// Appends a field without quotes. Spaces are escaped, because a space would end the field.
fn put_word(out: &mut Vec<u8>, text: &[u8]) {
    for part in text.split_inclusive(|byte| *byte == b' ') {
        match part.strip_suffix(b" ") {
            Some(part) => {
                put_escaped(out, part);
                out.extend_from_slice(b"\\x20");
            }
            None => put_escaped(out, part),
        }
    }
}

/// Appends a text with escapes. For a reader of the log, a quote or a backslash would end the
/// field, and a control character the line; a byte that is not ASCII could control a terminal.
fn put_escaped(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => {
                let _ = write!(out, "\\x{byte:02X}");
            }
        }
    }
}

fn put_json(out: &mut Vec<u8>, line: &LogLine<'_>, is_slow: bool) {
    let fields = &line.config.fields;
    let mut separator = b'{';
    for field in fields {
        put_member(out, &mut separator, field, line);
    }
    if is_slow && !fields.contains(&LogField::DurationMs) {
        put_member(out, &mut separator, &LogField::DurationMs, line);
    }
    out.extend_from_slice(b"}\n");
}

fn put_member(out: &mut Vec<u8>, separator: &mut u8, field: &LogField, line: &LogLine<'_>) {
    let LogLine { date, peer, entry, .. } = line;
    out.push(std::mem::replace(separator, b','));
    // A field's name needs no escapes: it has only letters, digits and the characters `-`, `_` and `:`.
    let _ = write!(out, "\"{field}\":");
    let mut words = entry.request.split(|byte| *byte == b' ');
    let text = match field {
        LogField::Time => Some(date.rfc3339.as_bytes()),
        LogField::Client => {
            let _ = match peer {
                Peer::Known(Some(peer)) => write!(out, "\"{peer}\""),
                Peer::Known(None) | Peer::Unknown => write!(out, "null"),
            };
            return;
        }
        LogField::Status | LogField::Bytes | LogField::DurationMs => {
            let number = match field {
                LogField::Status => entry.status.into(),
                LogField::Bytes => entry.len,
                _ => entry.elapsed_ms.into(),
            };
            let _ = write!(out, "{number}");
            return;
        }
        LogField::User => entry.record.and_then(|record| record.user()),
        LogField::Host => entry.record.and_then(|record| record.host()),
        LogField::RequestId => entry.record.and_then(|record| record.id()),
        LogField::Method => words.next().filter(|method| *method != b"-"),
        LogField::Target => words.nth(1),
        LogField::Protocol => words.nth(2),
        LogField::Referer | LogField::UserAgent | LogField::Traceparent | LogField::Header(_) => {
            let name = field.header().unwrap_or_default();
            entry.record.and_then(|record| record.field(name))
        }
    };
    match text {
        Some(text) => put_json_text(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends a JSON string (RFC 8259 §7). Control characters are escaped, including those of C1,
/// which some terminals obey. Bytes that are not UTF-8 become U+FFFD.
fn put_json_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for character in String::from_utf8_lossy(text).chars() {
        match character {
            '"' | '\\' => out.extend_from_slice(&[b'\\', character as u8]),
            _ if character.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::{
        Limits,
        request::{ParseStatus, parse},
    };

    fn line(format: LogFormat, fields: &str, head: &[u8], is_slow: bool) -> String {
        let Ok(ParseStatus::Complete { request, .. }) = parse(head, &Limits::DEFAULT) else {
            panic!("{}", head.escape_ascii())
        };
        let mut record = RequestRecord::default();
        record.begin(&request, 0, true);
        let fields = match fields {
            "" => LogField::usual(),
            fields => fields.split(',').map(|field| field.parse().unwrap()).collect(),
        };
        let config = LogConfig { format, fields, ..LogConfig::default() };
        let mut date = Date::new();
        date.update(&DateCache::new(784_111_777));
        let peer = Peer::Known(Some("127.0.0.1".parse().unwrap()));
        let entry = LogEntry {
            request: request.line,
            status: 200,
            len: 2326,
            elapsed_ms: 1234,
            record: Some(&record),
        };
        let mut out = Vec::new();
        let line = LogLine { config: &config, date: &date, peer, entry: &entry };
        put(&mut out, &line, is_slow);
        String::from_utf8(out).unwrap()
    }

    const HEAD: &[u8] = b"GET /a?b HTTP/1.1\r\nHost: a.example\r\nReferer: http://b/\r\n\
                          User-Agent: x\"y\\z\x80\t\xc2\x9b\r\n\r\n";

    #[test]
    fn the_combined_format_adds_two_fields() {
        assert_eq!(
            line(LogFormat::Combined, "", HEAD, false),
            "127.0.0.1 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b HTTP/1.1\" 200 2326 \
             \"http://b/\" \"x\\\"y\\\\z\\x80\\x09\\xC2\\x9B\"\n"
        );
        let without = b"GET / HTTP/1.0\r\n\r\n";
        let text = line(LogFormat::Combined, "", without, true);
        assert!(text.ends_with("\" 200 2326 \"-\" \"-\" 1234ms\n"), "{text}");
    }

    #[test]
    fn json_has_the_chosen_fields_in_their_order() {
        let text = line(LogFormat::Json, "", HEAD, false);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["time"], "1994-11-06T08:49:37Z");
        assert_eq!(value["client"], "127.0.0.1");
        assert_eq!(value["host"], "a.example");
        assert_eq!(value["method"], "GET");
        assert_eq!(value["target"], "/a?b");
        assert_eq!(value["protocol"], "HTTP/1.1");
        assert_eq!(value["status"], 200);
        assert_eq!(value["bytes"], 2326);
        assert_eq!(value["duration_ms"], 1234);
        assert_eq!(value["user_agent"], "x\"y\\z\u{fffd}\t\u{9b}");
        assert!(text.contains("\\u0009\\u009b"), "{text}");
        assert_eq!(
            line(LogFormat::Json, "status,header:x-none,target", HEAD, false),
            "{\"status\":200,\"header:x-none\":null,\"target\":\"/a?b\"}\n"
        );
        let slow = line(LogFormat::Json, "status", HEAD, true);
        assert_eq!(slow, "{\"status\":200,\"duration_ms\":1234}\n");
    }

    /// A line stays one line with any bytes that a client sends, and the text formats contain no
    /// other quotes than their own.
    #[test]
    fn no_byte_of_a_client_breaks_a_line() {
        for byte in (b' '..=255).chain([b'\t']).filter(|byte| *byte != 0x7f) {
            let mut head = b"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: a".to_vec();
            head.extend_from_slice(&[byte, byte, b'b']);
            head.extend_from_slice(b"\r\n\r\n");
            for format in [LogFormat::Combined, LogFormat::Json] {
                let text = line(format, "", &head, false);
                assert_eq!(text.matches('\n').count(), 1, "{byte}: {text}");
                assert!(!text.trim_end().contains(char::is_control), "{byte}: {text}");
            }
            let text = line(LogFormat::Combined, "", &head, false);
            let quotes = text.replace("\\\\", "").replace("\\\"", "").matches('"').count();
            assert_eq!(quotes, 6, "{byte}: {text}");
        }
    }
}
