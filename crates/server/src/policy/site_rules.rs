//! The rules of one site, as they are configured.

use super::{Cors, Pattern, Redirect, Rewrite, SecurityHeaders, preset};
use anyhow::ensure;
use pollux_http::fields::{Field, Fields};
use std::{borrow::Cow, fmt, str::FromStr};

/// The maximum number of rules of one kind: they are tried one after the other.
pub(crate) const RULES_MAX: usize = 1000;

/// The number of redirections that a browser follows for one request; other clients follow fewer.
const HOPS_MAX: usize = 20;
/// The maximum length of a path that is followed: servers refuse longer ones.
const PATH_BYTES_MAX: usize = 8 << 10;

/// The path rules of a site, besides serving its files. The default has no rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteRules {
    /// The first redirect that matches a path is applied.
    pub redirects: Vec<Redirect>,
    /// The first rewrite that matches a path is applied.
    pub rewrites: Vec<Rewrite>,
    /// The origins whose scripts may read this site.
    pub cors: Option<Cors>,
    /// Fields that protect visitors, in every response that the server itself generates.
    pub security_headers: Option<SecurityHeaders>,
    /// Fields of files, by the file's path.
    pub fields: Vec<PathField>,
    /// Files of the site that are sent with the status of an error.
    pub error_pages: Vec<ErrorPage>,
    /// The file that is served with 200 for a path that has no file, or leads to a directory without an index
    /// or a listing, and whose last segment has no dot: the page of a single-page application.
    pub fallback: Option<String>,
    /// Whether a directory without an index is listed.
    pub listing: bool,
}

impl SiteRules {
    /// Checks the number of rules of each kind, and the fallback.
    ///
    /// # Errors
    /// There are too many rules of a kind, which the message names, or the fallback does not begin with a
    /// slash.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        for (count, kind) in [
            (self.redirects.len(), "redirects"),
            (self.rewrites.len(), "rewrites"),
            (self.fields.len(), "fields for paths"),
            (self.error_pages.len(), "error pages"),
        ] {
            ensure!(count <= RULES_MAX, "{count} {kind}: at most {RULES_MAX} are allowed");
        }
        if let Some(fallback) = &self.fallback {
            ensure!(fallback.starts_with('/'), "--fallback {fallback}: a path begins with a slash");
        }
        Ok(())
    }

    /// Returns the indices of the redirects that send their clients from one path of this site to the next without
    /// an end. Each is tried with one path that it matches.
    pub(crate) fn endless_redirects(&self) -> Vec<usize> {
        let redirects = &self.redirects[..self.redirects.len().min(RULES_MAX)];
        let is_endless = |index: &usize| {
            let mut path = redirects[*index].example();
            for hop in 0..HOPS_MAX {
                let found = redirects.iter().enumerate().find_map(|(number, redirect)| {
                    redirect.apply(&path, None).map(|location| (number, location))
                });
                let Some((number, mut location)) = found else { return false };
                // If an earlier redirect matches the first path, this one is not tried. A URL is of another server,
                // or may be.
                if (hop == 0 && number != *index) || !location.starts_with(b"/") {
                    return false;
                }
                let end = location.iter().position(|byte| b"?#".contains(byte));
                location.truncate(end.unwrap_or(location.len()));
                if location.len() > PATH_BYTES_MAX {
                    break;
                }
                path = location;
            }
            true
        };
        (0..redirects.len()).filter(is_endless).collect()
    }

    /// Returns the lines, with CRLF, of the fields that protect visitors. Every response that the server
    /// itself generates has them. `has_tls` states whether clients use TLS.
    pub(crate) fn safety_fields(&self, own: &[(String, String)], has_tls: bool) -> Vec<u8> {
        let fields = self.security_headers.map(|preset| preset.fields(own, has_tls));
        lines_of(fields.unwrap_or_default())
    }

    /// Returns the lines, with CRLF, for scripts of other sites, except those that the site sets itself.
    /// Responses have them unless a service has its own list of origins.
    pub(crate) fn cors_fields(&self, own: &[(String, String)]) -> Vec<u8> {
        let mut fields = self.cors.as_ref().map(Cors::fields).unwrap_or_default();
        // Vary is a list.
        let is_set = |name: &str| own.iter().any(|(set, _)| set.eq_ignore_ascii_case(name));
        fields.retain(|(name, _)| name == "Vary" || !is_set(name));
        lines_of(fields)
    }

    /// Returns the field lines, with CRLF, of the file at `path`, which begins with a slash and is not
    /// encoded.
    pub(crate) fn fields_of_file(&self, path: &[u8]) -> Vec<u8> {
        let mut lines = Vec::new();
        for field in self.fields.iter().filter(|field| field.pattern.matches_file(path)) {
            lines.extend_from_slice(format!("{}: {}\r\n", field.name, field.value).as_bytes());
        }
        lines
    }

    /// Returns `common`, the lines of the fields of every response, without those that `of_path`, the lines
    /// of a file's own fields, replaces.
    pub(crate) fn without_replaced<'l>(common: &'l [u8], of_path: &[u8]) -> Cow<'l, [u8]> {
        let is_replaced = |field: &Field<'_>| {
            Fields::new(of_path).any(|own| own.is(field.name)) && is_of_site(field.name)
        };
        if !Fields::new(common).any(|field| is_replaced(&field)) {
            return Cow::Borrowed(common);
        }
        let kept = Fields::new(common).filter(|field| !is_replaced(field));
        let line = |field: Field<'_>| [field.name, b": ", field.value, b"\r\n"].concat();
        Cow::Owned(kept.flat_map(line).collect())
    }

    /// Returns the path of the page for an error.
    pub(crate) fn error_page(&self, status: u16) -> Option<&str> {
        self.error_pages.iter().find(|page| page.status == status).map(|page| page.path.as_str())
    }
}

/// Returns whether a field of this name for a path replaces that of the whole site, which is from
/// `--security-headers`, `--hsts` or `--cors`: browsers refuse such a field, or use the stricter value, if a
/// response has it twice (RFC 9110 §5.3 forbids that).
fn is_of_site(name: &[u8]) -> bool {
    const CORS: [&str; 2] = ["Access-Control-Allow-Origin", "Access-Control-Allow-Credentials"];
    preset::names().chain(CORS).any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
}

/// A field of the files whose paths a pattern matches: `PATTERN NAME: VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathField {
    pattern: Pattern,
    name: String,
    value: String,
}

/// The fields that the server writes itself.
const OURS: [&str; 12] = [
    "accept-ranges",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "last-modified",
    "server",
    "transfer-encoding",
    "vary",
];

impl FromStr for PathField {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted =
            "expected PATTERN NAME: VALUE, such as \"/assets/* Cache-Control: max-age=31536000\"";
        let (pattern, field) = text.trim().split_once(' ').ok_or(wanted)?;
        let (name, value) = field.split_once(':').ok_or(wanted)?;
        let (name, value) = (name.trim(), value.trim());
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            return Err(format!("{name:?} is no field name"));
        }
        if OURS.contains(&name.to_ascii_lowercase().as_str()) {
            return Err(format!("{name}: the server writes this field itself"));
        }
        if !value.bytes().all(|byte| byte == b'\t' || (b' '..0x7f).contains(&byte)) {
            return Err(format!("{name}: its value holds characters other than printable ASCII"));
        }
        Ok(Self { pattern: pattern.parse()?, name: name.into(), value: value.into() })
    }
}

impl fmt::Display for PathField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.pattern, self.name, self.value)
    }
}

/// A file of the site that is sent with an error's status: `STATUS PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPage {
    status: u16,
    path: String,
}

impl ErrorPage {
    /// Returns the path of the file in the site.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for ErrorPage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = "expected STATUS PATH, such as \"404 /404.html\"";
        let (status, path) = text.trim().split_once([' ', '=']).ok_or(wanted)?;
        let status = status.parse().ok().filter(|status| (400..600).contains(status));
        let status = status.ok_or("an error's status is from 400 to 599")?;
        let path = path.trim();
        if !path.starts_with('/') {
            return Err(format!("{path}: the path of a file in the site begins with a slash"));
        }
        Ok(Self { status, path: path.into() })
    }
}

impl fmt::Display for ErrorPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.path)
    }
}

fn lines_of(fields: Vec<(String, String)>) -> Vec<u8> {
    let line = |(name, value): (String, String)| format!("{name}: {value}\r\n").into_bytes();
    fields.into_iter().flat_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_a_path_replaces_that_of_the_site() {
        let common =
            b"Server: a\r\nX-Frame-Options: DENY\r\nX-A: 1\r\nAccess-Control-Allow-Origin: *\r\n";
        let kept = |of_path: &[u8]| SiteRules::without_replaced(common, of_path).into_owned();
        assert_eq!(kept(b""), common);
        // Other fields may be lists.
        assert_eq!(kept(b"X-A: 2\r\n"), common);
        assert_eq!(
            kept(b"x-frame-options: SAMEORIGIN\r\nACCESS-CONTROL-ALLOW-ORIGIN: https://a\r\n"),
            b"Server: a\r\nX-A: 1\r\n"
        );
    }

    /// Regression: only a redirect whose FROM and TO are the same text was noticed.
    #[test]
    fn redirects_that_never_end_are_found() {
        let cases: [(&[&str], &[usize]); 11] = [
            (&["/* /maintenance.html"], &[0]),
            (&["/a/* /a/new/*"], &[0]),
            (&["/:a/* /:a/*/*"], &[0]),
            (&["/a /%61?b#c"], &[0]),
            (&["/a /b", "/b /a", "/c /a"], &[0, 1, 2]),
            (&["/a /b", "/b /c"], &[]),
            (&["/a/* /*", "/:a/* /*"], &[]),
            (&["/* https://a.example/*"], &[]),
            (&["/a /b 301", "/* https://a.example/"], &[]),
            (&["/en/x /home", "/:language/x /en/x"], &[]),
            (&["/x /home/", "/:page /x"], &[]),
        ];
        for (rules, expected) in cases {
            let redirects = rules.iter().map(|rule| rule.parse().unwrap()).collect();
            let found = SiteRules { redirects, ..SiteRules::default() }.endless_redirects();
            assert_eq!(found, expected, "{rules:?}");
        }
    }

    #[test]
    fn rules_are_read_and_written() {
        let field: PathField = "/a/*  X-A:  b c ".parse().unwrap();
        assert_eq!(field.to_string(), "/a/* X-A: b c");
        for text in
            ["", "/a", "/a X-A", "/a Date: x", "/a Vary: x", "/a X A: b", "/a X: \u{e9}", "a X: b"]
        {
            assert!(text.parse::<PathField>().is_err(), "{text}");
        }
        assert_eq!("404=/404.html".parse::<ErrorPage>().unwrap().to_string(), "404 /404.html");
        for text in ["", "404", "200 /a", "abc /a", "404 a"] {
            assert!(text.parse::<ErrorPage>().is_err(), "{text}");
        }
        let rules = SiteRules {
            fields: vec![field],
            error_pages: vec!["404 /e".parse().unwrap()],
            cors: Some("*".parse().unwrap()),
            ..SiteRules::default()
        };
        assert_eq!(rules.fields_of_file(b"/a/%41"), b"X-A: b c\r\n");
        assert!(rules.fields_of_file(b"/b").is_empty());
        assert_eq!((rules.error_page(404), rules.error_page(403)), (Some("/e"), None));
        assert_eq!(rules.cors_fields(&[]), b"Access-Control-Allow-Origin: *\r\n");
        let own = [("access-control-allow-origin".to_owned(), "https://a.example".to_owned())];
        assert!(rules.cors_fields(&own).is_empty());
        rules.check().unwrap();
        let many = SiteRules { fallback: Some("x".into()), ..SiteRules::default() };
        assert!(many.check().is_err());
    }
}
