//! Cache keys: the target URI (RFC 9111 §2).

use pollux_http::request::{Request, Target};
use std::borrow::Cow;

/// The key of a request with its hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'k> {
    pub(crate) hash: u64,
    pub(crate) text: &'k [u8],
}

/// Writes the key of `request` into `out`: `site`, the host in lower case without the default port,
/// and the target. Returns false if the target is `*` or an authority, which have no key.
pub(crate) fn write(site: &[u8], request: &Request<'_>, out: &mut Vec<u8>) -> bool {
    out.clear();
    let Target::Path { path, query } = request.target else { return false };
    out.extend_from_slice(site);
    let host = without_port(request.host.unwrap_or(b""), default_port(site));
    out.extend(host.iter().map(u8::to_ascii_lowercase));
    out.extend_from_slice(path);
    if let Some(query) = query {
        out.push(b'?');
        out.extend_from_slice(query);
    }
    true
}

/// Returns the beginning of the keys of requests on connections with or without TLS. The scheme is a part of the
/// target URI, and decides which port is the default one.
pub const fn site(is_tls: bool) -> &'static [u8] {
    if is_tls { b"https://" } else { b"http://" }
}

/// Returns the default port of the scheme at the beginning of `key`, with its colon (RFC 9110 §4.2).
fn default_port(key: &[u8]) -> &'static [u8] {
    if key.starts_with(b"https:") { b":443" } else { b":80" }
}

/// Returns `host` without `port`, which is a default port with its colon, and without an empty port.
fn without_port<'h>(host: &'h [u8], port: &[u8]) -> &'h [u8] {
    host.strip_suffix(port).or(host.strip_suffix(b":")).unwrap_or(host)
}

/// Returns `host` as it is in the keys of `site`: in lower case, and without the default port. An origin
/// must receive this host and not the client's spelling of it: its response answers the requests of all
/// clients, whatever their spelling.
///
/// ```
/// assert_eq!(*pollux_cache::host_of_key(b"A.example:80", b"http://"), *b"a.example");
/// assert_eq!(*pollux_cache::host_of_key(b"a.example:80", b"https://"), *b"a.example:80");
/// ```
pub fn host_of_key<'h>(host: &'h [u8], site: &[u8]) -> Cow<'h, [u8]> {
    let host = without_port(host, default_port(site));
    match host.iter().any(u8::is_ascii_uppercase) {
        true => Cow::Owned(host.to_ascii_lowercase()),
        false => Cow::Borrowed(host),
    }
}

/// Returns the key of an absolute URL as an operator may write it: scheme and host in any case,
/// with or without the default port, path and fragment. `None` if it is not an `http` or `https` URL
/// with a host.
///
/// ```
/// assert_eq!(pollux_cache::key_from_url(b"HTTP://A:80#x"), Some(b"http://a/".to_vec()));
/// assert_eq!(pollux_cache::key_from_url(b"https://a:443"), Some(b"https://a/".to_vec()));
/// assert_eq!(pollux_cache::key_from_url(b"ftp://a/"), None);
/// ```
pub fn from_url(url: &[u8]) -> Option<Vec<u8>> {
    const SCHEMES: [&[u8]; 2] = [b"http://", b"https://"];
    let has = |scheme: &[u8]| {
        url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    let scheme = SCHEMES.into_iter().find(|&scheme| has(scheme))?;
    let rest = &url[scheme.len()..];
    let rest = rest.split(|&b| b == b'#').next().unwrap_or(b"");
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let host = without_port(host, default_port(scheme));
    if host.is_empty() {
        return None;
    }
    let slash: &[u8] = if path.first() == Some(&b'/') { b"" } else { b"/" };
    Some([scheme, &host.to_ascii_lowercase(), slash, path].concat())
}

/// Returns the prefix of the keys of all URLs that begin with `prefix`, which may end within the
/// host.
pub(crate) fn from_prefix(prefix: &[u8]) -> Vec<u8> {
    let host = prefix.iter().position(|&b| b == b':').map_or(0, |colon| colon + 3);
    let has_path = prefix.get(host..).is_some_and(|rest| rest.contains(&b'/'));
    match from_url(prefix) {
        Some(key) if has_path => key,
        _ => prefix.to_ascii_lowercase(),
    }
}

/// Returns the key of `reference` (`Location` or `Content-Location`) in a response to `request`,
/// whose key is `key`, if both have the same origin (RFC 9111 §4.4). The reference is resolved as
/// in RFC 3986 §5.2.
///
/// Only the authority is compared, not the scheme: behind a proxy that terminates TLS, a site and
/// its clients use `https` while this cache uses `http`. The authority is enough to keep one site
/// from invalidating another site's URLs, which is the purpose of the rule.
pub(crate) fn from_reference(
    key: &[u8],
    request: &Request<'_>,
    reference: &[u8],
) -> Option<Vec<u8>> {
    let Target::Path { path, query } = request.target else { return None };
    let target_len = path.len() + query.map_or(0, |query| query.len() + 1);
    let origin = &key[..key.len().checked_sub(target_len)?];
    let reference = reference.split(|&b| b == b'#').next().unwrap_or(b"");
    match reference {
        b"" => None,
        [b'/', b'/', rest @ ..] => at_authority(origin, rest, default_port(origin)),
        [b'/', ..] => Some(resolve(origin, reference)),
        [b'?', ..] => Some([origin, path, reference].concat()),
        _ if has_scheme(reference) => {
            let colon = reference.iter().position(|&b| b == b':')?;
            let (scheme, rest) = (&reference[..colon], reference[colon..].strip_prefix(b"://")?);
            let port: &[u8] = match scheme {
                scheme if scheme.eq_ignore_ascii_case(b"http") => b":80",
                scheme if scheme.eq_ignore_ascii_case(b"https") => b":443",
                _ => return None,
            };
            at_authority(origin, rest, port)
        }
        _ => {
            let directory = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
            Some(resolve(origin, &[&path[..=directory], reference].concat()))
        }
    }
}

/// Returns the key of the part of a reference that follows `//`, if its authority is that of
/// `origin`. `port` is the default port of the scheme.
fn at_authority(origin: &[u8], rest: &[u8], port: &[u8]) -> Option<Vec<u8>> {
    let host_len = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
    let (host, path) = rest.split_at(host_len);
    let host = without_port(host, port);
    let own = origin.windows(3).position(|window| window == b"://").map_or(0, |colon| colon + 3);
    if !host.eq_ignore_ascii_case(&origin[own..]) {
        return None;
    }
    let slash: &[u8] = if path.first() == Some(&b'/') { b"" } else { b"/" };
    Some(resolve(origin, &[slash, path].concat()))
}

/// Joins `origin` with a path, which may have a query, and removes dot segments (RFC 3986 §5.2.4).
fn resolve(origin: &[u8], path: &[u8]) -> Vec<u8> {
    let end = path.iter().position(|&b| b == b'?').unwrap_or(path.len());
    let (path, query) = path.split_at(end);
    let mut segments_kept: Vec<&[u8]> = Vec::new();
    let mut segments = path.split(|&b| b == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        if segment == b".." {
            segments_kept.pop();
        } else if segment != b"." {
            segments_kept.push(segment);
            continue;
        }
        if segments.peek().is_none() {
            // A final dot segment refers to a directory.
            segments_kept.push(b"");
        }
    }
    [origin, b"/", &segments_kept.join(&b'/'), query].concat()
}

fn has_scheme(reference: &[u8]) -> bool {
    let end = reference.iter().position(|b| matches!(b, b':' | b'/' | b'?'));
    end.is_some_and(|end| end > 0 && reference[end] == b':')
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::{
        Limits,
        request::{ParseStatus, parse},
    };

    fn with<T>(target: &str, host: &str, with_request: impl FnOnce(&Request<'_>) -> T) -> T {
        let head = format!("PUT {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        match parse(head.as_bytes(), &Limits::DEFAULT) {
            Ok(ParseStatus::Complete { request, .. }) => with_request(&request),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_are_target_uris_rfc_9111_2() {
        for (target, host, expected) in [
            ("/a?b=c", "Example.ORG", "http://example.org/a?b=c"),
            ("/a?", "a:80", "http://a/a?"),
            ("/A%41", "a:8080", "http://a:8080/A%41"),
            ("http://b/x", "a", "http://b/x"),
        ] {
            let mut key = Vec::new();
            assert!(with(target, host, |request| write(b"http://", request, &mut key)));
            assert_eq!(String::from_utf8(key).unwrap(), expected);
        }
    }

    /// RFC 9110 §4.2: `https://a:80` is another origin than `https://a`. A response with the first host in
    /// its redirects must not answer requests for the second.
    #[test]
    fn the_default_port_is_that_of_the_scheme() {
        for (host, expected) in [
            ("A", "https://a/x"),
            ("a:443", "https://a/x"),
            ("a:", "https://a/x"),
            ("a:80", "https://a:80/x"),
        ] {
            let mut key = Vec::new();
            assert!(with("/x", host, |request| write(b"https://", request, &mut key)));
            assert_eq!(String::from_utf8(key).unwrap(), expected);
        }
        for (reference, expected) in [
            ("//a:443/b", Some("https://a/b")),
            ("//a:80/b", None),
            ("https://a:443/b", Some("https://a/b")),
            ("/b", Some("https://a/b")),
        ] {
            let key = with("/x", "a", |request| {
                from_reference(b"https://a/x", request, reference.as_bytes())
            });
            assert_eq!(key.as_deref(), expected.map(str::as_bytes), "{reference}");
        }
    }

    #[test]
    fn urls_written_in_different_ways_have_one_key() {
        for (url, key) in [
            ("http://a/", Some("http://a/")),
            ("HTTP://A:80", Some("http://a/")),
            ("http://a?x", Some("http://a/?x")),
            ("http://a:8080/B?c#d", Some("http://a:8080/B?c")),
            ("http://[::1]:80/", Some("http://[::1]/")),
            ("HTTPS://A:443", Some("https://a/")),
            ("https://a:80/", Some("https://a:80/")),
            ("ftp://a/", None),
            ("http:///a", None),
            ("https://", None),
            ("http://:80/", None),
            ("a/b", None),
            ("", None),
        ] {
            let expected = key.map(|key| key.as_bytes().to_vec());
            assert_eq!(from_url(url.as_bytes()), expected, "{url}");
        }
        for (prefix, start) in [
            ("", ""),
            ("http://EXAM", "http://exam"),
            ("http://A:80/B", "http://a/B"),
            ("HTTP://a/b?", "http://a/b?"),
            ("https://A:443/B", "https://a/B"),
        ] {
            assert_eq!(from_prefix(prefix.as_bytes()), start.as_bytes(), "{prefix}");
        }
    }

    #[test]
    fn references_of_the_same_origin_rfc_9111_4_4() {
        for (reference, expected) in [
            ("/b", Some("http://a/b")),
            ("b?x", Some("http://a/x/b?x")),
            ("http://A/b#c", Some("http://a/b")),
            ("http://a:80/b", Some("http://a/b")),
            ("HTTP://a?x", Some("http://a/?x")),
            ("//a/b", Some("http://a/b")),
            ("https://a/b", Some("http://a/b")),
            ("https://A:443", Some("http://a/")),
            ("?c", Some("http://a/x/y?c")),
            ("../b", Some("http://a/b")),
            ("./b?c/../d", Some("http://a/x/b?c/../d")),
            ("../../..", Some("http://a/")),
            ("z/.", Some("http://a/x/z/")),
            ("/b/./c/../d", Some("http://a/b/d")),
            ("/b//c", Some("http://a/b//c")),
            ("http://a.evil/b", None),
            ("https://a:80/b", None),
            ("http://a:443/b", None),
            ("http://a:81/b", None),
            ("ftp://a/b", None),
            ("//b/b", None),
            ("mailto:x", None),
            ("#c", None),
            ("", None),
        ] {
            let key = with("/x/y?z", "a", |request| {
                from_reference(b"http://a/x/y?z", request, reference.as_bytes())
            });
            assert_eq!(key.as_deref(), expected.map(str::as_bytes), "{reference}");
        }
    }
}
