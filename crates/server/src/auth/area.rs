//! The areas of a site that have passwords, and the search for the area of a path.

use super::Users;
use anyhow::{bail, ensure};
use pollux_http::{
    path::{SafePath, decode_segment},
    request::Target,
};
use std::{
    cmp::Reverse,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

/// The maximum number of areas of one site.
const AREAS_MAX: usize = 64;

/// A password file, and the paths that need its passwords: `FILE` or `/PREFIX=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicAuth {
    /// The prefix without a slash at its end; empty for the whole site.
    prefix: String,
    /// The file with the users and the hashes.
    file: PathBuf,
}

impl BasicAuth {
    /// Returns the file with the users and the hashes.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns whether the same paths need the passwords of both files.
    pub(crate) fn is_for_paths_of(&self, other: &Self) -> bool {
        self.plain_prefix() == other.plain_prefix()
    }

    /// Returns the area whose password a request for `path` needs; `None` if it needs none.
    pub(crate) fn of_path<'a>(
        areas: impl Iterator<Item = &'a Self>,
        path: &str,
    ) -> Option<&'a Self> {
        let mut scratch = Vec::new();
        let path = SafePath::new(path.as_bytes(), &mut scratch).ok()?;
        let path = plain(path.as_bytes().split(|byte| *byte == b'/'));
        areas
            .filter(|area| is_below(&path, &area.plain_prefix()))
            .max_by_key(|area| area.plain_prefix().len())
    }

    /// Returns whether this is the area of all paths for which there is no other one.
    pub(crate) fn is_whole_site(&self) -> bool {
        self.plain_prefix().is_empty()
    }

    /// Returns the prefix in the form that [`plain`] returns.
    fn plain_prefix(&self) -> Vec<u8> {
        plain(self.prefix.as_bytes().split(|byte| *byte == b'/'))
    }

    /// Returns `text` with its file name, if that is relative, resolved against `directory`.
    pub(crate) fn below(text: &str, directory: &Path) -> String {
        match text.parse::<Self>() {
            Ok(Self { prefix, file }) => Self { prefix, file: directory.join(file) }.to_string(),
            Err(_) => text.into(),
        }
    }
}

impl FromStr for BasicAuth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (prefix, file) = match text.split_once('=') {
            Some((prefix, file)) if text.starts_with('/') => (prefix.trim_end_matches('/'), file),
            _ => ("", text),
        };
        if file.is_empty() {
            return Err("expected FILE or /PREFIX=FILE".into());
        }
        // Paths are compared decoded and without `;` parameters, so a prefix with these characters would be
        // misleading.
        if prefix.bytes().any(|byte| byte.is_ascii_control() || b"%?#\\;".contains(&byte)) {
            return Err(format!(
                "the prefix {prefix} is a path as it is after decoding, without %, ?, #, ; and backslashes"
            ));
        }
        if prefix.split('/').skip(1).any(|part| part.is_empty() || part.ends_with(['.', ' '])) {
            return Err(format!(
                "a segment of the prefix {prefix} is empty or ends in a dot or space"
            ));
        }
        Ok(Self { prefix: prefix.into(), file: file.into() })
    }
}

impl fmt::Display for BasicAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/={}", self.prefix, self.file.display())
    }
}

/// The areas of a site.
#[derive(Debug)]
pub(super) struct Areas {
    /// All areas, sorted: the longest prefixes first.
    all: Vec<Area>,
}

#[derive(Debug)]
struct Area {
    /// The prefix in the form that [`plain`] returns.
    prefix: Vec<u8>,
    users: Arc<Users>,
}

/// The error for a path whose area depends on how the path is read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ambiguous;

impl Areas {
    /// # Errors
    /// There are too many areas, or two areas have the same prefix.
    pub(super) fn new(areas: Vec<(&BasicAuth, Arc<Users>)>) -> anyhow::Result<Self> {
        ensure!(areas.len() <= AREAS_MAX, "basic-auth: more than {AREAS_MAX} prefixes");
        let area = |(area, users): (&BasicAuth, _)| Area { prefix: area.plain_prefix(), users };
        let mut all: Vec<_> = areas.into_iter().map(area).collect();
        all.sort_by(|a, b| {
            (Reverse(a.prefix.len()), &a.prefix).cmp(&(Reverse(b.prefix.len()), &b.prefix))
        });
        if let Some(pair) = all.windows(2).find(|pair| pair[0].prefix == pair[1].prefix) {
            let prefix = String::from_utf8_lossy(&pair[0].prefix);
            bail!("basic-auth: two files for {prefix}/: put all users into one");
        }
        Ok(Self { all })
    }

    /// Returns the users of the area with this number.
    pub(super) fn users(&self, area: usize) -> &Arc<Users> {
        &self.all[area].users
    }

    /// Returns the number of the area of a request, or `None` if the request needs no password.
    ///
    /// # Errors
    /// Two ways to read the path lead to different areas, or the path is not safe and the site is not one
    /// single area.
    pub(super) fn find(&self, target: &Target<'_>) -> Result<Option<usize>, Ambiguous> {
        let whole = self.all.iter().position(|area| area.prefix.is_empty());
        // `OPTIONS *` concerns the whole site.
        let Target::Path { path, .. } = target else { return Ok(whole) };
        let mut scratch = Vec::new();
        let Ok(safe) = SafePath::new(path, &mut scratch) else {
            // Services refuse such a path, but an origin may read it as another path.
            return if self.all.len() == 1 && whole.is_some() { Ok(whole) } else { Err(Ambiguous) };
        };
        let read = self.area_of(&plain(safe.as_bytes().split(|byte| *byte == b'/')));
        if safe.is_canonical() {
            return Ok(read);
        }
        let mut decoded = Vec::new();
        for segment in path.split(|byte| *byte == b'/') {
            let mut bytes = Vec::new();
            decode_segment(segment, &mut bytes).map_err(|_| Ambiguous)?;
            decoded.push(bytes);
        }
        let written = self.area_of(&plain(decoded.iter().map(Vec::as_slice)));
        match (read, written) {
            (Some(read), Some(written)) if read != written => Err(Ambiguous),
            (read, written) => Ok(read.or(written)),
        }
    }

    fn area_of(&self, path: &[u8]) -> Option<usize> {
        self.all.iter().position(|area| is_below(path, &area.prefix))
    }
}

/// Returns whether `path` is `prefix` or below it; both have the form that [`plain`] returns.
fn is_below(path: &[u8], prefix: &[u8]) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Converts decoded segments into a form for comparison: paths that an origin or a file system could take for
/// the same path become equal. Segments that consist only of dots and spaces are dropped, like empty ones.
/// The result has no slash at its end.
fn plain<'s>(segments: impl Iterator<Item = &'s [u8]>) -> Vec<u8> {
    let mut path = Vec::new();
    for segment in segments {
        let named = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        let end = named.iter().rposition(|byte| !b". ".contains(byte)).map_or(0, |last| last + 1);
        if end > 0 {
            path.push(b'/');
            path.extend(named[..end].iter().map(u8::to_ascii_lowercase));
        }
    }
    path
}

#[cfg(test)]
mod tests;
