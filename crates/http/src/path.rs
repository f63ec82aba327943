//! Safe request paths: percent-decoded once, with dot segments resolved within the root.
//!
//! - Percent-encoding is decoded once; an invalid encoding is rejected.
//! - `.` and `..`, encoded or not, are resolved within the root (RFC 3986 §5.2.4). A `..` above the
//!   root is rejected, although the RFC would drop it, because no honest client sends one.
//! - `%2F` is rejected: it is not a separator, and no file name contains it. A backslash, raw or
//!   encoded, is rejected because some clients treat it as a slash.
//! - NUL and other control characters are rejected.
//! - Empty segments (`//`) are dropped, as the file system would do.

use crate::{
    Reject,
    syntax::{PATH_SPECIAL, SLASH, SLASH_OR_DOT, classes_of, hex},
};

/// A path that cannot leave its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SafePath<'p> {
    path: &'p [u8],
    has_dotfile: bool,
    is_canonical: bool,
}

impl<'p> SafePath<'p> {
    /// Makes the path of a request safe. Borrows from `path` if nothing has to change, and
    /// otherwise from `scratch`, which is overwritten and grows at most to the length of `path`.
    ///
    /// # Errors
    /// 400 for the cases that the module documentation lists, and for a path that does not begin
    /// with `/`.
    ///
    /// ```
    /// use pollux_http::path::SafePath;
    ///
    /// let mut scratch = Vec::new();
    /// let path = SafePath::new(b"/a/./b%20c/../d/", &mut scratch)?;
    /// assert_eq!(path.as_bytes(), b"/a/d/");
    /// assert!(SafePath::new(b"/../etc/passwd", &mut scratch).is_err());
    /// # Ok::<(), pollux_http::Reject>(())
    /// ```
    #[inline]
    pub fn new(path: &'p [u8], scratch: &'p mut Vec<u8>) -> Result<Self, Reject> {
        if is_plain(path) {
            return Ok(Self { path, has_dotfile: false, is_canonical: true });
        }
        Self::resolve(path, scratch)
    }

    fn resolve(path: &'p [u8], scratch: &'p mut Vec<u8>) -> Result<Self, Reject> {
        let Some(rest) = path.strip_prefix(b"/") else {
            return Err(Reject::bad("the path does not begin with a slash"));
        };
        scratch.clear();
        scratch.push(b'/');
        let mut segments = rest.split(|&b| b == b'/').peekable();
        while let Some(segment) = segments.next() {
            let is_last = segments.peek().is_none();
            // `scratch` ends in a slash here.
            let start = scratch.len();
            decode_segment(segment, scratch)?;
            match &scratch[start..] {
                b"" => {}
                b"." => scratch.truncate(start),
                b".." => {
                    scratch.truncate(start - 1);
                    let Some(parent) = scratch.iter().rposition(|&b| b == b'/') else {
                        return Err(Reject::bad("the path leaves the root"));
                    };
                    scratch.truncate(parent + 1);
                }
                _ if is_last => {}
                _ => scratch.push(b'/'),
            }
        }
        let is_canonical = scratch[..] == *path;
        Ok(Self { path: scratch, has_dotfile: has_dotfile(scratch), is_canonical })
    }

    /// The decoded path. It begins with `/` and has no empty, `.` or `..` segment and no NUL. Other
    /// bytes may occur; file names need not be UTF-8.
    pub fn as_bytes(&self) -> &'p [u8] {
        self.path
    }

    /// The path without its leading slash, for openat(2) relative to the root; empty for the root.
    pub fn relative(&self) -> &'p [u8] {
        &self.path[1..]
    }

    /// Whether the path ends in `/`.
    pub fn is_directory(&self) -> bool {
        self.path.ends_with(b"/")
    }

    /// Whether a segment begins with a dot, except `/.well-known` (RFC 8615).
    pub fn has_dotfile(&self) -> bool {
        self.has_dotfile
    }

    /// Whether the request's path already had this form, byte by byte.
    pub fn is_canonical(&self) -> bool {
        self.is_canonical
    }
}

/// Whether nothing has to be decoded, resolved, dropped or rejected, and no segment is a dotfile.
#[inline]
fn is_plain(path: &[u8]) -> bool {
    // After a slash, another slash or a dot must be resolved, too.
    let mut special = PATH_SPECIAL;
    path.first() == Some(&b'/')
        && path.iter().all(|&b| {
            let classes = classes_of(b);
            let is_plain = classes & special == 0;
            special = if classes & SLASH != 0 { PATH_SPECIAL | SLASH_OR_DOT } else { PATH_SPECIAL };
            is_plain
        })
}

/// Appends a segment of a path to `out`, percent-decoded once.
///
/// # Errors
/// 400 for an invalid encoding, a slash, a backslash or a control character.
pub fn decode_segment(segment: &[u8], out: &mut Vec<u8>) -> Result<(), Reject> {
    let mut rest = segment;
    while let [first, tail @ ..] = rest {
        let (byte, tail) = match (first, tail) {
            (b'%', [high, low, tail @ ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, tail),
                _ => return Err(Reject::bad("invalid percent-encoding in the path")),
            },
            (b'%', _) => return Err(Reject::bad("invalid percent-encoding in the path")),
            (byte, tail) => (*byte, tail),
        };
        match byte {
            b'/' => return Err(Reject::bad("an encoded slash in the path")),
            b'\\' => return Err(Reject::bad("a backslash in the path")),
            0..=0x1f | 0x7f => return Err(Reject::bad("a control character in the path")),
            _ => out.push(byte),
        }
        rest = tail;
    }
    Ok(())
}

fn has_dotfile(path: &[u8]) -> bool {
    path.split(|&b| b == b'/')
        .enumerate()
        // The first segment is the empty one before the leading slash.
        .any(|(i, segment)| segment.starts_with(b".") && !(i == 1 && segment == b".well-known"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is(path: &str, expected: &str) {
        let mut scratch = Vec::new();
        let safe = SafePath::new(path.as_bytes(), &mut scratch).unwrap();
        assert_eq!(safe.as_bytes(), expected.as_bytes(), "{path}");
        assert_eq!(safe.is_canonical(), path == expected, "{path}");
        assert_eq!(safe.is_directory(), expected.ends_with('/'));
        assert_eq!(safe.relative(), &expected.as_bytes()[1..]);
    }

    #[test]
    fn dot_segments_of_rfc_3986_5_2_4() {
        is("/", "/");
        is("/a/b.c", "/a/b.c");
        is("/a/b/c/./../../g", "/a/g");
        is("/a/..", "/");
        is("/a/b/..", "/a/");
        is("/a/.", "/a/");
        is("/.", "/");
        is("/a/%2e%2E/b", "/b");
        is("/a/.%2e", "/");
        is("/...", "/...");
        is("/a../b", "/a../b");
        is("/..a", "/..a");
        is("//a///b//", "/a/b/");
        is("/a//../b", "/b");
    }

    #[test]
    fn decoding_is_done_once() {
        is("/a%20b", "/a b");
        is("/%61", "/a");
        is("/%252e%252e/x", "/%2e%2e/x");
        is("/%25", "/%");
        is("/caf%C3%A9", "/café");
        is("/a+b", "/a+b");
        is("/%3f%23", "/?#");
        let mut scratch = Vec::new();
        assert_eq!(SafePath::new(b"/%ff", &mut scratch).unwrap().as_bytes(), b"/\xff");
    }

    #[test]
    fn unsafe_paths_are_rejected() {
        for path in [
            "",
            "a",
            "/..",
            "/../",
            "/a/../..",
            "/%2e%2e/",
            "/..%2fetc",
            "/a%2Fb",
            "/a%5cb",
            "/a\\b",
            "/%00",
            "/a%0d%0ab",
            "/%7f",
            "/%",
            "/%4",
            "/%zz",
            "/%4g",
            "/a%",
            "/a\0b",
            "/a/../../b",
            "/./..",
            "//..",
            "/%2e%2e%2f",
            "/a/%2e%2e/%2e%2e/",
            "/%u0041",
            "/a\nb",
        ] {
            let mut scratch = Vec::new();
            let got = SafePath::new(path.as_bytes(), &mut scratch);
            assert!(got.is_err(), "{path:?}: {got:?}");
        }
    }

    #[test]
    fn dotfiles_are_recognised() {
        for (path, expected) in [
            ("/.git/config", true),
            ("/a/.htaccess", true),
            ("/%2egit", true),
            ("/a/..b/c", true),
            ("/.well-known/acme", false),
            ("/.well-known", false),
            ("/.well-known/.x", true),
            ("/a/.well-known/x", true),
            ("/.well-knownx", true),
            ("/a.b/c.", false),
            ("/a/./b", false),
            ("/.git/../a", false),
        ] {
            let mut scratch = Vec::new();
            let safe = SafePath::new(path.as_bytes(), &mut scratch).unwrap();
            assert_eq!(safe.has_dotfile(), expected, "{path}");
        }
    }

    #[test]
    fn a_plain_path_is_borrowed() {
        let mut scratch = Vec::new();
        SafePath::new(b"/a/b/c.html", &mut scratch).unwrap();
        assert_eq!(scratch.capacity(), 0);
    }
}
