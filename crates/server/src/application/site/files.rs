//! The files that are served: paths to representations, through a bounded cache.
//!
//! Each worker has a site of its own, so that a lookup takes no lock and a hit touches no memory
//! that another CPU writes. The price is memory: a file that is asked of every worker is held once
//! by each; `cache_bytes` is of each worker. The units of a pool are given a part each, and a unit that
//! lives for one connection has none: it would be thrown away with the unit.

mod load;
mod representation;
mod tree;

pub(crate) use representation::{Representation, SIBLINGS};
pub(crate) use tree::Tree;

use crate::config::SiteConfig;
use pollux_http::{
    Status,
    accept_encoding::{Coding, Preferences},
    path::SafePath,
    request::{Known, Request},
};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter, unsync};
use std::{cell::Cell, ffi::CString, rc::Rc, sync::Arc};
use tree::Stamp;

/// A cached file is compared with the one on disk when it was last so long ago, in ticks: well
/// within the second in which a change is to be seen.
const REVALIDATE_TICKS: u32 = 5;
/// Files up to this length are held in memory; longer ones are held open and sent by sendfile(2).
pub(crate) const MEMORY_FILE_MAX: u64 = 256 << 10;
/// Expected size of a cached resource, from which the cache sizes its first table.
const EXPECTED_BYTES: u64 = 16 << 10;

/// What is found at a path: a file with its precompressed siblings.
#[derive(Debug)]
pub(crate) struct Resource {
    /// The file itself.
    pub(crate) identity: Rc<Representation>,
    /// Its siblings, in the order of [`SIBLINGS`].
    pub(crate) encoded: Vec<(Coding, Rc<Representation>)>,
    /// The files that it depends on, as they were; also those that were not there.
    sources: Vec<(CString, Option<Stamp>)>,
    /// Its path, decoded, holds a `%`; as a request's path the same octets mean another.
    key_has_percent: bool,
    /// The tick of the last comparison with the disk.
    checked_at: Cell<u32>,
    /// A source was modified just before it was read: a second change within the grain of the
    /// file system's clock would leave the same stamp, so it is read once more.
    is_young: bool,
}

/// Why there is no resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// A directory, asked for without its slash.
    NeedsSlash,
    /// A directory without an index: there is nothing to show.
    NoIndex,
    /// Answer with this.
    Status(Status),
}

/// The files below one directory.
#[derive(Debug)]
pub(crate) struct Files {
    tree: Arc<Tree>,
    config: SiteConfig,
    common_fields: Vec<u8>,
    cache: unsync::Cache<Box<[u8]>, Rc<Resource>, Weight>,
}

/// Bytes of memory; and such a share of the capacity for each open file that no more are open than
/// [`SiteConfig::open_files`] says.
#[derive(Clone, Debug)]
struct Weight {
    of_open_file: u64,
}

impl Weighter<Box<[u8]>, Rc<Resource>> for Weight {
    fn weight(&self, key: &Box<[u8]>, resource: &Rc<Resource>) -> u64 {
        let all = std::iter::once(&resource.identity)
            .chain(resource.encoded.iter().map(|(_, representation)| representation));
        let own = size_of::<Resource>() + key.len();
        let sources: usize = resource.sources.iter().map(|(path, _)| path.count_bytes() + 64).sum();
        (own + sources) as u64
            + all
                .map(|representation| {
                    let open = if representation.is_in_memory() { 0 } else { self.of_open_file };
                    representation.memory_bytes() + open
                })
                .sum::<u64>()
    }
}

impl Resource {
    /// Whether one of its files is held open.
    fn holds_files(&self) -> bool {
        let encoded = self.encoded.iter().map(|(_, representation)| representation);
        encoded.chain([&self.identity]).any(|representation| !representation.is_in_memory())
    }

    /// The representation that `request` prefers.
    #[inline]
    pub(crate) fn select(&self, request: &Request<'_>) -> &Rc<Representation> {
        if self.encoded.is_empty() || !request.has(Known::AcceptEncoding) {
            return &self.identity;
        }
        self.negotiate(request)
    }

    fn negotiate(&self, request: &Request<'_>) -> &Rc<Representation> {
        let preferences = Preferences::parse(request.values(Known::AcceptEncoding));
        let codings = self.encoded.iter().map(|(coding, _)| *coding);
        let chosen = preferences.choose(codings.chain([Coding::Identity]));
        self.encoded
            .iter()
            .find(|(coding, _)| Some(*coding) == chosen)
            // Also where nothing is taken: better the file than a 406 (RFC 9110 §12.5.3).
            .map_or(&self.identity, |(_, representation)| representation)
    }
}

impl Files {
    /// Those of `tree`. `common_fields` go into every head: lines with CRLF.
    ///
    /// # Errors
    /// When there can be no such cache.
    pub(crate) fn new(
        tree: Arc<Tree>,
        config: &SiteConfig,
        common_fields: Vec<u8>,
    ) -> anyhow::Result<Self> {
        let capacity = config.cache_bytes;
        let options = OptionsBuilder::new()
            .estimated_items_capacity((capacity / EXPECTED_BYTES).clamp(1, 1 << 16) as usize)
            .weight_capacity(capacity)
            .build()?;
        Ok(Self {
            tree,
            config: config.clone(),
            common_fields,
            cache: unsync::Cache::with_options(
                options,
                Weight { of_open_file: capacity.div_ceil(config.open_files.max(1)) },
                DefaultHashBuilder::default(),
                Default::default(),
            ),
        })
    }

    /// What is at `path`, which begins with a slash and is still percent-encoded.
    ///
    /// # Errors
    /// [`Miss`] says how to answer.
    #[inline]
    pub(crate) fn find(&mut self, path: &[u8], now_tick: u32) -> Result<Rc<Resource>, Miss> {
        // Keys are decoded paths: one that holds no `%` is its own decoding, or is no key.
        if let Some(resource) = self.cache.get(path)
            && !resource.key_has_percent
            && now_tick.wrapping_sub(resource.checked_at.get()) < REVALIDATE_TICKS
        {
            return Ok(resource.clone());
        }
        self.find_slowly(path, now_tick)
    }

    #[cold]
    #[inline(never)]
    fn find_slowly(&mut self, path: &[u8], now_tick: u32) -> Result<Rc<Resource>, Miss> {
        let mut scratch = Vec::new();
        let path =
            SafePath::new(path, &mut scratch).map_err(|reject| Miss::Status(reject.status))?;
        let key = path.as_bytes();
        if let Some(resource) = self.cache.get(key) {
            let is_fresh = now_tick.wrapping_sub(resource.checked_at.get()) < REVALIDATE_TICKS;
            if is_fresh || self.is_current(resource) {
                if !is_fresh {
                    resource.checked_at.set(now_tick);
                }
                return Ok(resource.clone());
            }
            self.cache.remove(key);
        }
        let mut resource = match self.load(&path, now_tick) {
            // No descriptor is left, perhaps: the cache gives back those that it holds.
            Err(Miss::Status(Status::ServiceUnavailable)) if self.let_go_of_open_files() => {
                self.load(&path, now_tick)?
            }
            outcome => outcome?,
        };
        resource.key_has_percent = key.contains(&b'%');
        let resource = Rc::new(resource);
        self.cache.insert(key.into(), resource.clone());
        Ok(resource)
    }

    /// Forgets what is sent from open files. Returns whether there was any.
    fn let_go_of_open_files(&mut self) -> bool {
        let before = self.cache.len();
        self.cache.retain(|_, resource| !resource.holds_files());
        self.cache.len() != before
    }

    fn is_current(&self, resource: &Resource) -> bool {
        !resource.is_young
            && resource.sources.iter().all(|(path, stamp)| self.tree.stamp(path) == *stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::TICK, config::Config};
    use std::{fs, time::Duration};

    #[test]
    fn changes_are_seen_within_a_second() {
        assert!(TICK * (REVALIDATE_TICKS + 1) < Duration::from_secs(1));
        let directory = tempfile::tempdir().unwrap();
        let config = Config::new(directory.path()).site;
        let tree = Tree::of(&config).unwrap().unwrap();
        let mut files = Files::new(tree, &config, Vec::new()).unwrap();
        let mut len = |tick| files.find(b"/file", tick).map(|found| found.identity.len()).ok();
        fs::write(directory.path().join("file"), "first").unwrap();
        assert_eq!(len(10), Some(5));
        fs::write(directory.path().join("file"), "second").unwrap();
        assert_eq!(len(10 + REVALIDATE_TICKS - 1), Some(5), "the disk is not asked each time");
        assert_eq!(len(10 + REVALIDATE_TICKS), Some(6));
        fs::remove_file(directory.path().join("file")).unwrap();
        assert_eq!(len(10 + 2 * REVALIDATE_TICKS), None);
    }
}
