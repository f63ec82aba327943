//! The four forms of a request target (RFC 9112 §3.2).

use super::Method;
use crate::{Reject, Status, host::Authority};

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'b> {
    /// `/path?query`, the usual form. An absolute-form target (`http://host/path?query`) is
    /// converted to it; its authority is then the request's `host`.
    Path {
        /// Begins with `/` and is still percent-encoded; see [`path`](crate::path).
        path: &'b [u8],
        /// The text after the first `?`.
        query: Option<&'b [u8]>,
    },
    /// `host:port`, only with CONNECT.
    Authority(Authority<'b>),
    /// `*`, only with OPTIONS: the server as a whole.
    Asterisk,
}

impl<'b> Target<'b> {
    /// Parses `target`, which is not empty, contains only characters of the class TARGET, and has
    /// its first `?` at `query_at`. Also returns the authority of an absolute-form target, which
    /// overrides `Host` (§3.2.2). With `allows_https` its scheme may be `https`.
    #[inline]
    pub(super) fn parse(
        method: Method<'_>,
        target: &'b [u8],
        query_at: usize,
        allows_https: bool,
    ) -> Result<(Self, Option<&'b [u8]>), Reject> {
        if target[0] == b'/' && method != Method::Connect {
            return Ok((Self::from_path(target, query_at), None));
        }
        match method {
            Method::Connect => match Authority::parse(target) {
                Some(authority) if authority.port.is_some() => {
                    Ok((Self::Authority(authority), Some(target)))
                }
                _ => Err(Reject::bad("CONNECT requires host:port")),
            },
            Method::Options if target == b"*" => Ok((Self::Asterisk, None)),
            _ => Self::parse_absolute(method, target, allows_https),
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
        allows_https: bool,
    ) -> Result<(Self, Option<&'b [u8]>), Reject> {
        let without = |scheme: &[u8]| {
            let (start, rest) = target.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then_some(rest)
        };
        let rest = match (without(b"http://"), without(b"https://")) {
            (Some(rest), _) => rest,
            (None, Some(rest)) if allows_https => rest,
            // RFC 9110 §7.4: an https resource must not be served without TLS.
            (None, Some(_)) => {
                return Err(Reject::new(Status::MisdirectedRequest, "https is not supported here"));
            }
            (None, None) => {
                return Err(Reject::bad("the request target is neither a path nor an http URI"));
            }
        };
        let end = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if Authority::parse(authority).is_none() {
            return Err(Reject::bad("invalid authority in the request target"));
        }
        let target = match rest {
            // §3.2.4: OPTIONS with an empty path concerns the server.
            [] if method == Method::Options => Self::Asterisk,
            // RFC 9110 §4.2.3: an empty path is "/".
            [] => Self::Path { path: b"/", query: None },
            [b'?', query @ ..] => Self::Path { path: b"/", query: Some(query) },
            _ => Self::from_path(rest, memchr::memchr(b'?', rest).unwrap_or(rest.len())),
        };
        Ok((target, Some(authority)))
    }
}
