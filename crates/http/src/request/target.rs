//! The four forms of a request target (RFC 9112 §3.2).

use super::Method;
use crate::{Reject, Status, host::Authority};

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'b> {
    /// `/path?query`: the usual one. Also what an absolute-form target (`http://host/path?query`)
    /// is turned into; its authority is then the request's `host`.
    Path {
        /// Begins with `/`; still percent-encoded: see [`path`](crate::path).
        path: &'b [u8],
        /// What follows the first `?`, without it.
        query: Option<&'b [u8]>,
    },
    /// `host:port`, of CONNECT only.
    Authority(Authority<'b>),
    /// `*`, of OPTIONS only: about the server as a whole.
    Asterisk,
}

impl<'b> Target<'b> {
    /// Understands `target`, which holds only characters of the class TARGET and is not empty, and
    /// whose first `?` is at `query_at`. Returns also the authority of an absolute-form target, which
    /// overrides `Host` (§3.2.2).
    #[inline]
    pub(super) fn parse(
        method: Method<'_>,
        target: &'b [u8],
        query_at: usize,
    ) -> Result<(Self, Option<&'b [u8]>), Reject> {
        if target[0] == b'/' && method != Method::Connect {
            return Ok((Self::from_path(target, query_at), None));
        }
        match method {
            Method::Connect => match Authority::parse(target) {
                Some(authority) if authority.port.is_some() => {
                    Ok((Self::Authority(authority), Some(target)))
                }
                _ => Err(Reject::bad("CONNECT wants host:port")),
            },
            Method::Options if target == b"*" => Ok((Self::Asterisk, None)),
            _ => Self::parse_absolute(method, target),
        }
    }

    #[inline]
    fn from_path(target: &'b [u8], query_at: usize) -> Self {
        let (path, query) = target.split_at(query_at);
        Self::Path { path, query: query.split_first().map(|(_, query)| query) }
    }

    fn parse_absolute(
        method: Method<'_>,
        target: &'b [u8],
    ) -> Result<(Self, Option<&'b [u8]>), Reject> {
        let without = |scheme: &[u8]| {
            let (start, rest) = target.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then_some(rest)
        };
        let Some(rest) = without(b"http://") else {
            // RFC 9110 §7.4: who asks for https must not be answered without TLS.
            return Err(match without(b"https://") {
                Some(_) => Reject::new(Status::MisdirectedRequest, "https is not spoken here"),
                None => Reject::bad("the request target is neither a path nor an http URI"),
            });
        };
        let end = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if Authority::parse(authority).is_none() {
            return Err(Reject::bad("invalid authority in the request target"));
        }
        let target = match rest {
            // §3.2.4: OPTIONS about an empty path is about the server.
            [] if method == Method::Options => Self::Asterisk,
            // RFC 9110 §4.2.3: an empty path is "/".
            [] => Self::Path { path: b"/", query: None },
            [b'?', query @ ..] => Self::Path { path: b"/", query: Some(query) },
            _ => Self::from_path(rest, memchr::memchr(b'?', rest).unwrap_or(rest.len())),
        };
        Ok((target, Some(authority)))
    }
}
