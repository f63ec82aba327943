//! The four forms of a request target (RFC 9112 §3.2).

use super::Method;
use crate::{Reject, host::Authority};

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
    /// whose first `?` is at `query_at`. Returns also the authority of an absolute-form target, which overrides `Host` (§3.2.2).
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
        const SCHEMES: [&[u8]; 2] = [b"http://", b"https://"];
        let Some(scheme) = SCHEMES.iter().find(|scheme| {
            target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        }) else {
            return Err(Reject::bad("the request target is neither a path nor an http URI"));
        };
        let rest = &target[scheme.len()..];
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
