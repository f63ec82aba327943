//! How a request presents its token.

use crate::{dialect::Dialect, reject::Reject};

/// The fields of a request that may carry a token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credentials<'a> {
    /// The value of `Authorization`.
    pub authorization: Option<&'a [u8]>,
    /// `access_token` of the query, decoded.
    pub query: Option<&'a str>,
    /// The value of `Cookie`. Of several fields, joined by `; `.
    pub cookie: Option<&'a [u8]>,
}

/// The names of the cookie, the one of the newest text first.
const NAMES: [&str; 2] = ["__Secure-mercure_access_token", "mercureAccessToken"];
/// Its name in 0.x.
const OLD_NAME: [&str; 1] = ["mercureAuthorization"];

/// Where a token was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The field `Authorization`.
    Header,
    /// The query: the answer must not be kept by shared caches.
    Query,
    /// A cookie, which browsers send by themselves: a publish request must prove its origin.
    Cookie,
}

/// Selects the one token that counts: `Authorization` before the query before the cookie. The
/// others are ignored, even if the selected one is not valid.
///
/// # Errors
/// 400 if `Authorization` is there and is no bearer token.
pub fn select<'a>(
    credentials: &Credentials<'a>,
    dialect: Dialect,
) -> Result<Option<(&'a str, Source)>, Reject> {
    if let Some(value) = credentials.authorization {
        return match bearer(value) {
            Some(token) => Ok(Some((token, Source::Header))),
            None => Err(Reject::invalid(
                "the field Authorization must be the word Bearer, a space and the token",
            )),
        };
    }
    if let Some(token) = credentials.query {
        return Ok(Some((token, Source::Query)));
    }
    let cookies = credentials.cookie.unwrap_or_default();
    let new = NAMES.iter().filter(|_| dialect.one());
    let names = new.chain(OLD_NAME.iter().filter(|_| dialect.zero()));
    let token = names.filter_map(|name| cookie(cookies, name.as_bytes())).next();
    Ok(token.map(|token| (token, Source::Cookie)))
}

/// The token of `Bearer TOKEN`; the name of a scheme has no case (RFC 9110 §11.1).
fn bearer(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let (scheme, token) = text.split_once(' ')?;
    let token = token.trim_start();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The value of a cookie (RFC 6265 §4.2).
#[must_use]
pub fn cookie<'a>(cookies: &'a [u8], name: &[u8]) -> Option<&'a str> {
    cookies.split(|byte| *byte == b';').find_map(|pair| {
        let value = pair.trim_ascii().strip_prefix(name)?.strip_prefix(b"=")?;
        let value = value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\"")).unwrap_or(value);
        std::str::from_utf8(value).ok().filter(|value| !value.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_wins_then_the_query_then_the_cookie() {
        let mut all = Credentials {
            authorization: Some(b"bearer  h"),
            query: Some("q"),
            cookie: Some(b"a=b; mercureAccessToken=c"),
        };
        let token =
            |all: &Credentials<'_>| select(all, Dialect::Both).unwrap().map(|t| t.0.to_owned());
        assert_eq!(token(&all).as_deref(), Some("h"));
        all.authorization = None;
        assert_eq!(token(&all).as_deref(), Some("q"));
        all.query = None;
        assert_eq!(token(&all).as_deref(), Some("c"));
        all.cookie = Some(b"mercureAccessToken=c; __Secure-mercure_access_token=e");
        assert_eq!(token(&all).as_deref(), Some("e"));
        all.cookie = Some(b"mercureAuthorization=\"d\"");
        assert_eq!(token(&all).as_deref(), Some("d"));
        assert_eq!(select(&all, Dialect::One).unwrap(), None);
        all.cookie = None;
        assert_eq!(token(&all), None);
        for bad in [&b"Basic x"[..], b"Bearer", b"Bearer ", b"", b"\xff"] {
            all.authorization = Some(bad);
            assert_eq!(select(&all, Dialect::Both).unwrap_err().status, 400);
        }
    }

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        assert_eq!(cookie(b"xa=1; a=2", b"a"), Some("2"));
        assert_eq!(cookie(b"ab=1;a=", b"a"), None);
        assert_eq!(cookie(b"", b"a"), None);
    }
}
