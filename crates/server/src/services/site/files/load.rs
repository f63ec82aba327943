//! Loads the resource of a path after a cache miss.

use super::{
    super::compress::{FILE_MAX, FILE_MIN, is_compressible},
    Files, MEMORY_FILE_MAX, Miss, Representation, Resource, SIBLINGS,
    contents::{Contents, Key},
    representation::{Content, Parts, Tag},
    tree::{FileVersion, TreeEntry, status_of, version_of},
    variant::Compressible,
};
use pollux_http::{Status, accept_encoding::Coding, path::SafePath};
use pollux_sys::{Call, count};
use rustix::io::Errno;
use std::{
    cell::Cell,
    ffi::CString,
    hash::{DefaultHasher, Hash, Hasher},
    os::fd::OwnedFd,
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The maximum number of times that a file is read if it changes while it is read.
const READ_TRIES: usize = 4;
/// A file that was modified within this time before it was read may change again with the same version: the
/// coarsest clocks of Linux file systems that count nanoseconds advance by 10 ms (HZ=100), those of other
/// file systems by one or two seconds.
const YOUNG: Duration = Duration::from_secs(2);

/// The data that the heads of one resource have in common.
#[derive(Clone, Debug)]
pub(super) struct HeadParts {
    pub(super) content_type: String,
    pub(super) varies: bool,
    /// Fields for the path of the file: lines with CRLF.
    pub(super) fields: Vec<u8>,
}

const NOT_FOUND: Miss = Miss::Status(Status::NotFound);

impl Files {
    /// Loads the resource at `path`.
    pub(super) fn load(&mut self, path: &SafePath<'_>, now_tick: u32) -> Result<Resource, Miss> {
        let begun_at = SystemTime::now();
        let relative = path.relative();
        if path.has_dotfile() && !self.config.dotfiles {
            return Err(NOT_FOUND);
        }
        let mut sources = Vec::new();
        let (name, file, version) = if path.is_directory() {
            self.open_index(relative, &mut sources)?
        } else {
            match self.tree.entry(&c_string(relative)?).map_err(miss)? {
                TreeEntry::Directory => return Err(Miss::NeedsSlash),
                TreeEntry::File(file, version) => (relative.to_vec(), file, version),
            }
        };
        let coding = coding_of(&name);
        let mut siblings = Vec::new();
        if self.config.precompressed && coding == Coding::Identity {
            for (coding, suffix) in SIBLINGS {
                let name = c_string(&[&name[..], suffix.as_bytes()].concat())?;
                match self.tree.entry(&name) {
                    Ok(TreeEntry::File(file, version)) => {
                        siblings.push((coding, suffix, name, file, version));
                        continue;
                    }
                    Ok(TreeEntry::Directory) => {}
                    Err(error) if is_no_file(error) => {}
                    // The sibling may exist: a resource without it would count as current until one of its
                    // files changes.
                    Err(error) => return Err(miss(error)),
                }
                sources.push((name.clone(), self.tree.version(&name)));
            }
        }
        let content_type = content_type(&name);
        let compressed = match coding {
            Coding::Identity => self.codings_for(&content_type, &version, &siblings),
            _ => Vec::new(),
        };
        let head = HeadParts {
            content_type,
            varies: !siblings.is_empty() || !compressed.is_empty(),
            fields: self.config.rules.fields_of_file(&[b"/", &name[..]].concat()),
        };
        let (identity, version) = self.represent(file, version, &head, (coding, ""))?;
        sources.push((c_string(&name)?, Some(version)));
        let mut encoded = Vec::new();
        for (coding, suffix, name, file, version) in siblings {
            let (representation, version) =
                self.represent(file, version, &head, (coding, suffix))?;
            sources.push((name, Some(version)));
            encoded.push((coding, representation));
        }
        let mut versions = sources.iter().filter_map(|(_, version)| version.as_ref());
        let is_young = versions.any(|version| is_young(version, begun_at));
        // A young file may still change with the same version: it is compressed when it is older.
        let compressible = (!compressed.is_empty() && !is_young)
            .then(|| Box::new(Compressible::new(&name, version, head, &compressed)));
        let mut resource = Resource {
            compressible,
            identity,
            encoded,
            sources,
            key_has_percent: false,
            checked_at: Cell::new(now_tick),
            is_young,
            charge: None,
        };
        // The tag depends on the time of the last change, and `is_young` on the modification time, which a
        // copy can have from its original.
        resource.is_young |= resource.has_weak_tag();
        Ok(resource)
    }

    /// Opens the first index file that exists in `directory`.
    fn open_index(
        &self,
        directory: &[u8],
        sources: &mut Vec<(CString, Option<FileVersion>)>,
    ) -> Result<(Vec<u8>, OwnedFd, FileVersion), Miss> {
        for index in &self.config.index {
            let name = [directory, index.as_bytes()].concat();
            let path = c_string(&name)?;
            match self.tree.entry(&path) {
                Ok(TreeEntry::File(file, version)) => return Ok((name, file, version)),
                Ok(TreeEntry::Directory) | Err(Errno::NOENT) => {}
                Err(error) => return Err(miss(error)),
            }
            sources.push((path.clone(), self.tree.version(&path)));
        }
        let directory = if directory.is_empty() { b"." } else { directory };
        match self.tree.entry(&c_string(directory)?) {
            Ok(_) => Err(Miss::NoIndex),
            Err(error) => Err(miss(error)),
        }
    }

    /// Reads a file into memory, unless another worker has done so. A long file is kept open instead.
    fn represent(
        &mut self,
        file: OwnedFd,
        mut version: FileVersion,
        head: &HeadParts,
        (coding, suffix): (Coding, &str),
    ) -> Result<(Rc<Representation>, FileVersion), Miss> {
        let begun_at = SystemTime::now();
        let key_of = |version| {
            let HeadParts { content_type, varies, fields } = head.clone();
            Key { version, content_type, coding, varies, is_compressed: false, fields }
        };
        if version.len <= MEMORY_FILE_MAX
            && self.keeps_any()
            && let Some(shared) = self.contents.find(&key_of(version))
        {
            return Ok((Rc::new(Representation::charged(shared)), version));
        }
        let mut content = None;
        // A young file may get other content with the same version: it is not shared with other workers.
        let mut key = None;
        for _ in 0..READ_TRIES {
            if version.len > MEMORY_FILE_MAX {
                // The file has grown since it was read: the bytes that were read are not all of it.
                content = None;
                break;
            }
            let bytes = read_all(&file, version.len as usize).map_err(miss)?;
            let after = version_of(&file).map_err(miss)?;
            let is_whole = after == version && bytes.len() as u64 == version.len;
            version = after;
            content = Some(Content::Memory(bytes));
            if is_whole {
                key = (!is_young(&version, begun_at)).then(|| key_of(version));
                break;
            }
        }
        let content = content.unwrap_or_else(|| Content::Open(file, version.len));
        // The time must not be later than the response's Date (RFC 9110 §8.8.2.1).
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let etag = entity_tag(&content, &version, now, suffix);
        let modified = version.modified.min(now).as_secs();
        let representation = Representation::new(Parts {
            common_fields: &self.common_fields,
            path_fields: &head.fields,
            etag,
            modified,
            content_type: head.content_type.clone(),
            coding,
            varies: head.varies,
            content,
        });
        let representation = self.put(key.as_ref(), representation);
        Ok((Rc::new(representation), version))
    }

    /// Returns the codings in which a file may be compressed: those that none of its siblings has.
    fn codings_for(
        &self,
        content_type: &str,
        version: &FileVersion,
        siblings: &[(Coding, &str, CString, OwnedFd, FileVersion)],
    ) -> Vec<Coding> {
        let Some(compress) = &self.config.compress else { return Vec::new() };
        if !(FILE_MIN..=FILE_MAX).contains(&version.len) || !is_compressible(content_type) {
            return Vec::new();
        }
        let is_free = |coding: &&Coding| siblings.iter().all(|sibling| sibling.0 != **coding);
        compress.codings().iter().filter(is_free).copied().collect()
    }

    /// Stores a content where all workers find it, if there is room and it has a key.
    pub(super) fn put(
        &mut self,
        key: Option<&Key>,
        representation: Representation,
    ) -> Representation {
        if !representation.is_in_memory() {
            return representation;
        }
        let prepared = representation.prepared();
        let bytes = Contents::bytes(key, prepared);
        self.with_room(bytes, |contents, taken| contents.put(key, prepared, taken))
            .map_or(representation, Representation::charged)
    }
}

/// Returns whether a file may change again with the same version after it was read at this time or later.
fn is_young(version: &FileVersion, at: SystemTime) -> bool {
    // A file that is written while it is loaded was modified after `at`.
    let age = at.duration_since(UNIX_EPOCH + version.modified);
    age.unwrap_or_else(|later| later.duration()) < YOUNG
}

/// Returns the entity tag of a file's content (RFC 9110 §8.8.3). Content in memory is tagged by its bytes, so
/// that other bytes have another tag even if the file's times are the same, and every machine has the same
/// tags. Content that is sent from the file is tagged by the file's version. While that is young, the bytes may
/// change with the same version: the tag is then weak, and differs from the later one.
pub(super) fn entity_tag(
    content: &Content,
    version: &FileVersion,
    now: Duration,
    suffix: &str,
) -> Tag {
    // The hasher has fixed keys, so that all workers have the same tags.
    let mut hasher = DefaultHasher::new();
    let (len, is_weak) = match content {
        Content::Memory(bytes) => {
            hasher.write(bytes);
            (bytes.len() as u64, false)
        }
        Content::Open(_, len) => {
            version.hash(&mut hasher);
            (*len, now.checked_sub(version.last_change()).is_none_or(|age| age < YOUNG))
        }
    };
    let young = if is_weak { "-young" } else { "" };
    Tag { opaque: format!("{len:x}-{:x}{suffix}{young}", hasher.finish()), is_weak }
}

/// Returns whether this error means that there is no file to serve, and not that a resource of this host is
/// exhausted.
fn is_no_file(error: Errno) -> bool {
    matches!(miss(error), Miss::Status(Status::NotFound | Status::Forbidden))
}

/// Reads up to `len` bytes from the start of a file.
fn read_all(file: &OwnedFd, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        let rest = &mut bytes[filled..];
        match count(Call::Read, || rustix::io::pread(file, rest, filled as u64)) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn c_string(path: &[u8]) -> Result<CString, Miss> {
    CString::new(path).map_err(|_| NOT_FOUND)
}

/// Returns the coding that a file has by the definition of its format. The media type of `.svgz` is that of the
/// picture before its compression (SVG 1.1 §1.2), so without Content-Encoding no browser shows it.
fn coding_of(name: &[u8]) -> Coding {
    const SUFFIX: &[u8] = b".svgz";
    let suffix = &name[name.len().saturating_sub(SUFFIX.len())..];
    if suffix.eq_ignore_ascii_case(SUFFIX) { Coding::Gzip } else { Coding::Identity }
}

/// Returns the Content-Type of a file by the suffix of its name; text is assumed to be UTF-8.
fn content_type(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let Some(guess) = mime_guess::from_path(&*name).first() else {
        return "application/octet-stream".into();
    };
    let is_text =
        guess.type_() == mime_guess::mime::TEXT || guess.essence_str() == "application/javascript";
    if is_text { format!("{}; charset=utf-8", guess.essence_str()) } else { guess.to_string() }
}

/// Returns the response to an error of the kernel.
fn miss(error: Errno) -> Miss {
    Miss::Status(status_of(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        services::site::files::{REVALIDATE_TICKS, Tree},
        settings::Settings,
    };
    use pollux_http::fields::Fields;
    use pollux_testkit::in_child;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::{fs, fs::File, iter, path::Path};

    fn files(directory: &Path) -> Files {
        let config = Settings::new(directory).site;
        let contents = Contents::new(config.cache_bytes, 1);
        Files::new(Tree::of(&config).unwrap().unwrap(), contents, &config, Vec::new()).unwrap()
    }

    #[test]
    fn a_file_that_is_written_while_it_is_loaded_is_young() {
        let at = UNIX_EPOCH + Duration::from_secs(1000);
        for (seconds, young) in [(990, false), (999, true), (1001, true), (5000, false)] {
            let mut version = FileVersion::of_test(1);
            version.modified = Duration::from_secs(seconds);
            assert_eq!(is_young(&version, at), young, "{seconds}");
        }
    }

    /// Opens files until only `count` descriptors are left. The limit on descriptors applies to the whole
    /// process.
    fn leave_descriptors(count: usize) -> Vec<File> {
        let limit = Rlimit { current: Some(256), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let mut taken: Vec<_> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
        taken.truncate(taken.len() - count);
        taken
    }

    /// Regression: no descriptor was left when the sibling was opened, and the file was served without it
    /// until one of the two changed.
    #[test]
    fn a_sibling_that_cannot_be_opened_for_a_moment_is_not_taken_for_missing() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("page.html"), "plain").unwrap();
        fs::write(directory.path().join("page.html.gz"), "packed").unwrap();
        in_child(|| {
            let mut files = files(directory.path());
            // As many as the file itself needs; its sibling needs one more.
            let others = leave_descriptors(2);
            let refused = files.find(b"/page.html", 0).err();
            assert_eq!(refused, Some(Miss::Status(Status::ServiceUnavailable)));
            drop(others);
            let resource = files.find(b"/page.html", REVALIDATE_TICKS).unwrap();
            assert_eq!(resource.encoded.len(), 1);
        });
    }

    /// Regression: the listing of the directory was a 404.
    #[test]
    fn a_directory_that_cannot_be_opened_for_a_moment_is_not_taken_for_missing() {
        let directory = tempfile::tempdir().unwrap();
        in_child(|| {
            let files = files(directory.path());
            let _others = leave_descriptors(0);
            let listed = files.list(&SafePath::new(b"/", &mut Vec::new()).unwrap());
            assert_eq!(listed.err(), Some(Status::ServiceUnavailable));
        });
    }

    /// Files that are held open are closed when no descriptor is left. Regression: they stayed open, and
    /// files that were not in the cache were refused permanently.
    #[test]
    fn the_cache_gives_back_descriptors_when_none_is_left() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..40 {
            let long = vec![b'x'; MEMORY_FILE_MAX as usize + 1];
            fs::write(directory.path().join(number.to_string()), long).unwrap();
        }
        in_child(|| {
            let mut files = files(directory.path());
            let _others = leave_descriptors(8);
            for iteration in 0..2 {
                for number in 0..40 {
                    let found = files.find(format!("/{number}").as_bytes(), 0);
                    assert!(found.is_ok(), "{number} in round {iteration}: {:?}", found.err());
                }
            }
        });
    }

    /// Regression: the type of `.otf` was none of those that are compressed.
    #[test]
    fn the_types_of_these_suffixes_are_compressed() {
        for suffix in [
            "html",
            "css",
            "js",
            "mjs",
            "json",
            "map",
            "xml",
            "svg",
            "txt",
            "md",
            "csv",
            "wasm",
            "otf",
            "ttf",
            "eot",
            "ico",
            "bmp",
            "rtf",
            "webmanifest",
            "rss",
            "atom",
            "geojson",
        ] {
            let content_type = content_type(format!("a.{suffix}").as_bytes());
            assert!(is_compressible(&content_type), "{suffix}: {content_type}");
        }
    }

    /// Regression: browsers did not show such pictures.
    #[test]
    fn a_compressed_picture_names_its_coding() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a.svg", "b.svgz", "b.svgz.gz", "c.SVGZ", "d.gz"] {
            fs::write(directory.path().join(name), "content").unwrap();
        }
        let mut files = files(directory.path());
        for (path, coding, kind) in [
            ("/a.svg", None, "image/svg+xml"),
            ("/b.svgz", Some("gzip"), "image/svg+xml"),
            ("/c.SVGZ", Some("gzip"), "image/svg+xml"),
            ("/d.gz", None, "application/gzip"),
        ] {
            let resource = files.find(path.as_bytes(), 0).unwrap();
            assert!(resource.encoded.is_empty(), "{path}");
            let fields = resource.identity.head().fields();
            let field = |name: &[u8]| Fields::new(fields).find(|f| f.is(name)).map(|f| f.value);
            assert_eq!(field(b"content-encoding"), coding.map(str::as_bytes), "{path}");
            assert_eq!(field(b"content-type"), Some(kind.as_bytes()), "{path}");
        }
    }

    /// Two contents with the same length and the same modification time. Regression: both had the same strong
    /// tag, so that a changed file got a 304, and ranges of two files were combined into one.
    #[test]
    fn other_octets_have_another_tag() {
        let directory = tempfile::tempdir().unwrap();
        let times = fs::FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(1));
        for len in [4, MEMORY_FILE_MAX as usize + 1] {
            let mut tags = Vec::new();
            for byte in [b'a', b'b'] {
                let new = directory.path().join("new");
                fs::write(&new, vec![byte; len]).unwrap();
                File::options().write(true).open(&new).unwrap().set_times(times).unwrap();
                fs::rename(new, directory.path().join("file")).unwrap();
                let resource = files(directory.path()).find(b"/file", 0).unwrap();
                let validators = resource.identity.validators(0);
                tags.push(validators.etag.unwrap().opaque.to_vec());
            }
            assert_ne!(tags[0], tags[1], "{len} bytes");
        }
        // The same bytes have the same tag.
        let tag = |name: &str| {
            fs::write(directory.path().join(name), "same").unwrap();
            let resource = files(directory.path()).find(format!("/{name}").as_bytes(), 0).unwrap();
            resource.identity.validators(0).etag.unwrap().opaque.to_vec()
        };
        assert_eq!(tag("one"), tag("two"));
    }

    /// Regression: a long file that was new, but had the modification time of its original (`cp -p`,
    /// `rsync -a`), had a weak tag until it changed, so that no download of it could be resumed.
    #[test]
    fn a_weak_tag_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, vec![b'x'; MEMORY_FILE_MAX as usize + 1]).unwrap();
        let times = fs::FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(1));
        File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
        let resource = files(directory.path()).find(b"/file", 0).unwrap();
        // On a very slow machine the tag may be strong already.
        assert_eq!(resource.is_young, resource.identity.has_weak_tag());
    }

    #[test]
    fn a_file_that_is_old_has_a_strong_tag() {
        let content = Content::Open(File::open("/dev/null").unwrap().into(), 7);
        let directory = tempfile::tempdir().unwrap();
        let version = version_of(&File::open(directory.path()).unwrap().into()).unwrap();
        let at = |age| entity_tag(&content, &version, version.last_change() + age, "");
        assert!(at(Duration::ZERO).is_weak && !at(YOUNG).is_weak);
        assert_ne!(at(Duration::ZERO).opaque, at(YOUNG).opaque);
    }
}
