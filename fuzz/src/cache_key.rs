//! Cache keys of URLs: the key of a key is the key itself, its host is in lower case, and another spelling of the
//! same host has the same key.

use pollux_cache::key_from_url;

/// The input is a URL as an operator may write it.
pub fn check(url: &[u8]) {
    let Some(key) = key_from_url(url) else { return };
    let text = || format!("{} of {}", key.escape_ascii(), url.escape_ascii());
    assert!(!key.contains(&b'#'), "a fragment is not sent to servers: {}", text());
    let schemes: [(&[u8], &[u8]); 2] = [(b"http://", b":80"), (b"https://", b":443")];
    let found =
        schemes.iter().find_map(|(name, port)| Some((name, port, key.strip_prefix(*name)?)));
    let (scheme, port, rest) = found.unwrap_or_else(|| panic!("no scheme: {}", text()));
    let end = rest.iter().position(|&byte| byte == b'/');
    let host = &rest[..end.unwrap_or_else(|| panic!("no path: {}", text()))];
    assert!(!host.is_empty() && !host.iter().any(u8::is_ascii_uppercase), "{}", text());

    // `a:80:80` is not a host, and no request contains it. Each call removes one of its ports.
    if host.ends_with(port) || host.ends_with(b":") {
        return;
    }
    assert_eq!(key_from_url(&key).as_ref(), Some(&key), "a key is its own key: {}", text());

    // The host in upper case, the path unchanged.
    let path = &rest[host.len()..];
    // The planted fault: the path is in upper case, too.
    let path = if crate::planted() { path.to_ascii_uppercase() } else { path.to_vec() };
    let other = [scheme.to_ascii_uppercase(), host.to_ascii_uppercase(), path].concat();
    assert_eq!(key_from_url(&other).as_ref(), Some(&key), "{}", other.escape_ascii());
}
