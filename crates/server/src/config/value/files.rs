//! The files of a site and how they are served.

use crate::policy::SiteRules;
use pollux_http::accept_encoding::Coding;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf, str::FromStr};

/// How head and file share segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LargeFile {
    /// MSG_MORE on the head's send(2): no extra system call.
    #[default]
    MsgMore,
    /// TCP_CORK around both: two more setsockopt(2).
    Cork,
}

/// The files and how they are served.
#[derive(Clone, Debug)]
pub struct SiteConfig {
    /// The directory that is served. `None` serves no files: the site then consists of the front
    /// end's origins or a guestbook.
    pub directory: Option<PathBuf>,
    /// The file names that are tried for a directory, in order.
    pub index: Vec<String>,
    /// Which symbolic links are followed.
    pub symlinks: Symlinks,
    /// Whether files whose names begin with a dot are served. `/.well-known/` is always served (RFC
    /// 8615).
    pub dotfiles: bool,
    /// The memory in bytes for cached files, for all workers together. Content that several threads
    /// share counts once. Processes get equal parts. A worker of one connection caches at most 1
    /// MiB, for as long as the connection lasts, and holds no file open. 0 caches nothing.
    pub cache_bytes: u64,
    /// The maximum number of files that the cache holds open, which are those too long to be held
    /// in memory. It applies to each worker or process, or to all threads of a pool together. It is
    /// lower if the limit of open files is small.
    pub open_files: u64,
    /// Whether `FILE.zst`, `FILE.br` and `FILE.gz` are served instead of FILE to clients that
    /// accept these codings.
    pub precompressed: bool,
    /// The codings in which files are compressed at their first request; `None` compresses nothing.
    pub compress: Option<Compress>,
    /// Redirects, rewrites, error pages and other rules.
    pub rules: SiteRules,
}

/// Which symbolic links in the tree are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Symlinks {
    /// None.
    Deny,
    /// Relative ones that stay within the directory (openat2(2), RESOLVE_BENEATH). An absolute one is
    /// refused wherever it leads.
    #[default]
    Within,
    /// All, wherever they lead.
    Follow,
}

/// The codings in which files are compressed, the preferred one first: `zstd,br,gzip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compress {
    codings: Vec<Coding>,
}

impl Compress {
    /// Returns the codings, the preferred one first.
    pub(crate) fn codings(&self) -> &[Coding] {
        &self.codings
    }
}

impl Default for Compress {
    /// Returns all codings, those with the smallest results first.
    fn default() -> Self {
        Self { codings: vec![Coding::Zstd, Coding::Brotli, Coding::Gzip] }
    }
}

impl FromStr for Compress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut codings = Vec::new();
        for name in text.split(',').map(str::trim) {
            let coding = match name {
                "zstd" => Coding::Zstd,
                "br" | "brotli" => Coding::Brotli,
                "gzip" => Coding::Gzip,
                _ => return Err(format!("{name:?} is no coding: use zstd, br and gzip")),
            };
            if codings.contains(&coding) {
                return Err(format!("{name} is there twice: name each coding once"));
            }
            codings.push(coding);
        }
        Ok(Self { codings })
    }
}

impl fmt::Display for Compress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.codings.iter().map(|coding| coding.name()).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codings_are_read_and_written() {
        let compress: Compress = "gzip, brotli".parse().unwrap();
        assert_eq!(compress.codings(), [Coding::Gzip, Coding::Brotli]);
        assert_eq!(compress.to_string(), "gzip,br");
        assert_eq!(Compress::default().to_string(), "zstd,br,gzip");
        for text in ["", "deflate", "gzip,gzip", "zstd,"] {
            assert!(text.parse::<Compress>().is_err(), "{text}");
        }
    }
}
