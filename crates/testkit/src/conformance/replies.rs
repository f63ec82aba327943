//! A strict parser of replies: it reports everything that a well-formed reply must not contain.

use std::collections::HashSet;

#[derive(Debug)]
pub(crate) struct StrictReply {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl StrictReply {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let is = |field: &&(String, String)| field.0.eq_ignore_ascii_case(name);
        self.fields.iter().find(is).map(|(_, value)| value.as_str())
    }

    fn says_close(&self) -> bool {
        self.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// Splits `stream` into replies. The i-th is a reply to HEAD if `is_head(i)`.
pub(crate) fn parse(
    mut stream: &[u8],
    is_head: impl Fn(usize) -> bool,
) -> Result<Vec<StrictReply>, String> {
    let mut replies: Vec<StrictReply> = Vec::new();
    while !stream.is_empty() {
        if replies.last().is_some_and(StrictReply::says_close) {
            return Err("something follows the reply that says close".into());
        }
        let head = stream.windows(4).position(|four| four == b"\r\n\r\n");
        let head_end = head.ok_or_else(|| format!("no head: {}", excerpt(stream)))?;
        let mut reply = parse_head(&stream[..head_end])?;
        stream = &stream[head_end + 4..];
        let is_bodiless = is_head(replies.len()) || matches!(reply.status, 100..=199 | 204 | 304);
        if !is_bodiless {
            let length = reply.field("content-length").ok_or("no Content-Length")?;
            let length: usize = length.parse().map_err(|_| format!("length {length:?}"))?;
            if length > stream.len() {
                return Err(format!("{} of {length} bytes of content", stream.len()));
            }
            reply.body = stream[..length].to_vec();
            stream = &stream[length..];
        }
        check(&reply).map_err(|fault| format!("{fault} in {reply:?}"))?;
        replies.push(reply);
    }
    Ok(replies)
}

fn parse_head(head: &[u8]) -> Result<StrictReply, String> {
    let head = std::str::from_utf8(head).map_err(|_| "a head that is not ASCII")?;
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let is_visible = first.bytes().all(|b| (b' '..0x7f).contains(&b));
    let (code, _reason) = first
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.split_once(' '))
        .filter(|(code, _)| is_visible && code.len() == 3)
        .ok_or_else(|| format!("status line {first:?}"))?;
    let status = code.parse().map_err(|_| format!("status {code:?}"))?;
    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| format!("line {line:?}"))?;
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(format!("field name {name:?}"));
        }
        if !value.bytes().all(|b| (b' '..0x7f).contains(&b)) {
            return Err(format!("value {value:?} of {name}"));
        }
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
    Ok(StrictReply { status, fields, body: Vec::new() })
}

/// Checks the requirements of RFC 9110 for every response.
fn check(reply: &StrictReply) -> Result<(), String> {
    let mut seen = HashSet::new();
    for (name, _) in &reply.fields {
        if !seen.insert(name.to_ascii_lowercase()) {
            return Err(format!("{name} twice"));
        }
    }
    let wants = |name: &str| reply.field(name).map(|_| ()).ok_or(format!("no {name}"));
    let refuses = |name: &str| match reply.field(name) {
        Some(_) => Err(format!("there is {name}")),
        None => Ok(()),
    };
    refuses("transfer-encoding")?;
    if reply.status == 100 {
        return if reply.fields.is_empty() { Ok(()) } else { Err("fields".into()) };
    }
    wants("date")?;
    match reply.status {
        // RFC 9110 §8.6: 204 never has Content-Length; in 304 it would be the length of the content of
        // the 200.
        204 | 304 => {
            refuses("content-length")?;
            refuses("content-type")?;
        }
        _ => wants("content-length")?,
    }
    match reply.status {
        200 | 206 => {
            wants("etag")?;
            wants("last-modified")?;
        }
        304 => wants("etag")?,
        301 => wants("location")?,
        405 => wants("allow")?,
        416 => wants("content-range")?,
        _ => {}
    }
    if reply.status != 416 && reply.status != 206 {
        refuses("content-range")?;
    }
    // No part of the request may appear in the reply as markup.
    if reply.status >= 400 {
        let text = String::from_utf8_lossy(&reply.body);
        if text.contains("<script") || text.contains("SECRET") {
            return Err("the page reflects".into());
        }
        if !reply.body.is_empty() && !text.contains(&reply.status.to_string()) {
            return Err("the page does not say its status".into());
        }
    }
    Ok(())
}

pub(crate) fn excerpt(bytes: &[u8]) -> String {
    let text = bytes.escape_ascii().to_string();
    if text.len() > 300 { format!("{}… ({} bytes)", &text[..300], bytes.len()) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: &str = "Date: x\r\nContent-Length: 1\r\nETag: x\r\nLast-Modified: x\r\n";

    #[test]
    fn forbidden_reply_fields_are_reported() {
        let fine = format!("HTTP/1.1 200 OK\r\n{FIELDS}\r\nx");
        assert_eq!(parse(fine.repeat(2).as_bytes(), |_| false).unwrap().len(), 2);
        let with = |fields: &str| format!("HTTP/1.1 200 OK\r\n{FIELDS}{fields}\r\nx");
        for (stream, fault) in [
            (with("Connection: close\r\n") + &fine, "something follows"),
            (fine.clone() + "x", "no head"),
            (fine[..fine.len() - 1].to_owned(), "0 of 1 bytes"),
            (fine.replace("1.1", "1.0"), "status line"),
            (fine.replace("200 OK", "200"), "status line"),
            (fine.replace("200", "2OO"), "status"),
            (fine.replace("\r\nDate", "\nDate"), "status line"),
            (fine.replace("Content-Length", "X"), "no Content-Length"),
            (fine.replace("Date", "X"), "no date"),
            (fine.replace("ETag", "X"), "no etag"),
            (fine.replace("200", "304").replace("\r\nx", "\r\n"), "there is content-length"),
            (with("Date: x\r\n"), "twice"),
            (with("Transfer-Encoding: chunked\r\n"), "there is transfer-encoding"),
            (with("Content-Range: x\r\n"), "there is content-range"),
            (with("A b: x\r\n"), "field name"),
            (with("X: \x01\r\n"), "value"),
            (with("X\r\n"), "line"),
            (fine.replace("200", "404").replace(": 1", ": 7") + "SECRET", "reflects"),
        ] {
            let error = parse(stream.as_bytes(), |_| false).expect_err(fault);
            assert!(error.contains(fault), "{fault}: {error}");
        }
    }
}
