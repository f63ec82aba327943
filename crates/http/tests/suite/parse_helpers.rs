//! Short helpers for parsing a head in tests.

use pollux_http::{
    Limits, Reject, Status,
    request::{self, ParseStatus, Request},
};

pub(crate) fn parse_within<'b>(
    text: &'b [u8],
    limits: &Limits,
) -> Result<Option<(Request<'b>, usize)>, Status> {
    match request::parse(text, limits) {
        Ok(ParseStatus::Partial) => Ok(None),
        Ok(ParseStatus::Complete { request, len }) => Ok(Some((request, len))),
        Err(Reject { status, .. }) => Err(status),
    }
}

pub(crate) fn parse(text: &[u8]) -> Result<Option<(Request<'_>, usize)>, Status> {
    parse_within(text, &Limits::DEFAULT)
}

#[track_caller]
pub(crate) fn accepted(text: &[u8]) -> Request<'_> {
    match parse(text) {
        Ok(Some((request, len))) => {
            assert_eq!(len, text.len(), "{}", text.escape_ascii());
            request
        }
        other => panic!("{}: {other:?}", text.escape_ascii()),
    }
}

#[track_caller]
pub(crate) fn reject_status(text: &[u8]) -> Status {
    match parse(text) {
        Err(status) => status,
        Ok(other) => panic!("{}: {other:?}", text.escape_ascii()),
    }
}

/// Each text is rejected with this status.
#[track_caller]
pub(crate) fn assert_all_rejected(status: Status, texts: &[&[u8]]) {
    for text in texts {
        assert_eq!(reject_status(text), status, "{}", text.escape_ascii());
    }
}
