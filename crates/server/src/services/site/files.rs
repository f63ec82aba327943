//! The files that are served: paths to representations, through a bounded cache.
//!
//! Each worker has its own site with an index of paths, so that a lookup takes no lock and a hit touches no
//! memory that another CPU writes. If the index has no entry, the worker looks in the `contents` that all
//! threads of the process share: so each file is read once and is in memory once. A worker that serves one
//! connection has a small index for the duration of that connection.

mod contents;
mod load;
mod representation;
mod tree;
mod variant;

pub(crate) use contents::{Contents, Key};
pub(crate) use representation::{Representation, SIBLINGS};
pub(crate) use tree::{FileVersion, Tree, version_of};

use super::compress::background::SHARE;
use crate::{
    config::SiteConfig,
    policy::{SiteRules, listing},
};
use contents::Charge;
use pollux_http::{
    Status,
    accept_encoding::{Coding, Preferences},
    path::SafePath,
    request::{KnownField, Request},
};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter, unsync};
use std::{cell::Cell, ffi::CString, rc::Rc, sync::Arc};
use variant::Compressible;

/// A cached file is compared with the one on disk when the last comparison was this long ago, in ticks: well
/// within the second in which a change must become visible.
const REVALIDATE_TICKS: u32 = 5;
/// Files up to this length are held in memory; longer ones are held open and sent by sendfile(2).
pub(crate) const MEMORY_FILE_MAX: u64 = 256 << 10;
/// The expected size of a cached resource, from which the cache derives the size of its first table.
const EXPECTED_BYTES: u64 = 16 << 10;

/// The resource at a path: a file with its precompressed siblings.
#[derive(Debug)]
pub(crate) struct Resource {
    /// The file itself.
    pub(crate) identity: Rc<Representation>,
    /// Its siblings, in the order of [`SIBLINGS`].
    pub(crate) encoded: Vec<(Coding, Rc<Representation>)>,
    /// The files on which it depends, with their versions when it was loaded; `None` for files that did not
    /// exist.
    sources: Vec<(CString, Option<FileVersion>)>,
    /// Whether its decoded path contains a `%`: the same bytes in a request mean another path.
    key_has_percent: bool,
    /// The tick of the last comparison with the disk.
    checked_at: Cell<u32>,
    /// Whether a source was modified just before it was read: a second change within the resolution of the
    /// file system's clock would leave the same version, so the source is read again. The same holds for a
    /// source with a weak entity tag, whose tag is strong when the source is older.
    is_young: bool,
    /// The data for compressing it for clients that accept a coding; `None` if it is never compressed.
    compressible: Option<Box<Compressible>>,
    /// The charge for its entry in the index.
    charge: Option<Charge>,
}

/// The reason why there is no resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// A directory, requested without its slash.
    NeedsSlash,
    /// A directory without an index file.
    NoIndex,
    /// Answer with this status.
    Status(Status),
}

/// The files below one directory.
#[derive(Debug)]
pub(crate) struct Files {
    tree: Arc<Tree>,
    config: SiteConfig,
    common_fields: Vec<u8>,
    contents: Arc<Contents>,
    cache: unsync::Cache<Box<[u8]>, Rc<Resource>, Weight>,
}

/// The weight of a resource: its bytes of memory, and for each open file such a share of the capacity that at
/// most [`SiteConfig::open_files`] files are open.
#[derive(Clone, Debug)]
struct Weight {
    of_open_file: u64,
}

impl Weighter<Box<[u8]>, Rc<Resource>> for Weight {
    fn weight(&self, key: &Box<[u8]>, resource: &Rc<Resource>) -> u64 {
        let of_one = |representation: &Rc<Representation>| {
            let open = if representation.is_in_memory() { 0 } else { self.of_open_file };
            representation.memory_bytes() + open
        };
        resource.base_bytes(key) + resource.all().map(of_one).sum::<u64>()
    }
}

impl Resource {
    fn all(&self) -> impl Iterator<Item = &Rc<Representation>> {
        let encoded = self.encoded.iter().map(|(_, representation)| representation);
        encoded.chain([&self.identity])
    }

    /// Returns whether one of its entity tags is weak.
    fn has_weak_tag(&self) -> bool {
        self.all().any(|representation| representation.has_weak_tag())
    }

    /// Returns whether one of its files is held open.
    fn holds_files(&self) -> bool {
        self.all().any(|representation| !representation.is_in_memory())
    }

    /// Returns the bytes of memory that it uses without its representations.
    fn base_bytes(&self, key: &[u8]) -> u64 {
        let sources: usize = self.sources.iter().map(|(path, _)| path.count_bytes() + 64).sum();
        let compressible = self.compressible.as_ref().map_or(0, |this| this.bytes());
        (size_of::<Self>() + key.len() + sources + compressible) as u64
    }

    /// Returns the bytes of memory that this worker alone uses for it; other workers may share the rest.
    fn own_bytes(&self, key: &[u8]) -> u64 {
        let of_all = self.all().map(|representation| representation.own_bytes());
        self.base_bytes(key) + of_all.sum::<u64>()
    }

    /// Returns the representation that `request` prefers.
    #[inline]
    pub(crate) fn select(&self, request: &Request<'_>) -> &Rc<Representation> {
        if self.encoded.is_empty() || !request.has(KnownField::AcceptEncoding) {
            return &self.identity;
        }
        self.negotiate(request)
    }

    fn negotiate(&self, request: &Request<'_>) -> &Rc<Representation> {
        let preferences = Preferences::parse(request.values(KnownField::AcceptEncoding));
        let codings = self.encoded.iter().map(|(coding, _)| *coding);
        let chosen = preferences.choose(codings.chain([Coding::Identity]));
        self.encoded
            .iter()
            .find(|(coding, _)| Some(*coding) == chosen)
            // The file is sent also if the client accepts no coding: that is better than a 406 (RFC 9110
            // §12.5.3).
            .map_or(&self.identity, |(_, representation)| representation)
    }
}

impl Files {
    /// Creates the files of `tree`. `common_fields` are part of every head: lines with CRLF. `contents` is
    /// shared with other workers that have the same fields.
    ///
    /// # Errors
    /// The cache cannot be created.
    pub(crate) fn new(
        tree: Arc<Tree>,
        contents: Arc<Contents>,
        config: &SiteConfig,
        common_fields: Vec<u8>,
    ) -> anyhow::Result<Self> {
        // Results that a thread has compressed wait outside the index until the index takes them.
        let waiting = if config.compress.is_some() { config.cache_bytes / SHARE } else { 0 };
        let capacity = config.cache_bytes - waiting;
        let options = OptionsBuilder::new()
            .estimated_items_capacity((capacity / EXPECTED_BYTES).clamp(1, 1 << 16) as usize)
            .weight_capacity(capacity)
            .build()?;
        Ok(Self {
            tree,
            config: config.clone(),
            common_fields,
            contents,
            cache: unsync::Cache::with_options(
                options,
                Weight { of_open_file: capacity.div_ceil(config.open_files.max(1)) },
                DefaultHashBuilder::default(),
                Default::default(),
            ),
        })
    }

    /// Returns the site's rules.
    pub(crate) fn rules(&self) -> &SiteRules {
        &self.config.rules
    }

    /// Returns the entries of the directory at `path`, and whether there are more. Dotfiles are left out if
    /// they are not served, and so are links to forbidden places.
    ///
    /// # Errors
    /// The status for the response.
    pub(crate) fn list(
        &self,
        path: &SafePath<'_>,
    ) -> Result<(Vec<listing::ListingEntry>, bool), Status> {
        self.tree.list(path.relative())
    }

    /// Returns the resource at `path`, which begins with a slash and is still percent-encoded.
    ///
    /// # Errors
    /// [`Miss`] says how to answer.
    #[inline]
    pub(crate) fn find(&mut self, path: &[u8], now_tick: u32) -> Result<Rc<Resource>, Miss> {
        // Keys are decoded paths. If a key equals the path of the request and contains no `%`, that path is
        // its own decoding.
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
            // Perhaps no descriptor is left: the cache closes the files that it holds open.
            Err(Miss::Status(Status::ServiceUnavailable)) if self.let_go_of_open_files() => {
                self.load(&path, now_tick)?
            }
            outcome => outcome?,
        };
        resource.key_has_percent = key.contains(&b'%');
        let is_kept = self.may_keep(key, &mut resource);
        let resource = Rc::new(resource);
        if is_kept {
            self.cache.insert(key.into(), resource.clone());
        }
        Ok(resource)
    }

    /// Returns whether the index may have this resource. If so, the resource is charged to the budget.
    fn may_keep(&mut self, key: &[u8], resource: &mut Resource) -> bool {
        if !self.keeps_any()
            || (self.config.open_files == 0 && resource.holds_files())
            || !resource.all().all(|representation| representation.is_charged())
        {
            return false;
        }
        let bytes = resource.own_bytes(key);
        resource.charge = self.with_room(bytes, |contents, taken| contents.charge(bytes, taken));
        resource.charge.is_some()
    }

    /// Returns whether there is an index at all.
    fn keeps_any(&self) -> bool {
        self.cache.capacity() > 0
    }

    /// Calls `take`, which gets `bytes` bytes from the contents. If there is no room for them, the index of
    /// this worker first evicts as many bytes, from the entries that are requested least. If other workers
    /// have the same contents, that frees no memory, and this file is not kept. The index has become smaller
    /// nevertheless, so that there is room after some more such files.
    fn with_room<T>(
        &mut self,
        bytes: u64,
        take: impl Fn(&Arc<Contents>, u64) -> Option<T>,
    ) -> Option<T> {
        if !self.keeps_any() {
            return None;
        }
        if let Some(taken) = take(&self.contents, self.cache.weight()) {
            return Some(taken);
        }
        let capacity = self.cache.capacity();
        if bytes > capacity || self.cache.is_empty() {
            return None;
        }
        // The capacity is not set to 0: from that, the cache would not regain the proportions of its parts.
        self.cache.set_capacity(self.cache.weight().saturating_sub(bytes).max(1));
        self.cache.set_capacity(capacity);
        take(&self.contents, self.cache.weight())
    }

    /// Removes the resources that hold files open. Returns whether there were any.
    fn let_go_of_open_files(&mut self) -> bool {
        let before = self.cache.len();
        self.cache.retain(|_, resource| !resource.holds_files());
        self.cache.len() != before
    }

    fn is_current(&self, resource: &Resource) -> bool {
        !resource.is_young
            && resource.sources.iter().all(|(path, version)| self.tree.version(path) == *version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{settings::Settings, time::clock::TICK};
    use pollux_sys::{Call, counters};
    use pollux_testkit::http::PATIENCE;
    use representation::PreparedContent;
    use std::{
        fs::{self, File},
        path::Path,
        thread,
        time::{Duration, Instant, UNIX_EPOCH},
    };

    /// Writes a file that was modified this many seconds after the epoch, so that it is not young.
    fn write_old(path: &Path, content: &[u8], seconds: u64) {
        fs::write(path, content).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }

    /// Creates the files of a worker that shares `contents`, for the calling thread.
    fn worker_files(
        directory: &Path,
        contents: &Arc<Contents>,
        workers: usize,
        capacity: u64,
    ) -> Files {
        let mut config = Settings::new(directory).site;
        config.cache_bytes = Contents::of_index(capacity, workers);
        let tree = Tree::of(&config).unwrap().unwrap();
        Files::new(tree, contents.clone(), &config, Vec::new()).unwrap()
    }

    /// Returns the prepared head, and the number of reads of the file.
    fn look(files: &mut Files, path: &str, tick: u32) -> (PreparedContent, u64) {
        let before = counters();
        let found = files.find(path.as_bytes(), tick).unwrap();
        (found.identity.prepared().clone(), counters().since(&before).of(Call::Read))
    }

    /// Regression: each worker read a file itself, and kept its own copy.
    #[test]
    fn a_file_is_read_once_for_all_threads_and_a_change_is_seen_by_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        write_old(&path, &[b'a'; 20_000], 1);
        let contents = Contents::new(1 << 20, 3);
        let mut first = worker_files(directory.path(), &contents, 3, 1 << 20);
        let in_thread = |tick| {
            let found = thread::scope(|scope| {
                let other = || {
                    let mut other = worker_files(directory.path(), &contents, 3, 1 << 20);
                    look(&mut other, "/file", tick)
                };
                scope.spawn(other).join()
            });
            found.unwrap()
        };
        let (prepared, reads) = look(&mut first, "/file", 0);
        let (of_other, other_reads) = in_thread(0);
        assert_eq!((reads, other_reads), (1, 0));
        assert!(prepared.shares_bytes_with(&of_other));
        let charged = contents.charged();
        assert!((20_000..25_000).contains(&charged), "{charged}");

        let mut second = worker_files(directory.path(), &contents, 3, 1 << 20);
        assert_eq!(look(&mut second, "/file", 0).1, 0);
        write_old(&path, &[b'b'; 30_000], 2);
        assert!(look(&mut second, "/file", 4).0.shares_bytes_with(&prepared), "not looked at yet");
        let (new, reads) = look(&mut second, "/file", REVALIDATE_TICKS);
        // A worker that has not checked yet still has the old content, but not for longer than before.
        assert!(look(&mut first, "/file", REVALIDATE_TICKS - 1).0.shares_bytes_with(&prepared));
        let (of_first, first_reads) = look(&mut first, "/file", REVALIDATE_TICKS);
        assert!(new.wire_bytes() > 30_000 && new.shares_bytes_with(&of_first));
        assert_eq!((reads, first_reads, in_thread(0).1), (1, 0, 0));
        drop((first, second));
        assert_eq!(contents.charged(), 0);
    }

    /// A file that was modified just now may change again with the same version.
    #[test]
    fn a_young_file_is_read_by_each() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let begun = Instant::now();
        loop {
            let written = Instant::now();
            fs::write(&path, b"content").unwrap();
            let contents = Contents::new(1 << 20, 2);
            let mut workers =
                [(); 2].map(|()| worker_files(directory.path(), &contents, 2, 1 << 20));
            let reads = workers.each_mut().map(|files| look(files, "/file", 0).1);
            if written.elapsed() < Duration::from_secs(1) {
                assert_eq!(reads, [1, 1]);
                return;
            }
            // On such a slow machine, the file was already old when it was read.
            assert!(begun.elapsed() < PATIENCE, "it takes a second to read a file");
        }
    }

    /// Workers that serve different files do not use more than the budget together. Each keeps some files,
    /// also when another worker has used the whole budget and requests nothing more.
    #[test]
    fn workers_that_have_no_room_make_some() {
        const FILES: usize = 60;
        const CAPACITY: u64 = 200_000;
        let directory = tempfile::tempdir().unwrap();
        for number in 0..FILES {
            let content = vec![number as u8; 5_000 + number];
            write_old(&directory.path().join(number.to_string()), &content, 1);
        }
        let contents = Contents::new(CAPACITY, 2);
        let mut workers = [(); 2].map(|()| worker_files(directory.path(), &contents, 2, CAPACITY));
        for half in [0, 1, 0, 1, 0] {
            let files = &mut workers[half];
            for number in (0..3 * FILES).map(|n| n % FILES).filter(|n| n % 2 == half) {
                let (prepared, _) = look(files, &format!("/{number}"), 0);
                assert!(prepared.wire_bytes() > 5_000 + number as u64);
                assert!(contents.charged() <= CAPACITY, "{}", contents.charged());
            }
            assert!(!files.cache.is_empty(), "{half} keeps nothing");
            // Each time that there was no room, some was freed.
            let path = format!("/{}", FILES - 2 + half);
            let reads = (0..FILES).take_while(|_| look(files, &path, 0).1 > 0).count();
            assert!(reads < FILES, "{half} does not keep what it requests again and again");
        }
        drop(workers);
        assert_eq!(contents.charged(), 0);
    }

    #[test]
    fn changes_are_seen_within_a_second() {
        assert!(TICK * (REVALIDATE_TICKS + 1) < Duration::from_secs(1));
        let directory = tempfile::tempdir().unwrap();
        let config = Settings::new(directory.path()).site;
        let tree = Tree::of(&config).unwrap().unwrap();
        let contents = Contents::new(config.cache_bytes, 1);
        let mut files = Files::new(tree, contents, &config, Vec::new()).unwrap();
        let mut len = |tick| files.find(b"/file", tick).map(|found| found.identity.len()).ok();
        fs::write(directory.path().join("file"), "first").unwrap();
        assert_eq!(len(10), Some(5));
        fs::write(directory.path().join("file"), "second").unwrap();
        assert_eq!(len(10 + REVALIDATE_TICKS - 1), Some(5), "the disk is not read each time");
        assert_eq!(len(10 + REVALIDATE_TICKS), Some(6));
        fs::remove_file(directory.path().join("file")).unwrap();
        assert_eq!(len(10 + 2 * REVALIDATE_TICKS), None);
    }
}
