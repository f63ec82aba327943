//! Whether a response may be stored (RFC 9111 §3, §3.5).

use crate::{
    config::Config,
    content_range::PARTIAL,
    response_metadata::{ResponseMetadata, is_heuristic, is_understood},
};

/// The reason why a response is not stored. It becomes the `detail` of `Cache-Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// `no-store` in the response or the request.
    NoStore,
    Private,
    /// The request had `Authorization` and the response does not permit sharing.
    Authorization,
    /// The response sets a cookie for one client.
    SetCookie,
    /// The status is not cacheable, or not understood.
    Status,
    /// `Vary: *`: the stored response would never match.
    VaryAnything,
    /// It would be stale at once and has no validator.
    NeverUsable,
    TooLarge,
}

impl Refusal {
    pub(crate) const fn detail(self) -> &'static str {
        match self {
            Self::NoStore => "no-store",
            Self::Private => "private",
            Self::Authorization => "authorization",
            Self::SetCookie => "set-cookie",
            Self::Status => "status",
            Self::VaryAnything => "vary",
            Self::NeverUsable => "no-lifetime",
            Self::TooLarge => "too-large",
        }
    }

    /// Whether the response after this one with `status` will probably not be stored either, so that
    /// requests should not wait for it. A redirection or a 403 without a lifetime will not be. A
    /// failure is over soon; a part, a 304 or a 416 concerns one request. So does `Authorization`, and
    /// such requests never wait.
    pub(crate) const fn disables_coalescing(self, status: u16) -> bool {
        match self {
            Self::Status => !matches!(status, 206 | 304 | 408 | 416 | 425 | 429 | 500..),
            Self::Authorization => false,
            _ => true,
        }
    }

    /// Whether the stored response must be removed too. A response to one authorized client (§3.5)
    /// is not about the stored response for all clients.
    pub(crate) fn evicts_stored(self) -> bool {
        self != Self::Authorization
    }
}

/// Decides whether the response to a GET, received at `now`, may be stored.
///
/// `is_authorized`: the request had `Authorization`. `forbids_storing`: it had `no-store`.
pub(crate) fn check_storable(
    metadata: &ResponseMetadata<'_>,
    is_authorized: bool,
    forbids_storing: bool,
    now: u64,
    config: &Config,
) -> Result<(), Refusal> {
    let directives = &metadata.directives;
    // §5.2.2.3: a cache that understands the status may ignore `no-store` beside `must-understand`.
    let overrides = directives.must_understand && is_understood(metadata.status);
    if forbids_storing || directives.no_store && !overrides {
        return Err(Refusal::NoStore);
    }
    // 304 is not a representation. 416 concerns the range of one request (RFC 9110 §15.5.17), and
    // stored it would answer all requests. 426 must have `Upgrade` (§15.5.22), which concerns one
    // connection and is not stored. A part must have a valid range (§3.3).
    if matches!(metadata.status, 0..200 | 304 | 416 | 426 | 600..)
        || metadata.status == PARTIAL && metadata.part.is_none()
        || directives.must_understand && !is_understood(metadata.status)
        || !(metadata.is_explicit() || is_heuristic(metadata.status))
    {
        return Err(Refusal::Status);
    }
    if directives.private {
        return Err(Refusal::Private);
    }
    // §3.5.
    let is_shared =
        directives.public || directives.must_revalidate || directives.s_maxage.is_some();
    if is_authorized && !is_shared {
        return Err(Refusal::Authorization);
    }
    // §7.3: the RFC leaves it to the cache. Sending one client's cookie to others is a security
    // fault in nearly every case. `private="set-cookie"` removes only the field.
    let stores_cookie =
        metadata.sets_cookies && !directives.withheld.iter().any(|name| name == b"set-cookie");
    if stores_cookie && !directives.public && !config.cache_set_cookie {
        return Err(Refusal::SetCookie);
    }
    if metadata.varies.by_anything {
        return Err(Refusal::VaryAnything);
    }
    let has_validator = metadata.etag.is_some() || metadata.last_modified.is_some();
    let is_usable = metadata.lifetime(now, config) > 0 && !directives.no_cache;
    let may_be_stale =
        directives.stale_while_revalidate.is_some() || metadata.stale_if_error(config) > 0;
    if !(is_usable || has_validator || may_be_stale && !directives.no_cache) {
        return Err(Refusal::NeverUsable);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::fields::Fields;

    const NOW: u64 = 1_000_000;

    fn check(status: u16, lines: &str, is_authorized: bool) -> Result<(), Refusal> {
        let config = Config::default();
        let metadata = ResponseMetadata::read(status, Fields::new(lines.as_bytes()), &config);
        check_storable(&metadata, is_authorized, false, NOW, &config)
    }

    #[test]
    fn storing_of_rfc_9111_3() {
        for (status, lines, expected) in [
            (200, "Cache-Control: max-age=1\r\n", Ok(())),
            (200, "Cache-Control: s-maxage=1\r\n", Ok(())),
            (200, "CDN-Cache-Control: max-age=1\r\nCache-Control: no-store\r\n", Ok(())),
            (
                200,
                "CDN-Cache-Control: no-store\r\nCache-Control: max-age=9\r\n",
                Err(Refusal::NoStore),
            ),
            (200, "Cache-Control: max-age=0\r\nETag: \"a\"\r\n", Ok(())),
            (200, "Cache-Control: no-cache, max-age=9\r\nETag: \"a\"\r\n", Ok(())),
            (200, "Cache-Control: no-cache, max-age=9\r\n", Err(Refusal::NeverUsable)),
            (200, "ETag: \"a\"\r\n", Ok(())),
            (200, "", Err(Refusal::NeverUsable)),
            (200, "Cache-Control: max-age=0\r\n", Err(Refusal::NeverUsable)),
            (200, "Cache-Control: max-age=9, no-store\r\n", Err(Refusal::NoStore)),
            (200, "Cache-Control: max-age=9, private\r\n", Err(Refusal::Private)),
            (200, "Cache-Control: max-age=9, private=\"a\"\r\n", Ok(())),
            (200, "Cache-Control: max-age=9\r\nVary: *\r\n", Err(Refusal::VaryAnything)),
            (206, "Cache-Control: max-age=9\r\n", Err(Refusal::Status)),
            (206, "Cache-Control: max-age=9\r\nContent-Range: bytes 0-4/10\r\n", Ok(())),
            (
                206,
                "Cache-Control: max-age=9\r\nContent-Range: bytes 0-4/*\r\n",
                Err(Refusal::Status),
            ),
            (304, "Cache-Control: max-age=9\r\n", Err(Refusal::Status)),
            (416, "Cache-Control: max-age=9\r\n", Err(Refusal::Status)),
            (426, "Cache-Control: max-age=9\r\n", Err(Refusal::Status)),
            (302, "ETag: \"a\"\r\n", Err(Refusal::Status)),
            (302, "Cache-Control: max-age=9\r\n", Ok(())),
            (599, "Cache-Control: max-age=9\r\n", Ok(())),
            (503, "Cache-Control: max-age=9\r\n", Ok(())),
            (200, "Expires: Fri, 31 Dec 9999 23:59:59 GMT\r\n", Ok(())),
        ] {
            assert_eq!(check(status, lines, false), expected, "{status} {lines}");
        }
    }

    #[test]
    fn must_understand_of_rfc_9111_5_2_2_3() {
        let lines = "Cache-Control: max-age=9, no-store, must-understand\r\n";
        assert_eq!(check(200, lines, false), Ok(()));
        assert_eq!(check(299, lines, false), Err(Refusal::NoStore));
        let lines = "Cache-Control: max-age=9, must-understand\r\n";
        assert_eq!(check(299, lines, false), Err(Refusal::Status));
    }

    #[test]
    fn cookies_of_rfc_9111_7_3() {
        for (control, expected) in [
            ("max-age=9", Err(Refusal::SetCookie)),
            ("s-maxage=9", Err(Refusal::SetCookie)),
            ("max-age=9, public", Ok(())),
            ("max-age=9, private=\"Set-Cookie\"", Ok(())),
            ("max-age=9, no-cache=\"set-cookie\"", Ok(())),
            ("max-age=9, no-cache=\"x-a\"", Err(Refusal::SetCookie)),
        ] {
            let lines = format!("Cache-Control: {control}\r\nSet-Cookie: a=b\r\n");
            assert_eq!(check(200, &lines, false), expected, "{control}");
            let config = Config { cache_set_cookie: true, ..Config::default() };
            let metadata = ResponseMetadata::read(200, Fields::new(lines.as_bytes()), &config);
            assert_eq!(check_storable(&metadata, false, false, NOW, &config), Ok(()), "{control}");
        }
    }

    #[test]
    fn authorization_of_rfc_9111_3_5() {
        for (control, expected) in [
            ("max-age=9", Err(Refusal::Authorization)),
            ("max-age=9, proxy-revalidate", Err(Refusal::Authorization)),
            ("max-age=9, public", Ok(())),
            ("max-age=9, must-revalidate", Ok(())),
            ("s-maxage=9", Ok(())),
        ] {
            let lines = format!("Cache-Control: {control}\r\n");
            assert_eq!(check(200, &lines, true), expected, "{control}");
        }
    }
}
