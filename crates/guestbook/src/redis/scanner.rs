//! Finds the end of a reply before it is decoded.
//!
//! The decoder of `redis-protocol` starts again whenever more bytes arrive, recurses as deep as
//! arrays are nested, and accepts any two bytes as the end of a line. A server may be hostile or
//! not be Redis at all, so its replies are scanned here first: once, without recursion, and within
//! limits.

use crate::limits::{REPLY_BYTES, REPLY_DEPTH, REPLY_ELEMENTS};

/// The maximum length of a line: a length, a number, or an error message.
const LINE_BYTES: usize = 4 << 10;

/// The progress of scanning a reply that arrives in pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplyScanner {
    /// The number of scanned bytes of the reply.
    at: usize,
    /// The number of missing elements per level of arrays; the last one is the innermost.
    open: Vec<usize>,
    has_begun: bool,
}

impl ReplyScanner {
    /// Continues to scan `input`, which begins with the reply and never becomes shorter. Returns
    /// the length of the reply once it is complete.
    ///
    /// # Errors
    /// It is not a valid reply, or it exceeds the limits.
    pub(super) fn scan(&mut self, input: &[u8]) -> Result<Option<usize>, &'static str> {
        loop {
            if self.has_begun {
                while self.open.last() == Some(&0) {
                    self.open.pop();
                }
                if self.open.is_empty() {
                    let len = self.at;
                    *self = Self::default();
                    return Ok(Some(len));
                }
            }
            let Some(line) = line(&input[self.at..])? else { return Ok(None) };
            let (kind, text) = line.split_first().ok_or("an empty line")?;
            let mut len = line.len() + 2;
            let mut elements = None;
            match kind {
                b'+' | b'-' => {}
                b':' => drop(number(text)?),
                b'$' => {
                    let content = number(text)?;
                    if content >= 0 {
                        let content = usize::try_from(content).map_err(|_| "too long")?;
                        if content > REPLY_BYTES {
                            return Err("a string exceeds the limit");
                        }
                        let end = self.at + len + content;
                        let Some(after) = input.get(end..end + 2) else {
                            return if end > REPLY_BYTES {
                                Err("beyond the limit")
                            } else {
                                Ok(None)
                            };
                        };
                        if after != b"\r\n" {
                            return Err("a string is longer than its length");
                        }
                        len += content + 2;
                    }
                }
                b'*' => {
                    let count = number(text)?;
                    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
                    if count > REPLY_ELEMENTS || self.open.len() == REPLY_DEPTH {
                        return Err("an array exceeds the limit");
                    }
                    elements = Some(count);
                }
                _ => return Err("a line has no valid Redis type"),
            }
            self.at += len;
            if self.at > REPLY_BYTES {
                return Err("beyond the limit");
            }
            if let Some(left) = self.open.last_mut() {
                *left -= 1;
            }
            self.has_begun = true;
            self.open.extend(elements);
        }
    }
}

/// Returns the line at the start without its end, if it is complete.
fn line(input: &[u8]) -> Result<Option<&[u8]>, &'static str> {
    let head = &input[..input.len().min(LINE_BYTES)];
    match head.iter().position(|&byte| byte == b'\n') {
        Some(end) if end > 0 && head[end - 1] == b'\r' => Ok(Some(&head[..end - 1])),
        Some(_) => Err("a line ends without CR"),
        None if input.len() >= LINE_BYTES => Err("a line is too long"),
        None => Ok(None),
    }
}

fn number(text: &[u8]) -> Result<i64, &'static str> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or("a number is invalid")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scan_once(input: &[u8]) -> Result<Option<usize>, &'static str> {
        ReplyScanner::default().scan(input)
    }

    #[test]
    fn the_end_of_a_reply_is_found() {
        for reply in [
            "+OK\r\n",
            "-ERR no\r\n",
            ":42\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "*-1\r\n",
            "*0\r\n",
            "$3\r\na\nb\r\n",
            "*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            "*2\r\n*0\r\n*1\r\n$-1\r\n",
        ] {
            let followed = format!("{reply}+next\r\n");
            assert_eq!(scan_once(followed.as_bytes()), Ok(Some(reply.len())), "{reply:?}");
            for cut in 0..reply.len() {
                assert_eq!(scan_once(&reply.as_bytes()[..cut]), Ok(None), "{reply:?} to {cut}");
            }
        }
    }

    #[test]
    fn invalid_and_excessive_replies_are_errors() {
        for reply in [
            "HTTP/1.1 400 Bad Request\r\n",
            "\r\n",
            "+a\n",
            ":x\r\n",
            "$1\r\nab\r\n",
            "$99999999999\r\n",
            "*99999999999\r\n",
            "$1000000000\r\n",
            "*x\r\n",
        ] {
            assert!(scan_once(reply.as_bytes()).is_err(), "{reply:?}");
        }
        assert!(scan_once("*1\r\n".repeat(1 << 20).as_bytes()).is_err(), "no recursion");
        assert!(scan_once(&[b'+'; LINE_BYTES]).is_err());
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_length(cuts in prop::collection::vec(1..9_usize, 1..40)) {
            let reply = b"*3\r\n$5\r\nhello\r\n*2\r\n:1\r\n$-1\r\n-ERR x\r\n";
            let (mut scanner, mut received) = (ReplyScanner::default(), 0);
            for cut in cuts.into_iter().cycle() {
                received = (received + cut).min(reply.len());
                let end = scanner.scan(&reply[..received]).unwrap();
                prop_assert_eq!(end, (received == reply.len()).then_some(reply.len()));
                if end.is_some() { break }
            }
        }

        #[test]
        fn nonsense_never_panics(input: Vec<u8>) {
            let _ = scan_once(&input);
        }
    }
}
