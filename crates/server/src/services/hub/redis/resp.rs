//! Replies of Redis (RESP2), read from a stream that may be hostile.
//!
//! Each reply has a budget of bytes and of elements, so that no server makes the hub allocate more
//! than that. The guestbook's reader (`pollux_guestbook::redis`) is for a session without I/O, whose
//! replies are short; here a blocking thread reads replies of several megabytes.

use std::io::{self, BufRead, Read};

/// The maximum length in bytes of a line, which holds a length, a number or an error message.
const LINE_BYTES: usize = 4 << 10;
/// The maximum depth of nested arrays. Replies to XREAD have four levels.
const DEPTH: usize = 6;
/// The maximum of elements of one reply, over all of its arrays.
const ELEMENTS: usize = 64 << 10;

/// A complete reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Nil,
    Number(i64),
    /// A status or a string.
    Text(Vec<u8>),
    Error(String),
    List(Vec<Reply>),
}

/// The reason why no reply could be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplyError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the server does not speak the Redis protocol: {0}")]
    Protocol(&'static str),
    #[error("a reply is larger than {0} bytes")]
    TooLarge(usize),
}

/// Reads one reply of at most `most` bytes.
///
/// # Errors
/// The stream fails or ends, or its bytes are no valid reply within the limits. The stream cannot be
/// used afterwards.
pub(super) fn read(input: &mut impl BufRead, most: usize) -> Result<Reply, ReplyError> {
    let mut budget = Budget { most, bytes: most, elements: ELEMENTS };
    budget.reply(input, DEPTH)
}

struct Budget {
    most: usize,
    bytes: usize,
    elements: usize,
}

impl Budget {
    fn reply(&mut self, input: &mut impl BufRead, depth: usize) -> Result<Reply, ReplyError> {
        let line = self.line(input)?;
        let (kind, text) = line.split_first().ok_or(ReplyError::Protocol("an empty line"))?;
        Ok(match kind {
            b'+' => Reply::Text(text.to_vec()),
            b'-' => Reply::Error(printable(text)),
            b':' => Reply::Number(number(text)?),
            b'$' => match number(text)? {
                -1 => Reply::Nil,
                length => Reply::Text(self.string(input, length)?),
            },
            b'*' => match number(text)? {
                -1 => Reply::Nil,
                count => Reply::List(self.list(input, count, depth)?),
            },
            _ => return Err(ReplyError::Protocol("a line has no valid type")),
        })
    }

    fn spend(&mut self, bytes: usize) -> Result<(), ReplyError> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(ReplyError::TooLarge(self.most))?;
        Ok(())
    }

    fn line(&mut self, input: &mut impl BufRead) -> Result<Vec<u8>, ReplyError> {
        let mut line = Vec::new();
        input.by_ref().take(LINE_BYTES as u64).read_until(b'\n', &mut line)?;
        self.spend(line.len())?;
        if line.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(line.to_vec()),
            None => Err(ReplyError::Protocol("a line is too long, or has no end")),
        }
    }

    fn string(&mut self, input: &mut impl BufRead, length: i64) -> Result<Vec<u8>, ReplyError> {
        let length =
            usize::try_from(length).map_err(|_| ReplyError::Protocol("a length is invalid"))?;
        self.spend(length.saturating_add(2))?;
        // The buffer grows with the received bytes, not with the announced length.
        let mut bytes = Vec::new();
        input.by_ref().take(length as u64 + 2).read_to_end(&mut bytes)?;
        if bytes.len() < length + 2 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if !bytes.ends_with(b"\r\n") {
            return Err(ReplyError::Protocol("a string does not end in CRLF"));
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    fn list(
        &mut self,
        input: &mut impl BufRead,
        count: i64,
        depth: usize,
    ) -> Result<Vec<Reply>, ReplyError> {
        let count =
            usize::try_from(count).map_err(|_| ReplyError::Protocol("a count is invalid"))?;
        let depth =
            depth.checked_sub(1).ok_or(ReplyError::Protocol("arrays are nested too deeply"))?;
        self.elements =
            self.elements.checked_sub(count).ok_or(ReplyError::Protocol("too many elements"))?;
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(self.reply(input, depth)?);
        }
        Ok(list)
    }
}

fn number(text: &[u8]) -> Result<i64, ReplyError> {
    let text = std::str::from_utf8(text).ok();
    text.and_then(|text| text.parse().ok()).ok_or(ReplyError::Protocol("a number is invalid"))
}

/// Returns the text of an error without control characters, for a log.
fn printable(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().filter(|character| !character.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(wire: &[u8]) -> Result<Reply, ReplyError> {
        read(&mut &wire[..], 1000)
    }

    #[test]
    fn replies_are_read() {
        let text = |text: &str| Reply::Text(text.into());
        for (wire, reply) in [
            ("+OK\r\n", text("OK")),
            ("-ERR no\x1b\r\n", Reply::Error("ERR no".into())),
            (":-7\r\n", Reply::Number(-7)),
            ("$-1\r\n", Reply::Nil),
            ("*-1\r\n", Reply::Nil),
            ("$4\r\na\r\nb\r\n", text("a\r\nb")),
            ("*2\r\n*1\r\n:1\r\n$0\r\n\r\n", {
                Reply::List(vec![Reply::List(vec![Reply::Number(1)]), text("")])
            }),
        ] {
            assert_eq!(parse(wire.as_bytes()).unwrap(), reply);
            for cut in 0..wire.len() {
                assert!(parse(&wire.as_bytes()[..cut]).is_err(), "{wire:?} cut at {cut}");
            }
        }
        let mut out = Vec::new();
        pollux_guestbook::redis::put_command(&mut out, &[b"XADD", b"k"]);
        assert_eq!(out, b"*2\r\n$4\r\nXADD\r\n$1\r\nk\r\n");
    }

    #[test]
    fn hostile_replies_are_errors_and_allocate_little() {
        for wire in [
            "HTTP/1.1 400 Bad Request\r\n\r\n".to_owned(),
            "\r\n".into(),
            ":x\r\n".into(),
            "$-2\r\n".into(),
            "*-2\r\n".into(),
            "$3\r\nabcde".into(),
            "+no end\n".into(),
            "*99999999999999\r\n".into(),
            "*65537\r\n".into(),
            "*1\r\n".repeat(100),
            format!("+{}\r\n", "x".repeat(LINE_BYTES)),
        ] {
            assert!(parse(wire.as_bytes()).is_err(), "{wire:.40}");
        }
        for wire in ["$1000\r\n", "$9223372036854775807\r\n"] {
            assert!(matches!(parse(wire.as_bytes()), Err(ReplyError::TooLarge(1000))), "{wire}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(wire in "[-+:$*0-9a\r\n]{0,60}", bytes: Vec<u8>) {
            let _ = parse(wire.as_bytes());
            let _ = parse(&bytes);
        }
    }
}
