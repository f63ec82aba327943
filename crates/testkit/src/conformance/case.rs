//! A case of the corpus: a request and the expectation of its replies, and the row that describes it.
//!
//! A row has a name, the bytes to send, and the expectation. The expectation begins with the status
//! codes (`H` before the status of a reply to HEAD, which has no content) and the outcome. After bars
//! come the requirements for the first reply (`n#` for the reply with index n, from 0): `name: value`
//! for a field; `!name` for a field that must be absent; `=text` for the content. `{etag}` and
//! `{gzip}` stand for the entity tags of /digits and of /page.txt.gz as page.txt, and `{https}` for the
//! expectation of a request for /digits of an https URI, which depends on whether TLS is used.
//!
//! Outcomes: after `open` the server answers the next request, after `closed` it does not; a
//! `truncated` request is incomplete, and the client shuts down its sending direction.

use std::borrow::Cow;

/// The name, the bytes to send, and the expectation.
pub(crate) type Row = (&'static str, &'static [u8], &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Open,
    Closed,
    Truncated,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedReply {
    pub(crate) status: u16,
    pub(crate) is_head: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: Cow<'static, str>,
    pub(crate) send: Vec<u8>,
    pub(crate) replies: Vec<ExpectedReply>,
    pub(crate) outcome: Outcome,
    pub(crate) expectations: Vec<String>,
}

impl Case {
    pub(super) fn new(name: impl Into<Cow<'static, str>>, send: Vec<u8>, expected: &str) -> Self {
        let name = name.into();
        let mut parts = expected.split(" | ");
        let mut words: Vec<&str> = parts.next().unwrap().split(' ').collect();
        let outcome = match words.pop() {
            Some("open") => Outcome::Open,
            Some("closed") => Outcome::Closed,
            Some("truncated") => Outcome::Truncated,
            other => panic!("{name}: outcome {other:?}"),
        };
        let reply = |word: &str| ExpectedReply {
            status: word.trim_start_matches('H').parse().expect("a status"),
            is_head: word.starts_with('H'),
        };
        let replies = words.into_iter().map(reply).collect();
        Self { name, send, replies, outcome, expectations: parts.map(str::to_owned).collect() }
    }
}
