//! Redirects and rewrites: a pattern, and the target for the paths that it matches.

use super::pattern::{Captures, Pattern, is_name};
use percent_encoding::percent_decode;
use pollux_http::Status;
use std::{fmt, iter, str::FromStr};

/// A rule that redirects clients: `FROM TO`, or `FROM TO STATUS` with 301, 302, 303, 307 or 308 (without a
/// status: 308, which keeps the method).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    from: Pattern,
    to: Template,
    pub(super) status: Status,
}

/// A rule that answers a request as if another path had been requested: `FROM TO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    from: Pattern,
    to: Template,
}

/// A target with placeholders for captures: `/new/:slug`, `https://example.org/*`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    Capture(String),
}

impl Redirect {
    /// Returns one of the paths that the rule matches.
    pub(super) fn example(&self) -> Vec<u8> {
        self.from.example()
    }

    /// Returns the Location for a path, if the rule matches it. The query is kept, unless the target has its
    /// own query.
    pub(crate) fn apply(&self, path: &[u8], query: Option<&[u8]>) -> Option<Vec<u8>> {
        self.to.fill(&self.from.matches(path)?, query)
    }
}

impl Rewrite {
    /// Returns the new target for a path, if the rule matches it.
    pub(crate) fn apply(&self, path: &[u8], query: Option<&[u8]>) -> Option<Vec<u8>> {
        self.to.fill(&self.from.matches(path)?, query)
    }
}

impl Template {
    /// Inserts the captures. Returns `None` if the target would name another server, because a capture at the
    /// start of the path begins with a slash.
    fn fill(&self, captures: &Captures<'_>, query: Option<&[u8]>) -> Option<Vec<u8>> {
        let mut target = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => target.extend_from_slice(text),
                Part::Capture(name) if target.contains(&b'?') => {
                    let value: Vec<u8> = percent_decode(captures.get(name)).collect();
                    encode(&value, IN_QUERY, &mut target);
                }
                Part::Capture(name) => put_path(captures.get(name), &mut target),
            }
        }
        // The target must be a path, and not `//host`, which a browser reads as another server.
        let is_path = self.text.starts_with('/');
        if is_path && (target.starts_with(b"//") || target.starts_with(b"/\\")) {
            return None;
        }
        // A query stands before the fragment (RFC 3986 §3). Captures have no `#`, so the first one begins the
        // fragment of the template.
        let end = target.iter().position(|&byte| byte == b'#').unwrap_or(target.len());
        if let Some(query) = query
            && !target[..end].contains(&b'?')
        {
            target.splice(end..end, iter::once(b'?').chain(query.iter().copied()));
        }
        Some(target)
    }

    fn parse(text: &str, from: &Pattern) -> Result<Self, String> {
        if !text.bytes().all(|byte| (b'!'..0x7f).contains(&byte)) {
            return Err(format!("{text:?}: a target has printable ASCII and no blank"));
        }
        // The colon in `https://` does not begin a capture.
        let start = match text.find("://") {
            Some(at) if text[..at].bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                let authority = &text[at + 3..];
                at + 3 + authority.find(['/', '?', '#']).unwrap_or(authority.len())
            }
            _ => 0,
        };
        let mut parts = vec![Part::Text(text[..start].into())];
        let mut rest = &text[start..];
        while let Some(at) = rest.find([':', '*']) {
            // A capture begins only after `/` or `=`: a colon elsewhere is an ordinary character.
            let is_capture = at > 0 && matches!(rest.as_bytes()[at - 1], b'/' | b'=');
            let name_end = rest[at + 1..]
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .map_or(rest.len(), |end| at + 1 + end);
            let (name, end) = if rest.as_bytes()[at] == b'*' {
                ("*", at + 1)
            } else {
                (&rest[at + 1..name_end], name_end)
            };
            if !is_capture || (name != "*" && !is_name(name)) {
                parts.push(Part::Text(rest[..=at].into()));
                rest = &rest[at + 1..];
                continue;
            }
            if !from.captures(name) {
                return Err(format!("{text}: {from} captures no {name}"));
            }
            parts.push(Part::Text(rest[..at].into()));
            parts.push(Part::Capture(name.into()));
            rest = &rest[end..];
        }
        parts.push(Part::Text(rest.into()));
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        Ok(Self { text: text.into(), parts })
    }
}

/// The characters that a capture may have unencoded, besides letters and digits (RFC 3986 §3.3). In a query a
/// capture is a value.
const IN_PATH: &[u8] = b"/-._~!$&'()*+,;=:@";
const IN_QUERY: &[u8] = b"/-._~";

/// Appends a capture to a path. What is encoded in it stays so: an encoded slash separates no segments, and it
/// must not become one that does (RFC 3986 §2.2).
fn put_path(capture: &[u8], out: &mut Vec<u8>) {
    let mut rest = capture;
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'%', [high, low, after @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                out.extend([b'%', high.to_ascii_uppercase(), low.to_ascii_uppercase()]);
                after
            }
            _ => {
                encode(&[*first], IN_PATH, out);
                tail
            }
        };
    }
}

/// Appends a capture with all other characters percent-encoded, so that no capture begins a query or a
/// fragment, or ends a line.
fn encode(capture: &[u8], allowed: &[u8], out: &mut Vec<u8>) {
    for &byte in capture {
        if byte.is_ascii_alphanumeric() || allowed.contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

fn words(text: &str) -> (Option<&str>, Option<&str>, Option<&str>, bool) {
    let mut words = text.split_ascii_whitespace();
    (words.next(), words.next(), words.next(), words.next().is_some())
}

impl FromStr for Redirect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (Some(from), Some(to), status, false) = words(text) else {
            return Err("expected FROM TO [STATUS], such as \"/old/* /new/* 301\"".into());
        };
        let status = match status {
            None | Some("308") => Status::PermanentRedirect,
            Some("301") => Status::MovedPermanently,
            Some("302") => Status::Found,
            Some("303") => Status::SeeOther,
            Some("307") => Status::TemporaryRedirect,
            Some(other) => return Err(format!("{other}: 301, 302, 303, 307 or 308 redirects")),
        };
        if from == to {
            return Err(format!("{from} is redirected to itself: its clients would never arrive"));
        }
        let from: Pattern = from.parse()?;
        let is_path = to.starts_with('/') && !to.starts_with("//");
        let is_url = to.starts_with("https://") || to.starts_with("http://");
        if !is_path && !is_url {
            return Err(format!("{to}: a target is a path, or begins with https:// or http://"));
        }
        Ok(Self { to: Template::parse(to, &from)?, from, status })
    }
}

impl FromStr for Rewrite {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (Some(from), Some(to), None, false) = words(text) else {
            return Err("expected FROM TO, such as \"/blog/:slug /posts/:slug.html\"".into());
        };
        let from: Pattern = from.parse()?;
        if !to.starts_with('/') || to.starts_with("//") {
            return Err(format!(
                "{to}: a rewrite stays on this site: its target begins with one slash"
            ));
        }
        // A request with a fragment is malformed (RFC 9112 §3.2), so every rewritten request would be refused.
        if to.contains('#') {
            return Err(format!("{to}: the target of a rewrite has no fragment"));
        }
        Ok(Self { to: Template::parse(to, &from)?, from })
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.from, self.to.text, self.status.code())
    }
}

impl fmt::Display for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.from, self.to.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(rule: &str, path: &str, query: Option<&str>) -> Option<String> {
        let rule: Redirect = rule.parse().unwrap();
        let location = rule.apply(path.as_bytes(), query.map(str::as_bytes))?;
        Some(String::from_utf8(location).unwrap())
    }

    #[test]
    fn captures_are_put_where_their_names_stand() {
        for (rule, path, query, expected) in [
            ("/old /new", "/old", None, Some("/new")),
            ("/old /new", "/older", None, None),
            ("/old/* /new/* 301", "/old/a/b", Some("x=1"), Some("/new/a/b?x=1")),
            ("/old/* /new/*", "/old/a%2fb/c", None, Some("/new/a%2Fb/c")),
            ("/u/:id /users/:id", "/u/a%2Fb%3bc", None, Some("/users/a%2Fb%3Bc")),
            ("/old/* /new/*", "/old/%zz%4", None, Some("/new/%25zz%254")),
            ("/s/:q /search?q=:q", "/s/a%2Fb%3d", None, Some("/search?q=a/b%3D")),
            ("/a /b?c=1", "/a", Some("x"), Some("/b?c=1")),
            ("/a /b#c", "/a", None, Some("/b#c")),
            ("/a /b#c", "/a", Some("x=1"), Some("/b?x=1#c")),
            ("/a /b#c?d", "/a", Some("x=1"), Some("/b?x=1#c?d")),
            ("/a /b?c=1#d", "/a", Some("x"), Some("/b?c=1#d")),
            ("/a/* https://b.example/*#c", "/a/%23", Some("x"), Some("https://b.example/%23?x#c")),
            ("/blog/:y/:s /:s-:y", "/blog/2026/x", None, Some("/x-:y")),
            ("/blog/:y/:s /p/:s/:y", "/blog/2026/x", None, Some("/p/x/2026")),
            ("/s/:q /search?q=:q", "/s/a%26b", None, Some("/search?q=a%26b")),
            ("/* https://example.org:8443/*", "/a", None, Some("https://example.org:8443/a")),
            ("/* https://example.org", "/a", None, Some("https://example.org")),
            // The host ends also before a query (RFC 3986 §3.2).
            ("/u/:id https://a.example:81?u=:id", "/u/7", None, Some("https://a.example:81?u=7")),
            ("/u/:id https://a.example#/:id", "/u/7", None, Some("https://a.example#/7")),
        ] {
            assert_eq!(redirect(rule, path, query).as_deref(), expected, "{rule} {path}");
        }
    }

    #[test]
    fn no_capture_leads_to_another_server_or_into_another_line() {
        assert_eq!(redirect("/old/* /*", "/old//evil.example/", None), None);
        for (path, expected) in [
            ("/old/%2Fevil.example", "/%2Fevil.example"),
            ("/old/%5Cevil.example", "/%5Cevil.example"),
            ("/old/\\evil.example", "/%5Cevil.example"),
        ] {
            assert_eq!(redirect("/old/* /*", path, None).as_deref(), Some(expected), "{path}");
        }
        let location = redirect("/old/* /new/*", "/old/%0d%0aSet-Cookie:%20a", None).unwrap();
        assert_eq!(location, "/new/%0D%0ASet-Cookie:%20a");
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for rule in [
            "",
            "/a",
            "/a /b 200",
            "/a /a",
            "/a/* /a/* 301",
            "/a /b 301 x",
            "a /b",
            "/a b",
            "/a /:x",
            "/a /*",
            "/a ftp://x",
            "/a/* //*",
        ] {
            assert!(rule.parse::<Redirect>().is_err(), "{rule}");
        }
        for rule in ["/a", "/a https://x/", "/a //x", "/a /b 301", "/a /b#c"] {
            assert!(rule.parse::<Rewrite>().is_err(), "{rule}");
        }
        assert_eq!("/a /b 302".parse::<Redirect>().unwrap().status.code(), 302);
    }
}
