//! The directory: opens and examines files so that no path leads out of it.

use crate::{
    config::{SiteConfig, Symlinks},
    policy::listing,
};
use anyhow::Context;
use pollux_http::Status;
use pollux_sys::{Call, count};
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2,
        readlink, statat,
    },
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

/// An open directory and the rule for links in it.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    /// `None` follows every link, with plain openat(2).
    resolve: Option<ResolveFlags>,
    /// Whether links may lead to names that begin with a dot.
    dotfiles: bool,
}

/// The data that distinguishes one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileVersion {
    device: u64,
    inode: u64,
    /// The length in bytes.
    pub(crate) len: u64,
    /// The modification time since the epoch; times before it count as the epoch.
    pub(crate) modified: Duration,
    changed: Duration,
}

impl FileVersion {
    /// Returns the time since the epoch at which the content or the metadata of the file last changed
    /// (ctime). No program can set it to another time.
    pub(crate) fn last_change(&self) -> Duration {
        self.changed
    }

    /// Returns the version of some file, for tests.
    #[cfg(test)]
    pub(crate) fn of_test(inode: u64) -> Self {
        let (modified, changed) = (Duration::ZERO, Duration::ZERO);
        Self { device: 1, inode, len: 1, modified, changed }
    }
}

impl From<&Stat> for FileVersion {
    fn from(stat: &Stat) -> Self {
        let time = |seconds: i64, nanoseconds: u64| {
            u64::try_from(seconds).map_or(Duration::ZERO, |s| Duration::new(s, nanoseconds as u32))
        };
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            len: stat.st_size as u64,
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// The object to which a path leads.
#[derive(Debug)]
pub(crate) enum TreeEntry {
    /// A regular file, opened for reading.
    File(OwnedFd, FileVersion),
    /// A directory.
    Directory,
}

/// The maximum number of calls of openat2(2) if it returns EAGAIN: a name was changed during the resolution,
/// so that the kernel could not be sure of the result.
const RESOLVE_TRIES: usize = 16;

impl Tree {
    /// Opens the directory that `config` names, if it names one. Workers that share a file table can share
    /// the result, so that it costs one descriptor, and not one for each of them.
    ///
    /// # Errors
    /// The errors of [`Tree::open`].
    pub(crate) fn of(config: &SiteConfig) -> anyhow::Result<Option<Arc<Self>>> {
        let open = |directory: &std::path::PathBuf| {
            Self::open(directory, config.symlinks, config.dotfiles).map(Arc::new)
        };
        config.directory.as_ref().map(open).transpose()
    }

    /// Opens `directory`.
    ///
    /// # Errors
    /// The path is not a directory that can be read, or openat2(2) is missing (Linux 5.6; some containers
    /// forbid it) and links must be checked.
    ///
    /// `dotfiles` says whether links within the directory may lead to names that begin with a dot.
    pub(crate) fn open(
        directory: &Path,
        symlinks: Symlinks,
        dotfiles: bool,
    ) -> anyhow::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, directory, flags, Mode::empty())
            .with_context(|| format!("cannot serve {}", directory.display()))?;
        let resolve = match symlinks {
            Symlinks::Deny => Some(ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS),
            Symlinks::Within => Some(ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS),
            Symlinks::Follow => None,
        };
        let tree = Self { root, resolve, dotfiles };
        let directory = directory.display();
        tree.open_at(c".", OFlags::PATH).map_err(|error| match error {
            // Opening the root with O_PATH did not check any permission of the directory itself.
            Errno::ACCESS => anyhow::anyhow!(
                "cannot look into {directory}: permission denied (EACCES) for user {}: a directory that \
                 is served needs r and x for whom the server runs as (chmod, chown), and its parents x",
                rustix::process::geteuid().as_raw()
            ),
            Errno::NOSYS | Errno::PERM => anyhow::Error::new(error).context(format!(
                "cannot look into {directory}: openat2 is needed to keep links from leading out of it \
                 (Linux 5.6, and allowed by the container's seccomp profile); --symlinks follow \
                 does without, and follows links everywhere"
            )),
            _ => anyhow::Error::new(error).context(format!("cannot look into {directory}")),
        })?;
        Ok(tree)
    }

    /// Opens the object to which `path` leads. `path` is relative to the directory and has no dot segments.
    ///
    /// Only regular files are opened for reading: opening a FIFO could block for ever, and opening a device
    /// could have any effect.
    ///
    /// # Errors
    /// The errors of openat2(2): EXDEV and ELOOP for links that must not be followed; EACCES also for an
    /// object that is neither a file nor a directory.
    pub(crate) fn entry(&self, path: &CStr) -> Result<TreeEntry, Errno> {
        // The type is checked first, with an O_PATH descriptor, which does not open the object itself.
        let (object, by_link) = self.open_path(path)?;
        if by_link && !self.dotfiles && self.is_hidden(&object) {
            return Err(Errno::LOOP);
        }
        let stat = count(Call::Stat, || fstat(&object))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return Ok(TreeEntry::Directory),
            FileType::RegularFile => {}
            _ => return Err(Errno::ACCESS),
        }
        let file = self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let stat = count(Call::Stat, || fstat(&file))?;
        // The file may have been replaced meanwhile, or the link may lead to another file.
        if by_link && !self.dotfiles && self.is_hidden(&file) {
            return Err(Errno::LOOP);
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(TreeEntry::File(file, FileVersion::from(&stat))),
            _ => Err(Errno::ACCESS),
        }
    }

    /// Returns the entries of the directory at `path`, relative to the root, and whether there are more than
    /// are listed.
    ///
    /// # Errors
    /// The status for the response: 404 if there is no such directory, 403 if it must not be read.
    pub(crate) fn list(&self, path: &[u8]) -> Result<(Vec<listing::ListingEntry>, bool), Status> {
        let c_path = if path.is_empty() { b"." } else { path };
        let c_path = CString::new(c_path).map_err(|_| Status::NotFound)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = self.open_at(&c_path, flags).map_err(status_of)?;
        let names = Dir::read_from(&directory).map_err(status_of)?;
        // Paths with such names are refused, so links to them would be of no use.
        let is_refused = |byte: &u8| byte.is_ascii_control() || *byte == b'\\';
        let mut entries = Vec::new();
        for name in names {
            let name = name.map_err(status_of)?;
            let name = name.file_name();
            let is_hidden = name.to_bytes().starts_with(b".") && !self.dotfiles;
            if is_hidden
                || matches!(name.to_bytes(), b"." | b"..")
                || name.to_bytes().iter().any(is_refused)
            {
                continue;
            }
            if entries.len() == listing::ENTRIES_MAX {
                return Ok((entries, true));
            }
            entries.extend(self.listed(&directory, path, name));
        }
        Ok((entries, false))
    }

    /// Returns the entry of one name, or `None` if the object is not served: a link that must not be
    /// followed, a FIFO, a device.
    fn listed(
        &self,
        directory: &OwnedFd,
        parent: &[u8],
        name: &CStr,
    ) -> Option<listing::ListingEntry> {
        let stat = count(Call::Stat, || statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)).ok()?;
        let (is_directory, version) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => (true, FileVersion::from(&stat)),
            FileType::RegularFile => (false, FileVersion::from(&stat)),
            FileType::Symlink => {
                let path = CString::new([parent, name.to_bytes()].concat()).ok()?;
                match self.entry(&path).ok()? {
                    TreeEntry::Directory => (true, self.version(&path)?),
                    TreeEntry::File(_, version) => (false, version),
                }
            }
            _ => return None,
        };
        Some(listing::ListingEntry {
            name: name.to_bytes().into(),
            is_directory,
            bytes: version.len,
            modified_s: version.modified.as_secs(),
        })
    }

    /// Returns the present version of the object to which `path` leads, or `None` if there is none. The version
    /// is only for comparison with another one, because links are followed.
    pub(crate) fn version(&self, path: &CStr) -> Option<FileVersion> {
        count(Call::Stat, || statat(&self.root, path, AtFlags::empty()))
            .ok()
            .map(|stat| FileVersion::from(&stat))
    }

    /// Returns an O_PATH descriptor of the object, and whether a symbolic link was on the path. If every link
    /// is followed, the latter is not needed and is false.
    fn open_path(&self, path: &CStr) -> Result<(OwnedFd, bool), Errno> {
        let Some(resolve) = self.resolve else {
            return self.open_at(path, OFlags::PATH).map(|object| (object, false));
        };
        let strict = Some(resolve | ResolveFlags::NO_SYMLINKS);
        match self.open_resolved(path, OFlags::PATH, strict) {
            Err(Errno::LOOP) => self.open_at(path, OFlags::PATH).map(|object| (object, true)),
            outcome => outcome.map(|object| (object, false)),
        }
    }

    /// Returns whether the kernel's name for `file`, below the directory, has a part that begins with a dot.
    /// A file that the kernel cannot name (without /proc) counts as hidden.
    fn is_hidden(&self, file: &OwnedFd) -> bool {
        // The descriptors are those of this thread: a worker may have a separate file table, and self/fd is
        // that of the first thread.
        let name = |fd: &OwnedFd| {
            count(Call::Stat, || {
                readlink(format!("/proc/thread-self/fd/{}", fd.as_raw_fd()), Vec::new())
            })
        };
        let (Ok(root), Ok(file)) = (name(&self.root), name(file)) else { return true };
        let Some(below) = file.as_bytes().strip_prefix(root.as_bytes()) else { return true };
        let mut parts = below.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        let mut is_first = true;
        parts.any(|part| {
            let is_well_known = std::mem::take(&mut is_first) && part == b".well-known";
            part.starts_with(b".") && !is_well_known
        })
    }

    fn open_at(&self, path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.open_resolved(path, flags, self.resolve)
    }

    fn open_resolved(
        &self,
        path: &CStr,
        flags: OFlags,
        resolve: Option<ResolveFlags>,
    ) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        for _ in 0..RESOLVE_TRIES {
            let opened = count(Call::Open, || match resolve {
                Some(resolve) => openat2(&self.root, path, flags, Mode::empty(), resolve),
                None => openat(&self.root, path, flags, Mode::empty()),
            });
            match opened {
                Err(Errno::AGAIN | Errno::INTR) => {}
                outcome => return outcome,
            }
        }
        Err(Errno::AGAIN)
    }
}

/// Returns the version of an open file.
pub(crate) fn version_of(file: &OwnedFd) -> Result<FileVersion, Errno> {
    count(Call::Stat, || fstat(file)).map(|stat| FileVersion::from(&stat))
}

/// Returns the status of the response to an error of the kernel.
pub(super) fn status_of(error: Errno) -> Status {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::INVAL => Status::NotFound,
        // XDEV and LOOP: a link that must not be followed.
        Errno::ACCESS | Errno::PERM | Errno::XDEV | Errno::LOOP => Status::Forbidden,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN => {
            Status::ServiceUnavailable
        }
        _ => Status::InternalServerError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::CString, fs, os::unix::fs::symlink};

    fn at(tree: &Tree, path: &str) -> Result<&'static str, Errno> {
        tree.entry(&CString::new(path).unwrap()).map(|entry| match entry {
            TreeEntry::File(..) => "file",
            TreeEntry::Directory => "directory",
        })
    }

    #[test]
    fn nothing_leads_out_unless_links_may() {
        let above = tempfile::tempdir().unwrap();
        let root = above.path().join("root");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(above.path().join("secret"), "s").unwrap();
        fs::write(root.join("file"), "f").unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink(above.path().join("secret"), root.join("absolute")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("../file", root.join("sub/in")).unwrap();
        for (rule, out, within) in [
            (Symlinks::Deny, Err(Errno::LOOP), Err(Errno::LOOP)),
            (Symlinks::Within, Err(Errno::XDEV), Ok("file")),
            (Symlinks::Follow, Ok("file"), Ok("file")),
        ] {
            let tree = Tree::open(&root, rule, false).unwrap();
            for link in ["out", "absolute", "up/secret"] {
                assert_eq!(at(&tree, link), out, "{link} under {rule:?}");
            }
            assert_eq!(at(&tree, "sub/in"), within, "{rule:?}");
            assert_eq!(at(&tree, "file"), Ok("file"));
            assert_eq!(at(&tree, "sub"), Ok("directory"));
            assert_eq!(at(&tree, "file/x"), Err(Errno::NOTDIR));
            assert_eq!(at(&tree, "none"), Err(Errno::NOENT));
            if rule != Symlinks::Follow {
                assert_eq!(at(&tree, "../secret"), Err(Errno::XDEV));
            }
        }
    }

    #[test]
    fn a_link_within_leads_to_no_dotfile() {
        let root = tempfile::tempdir().unwrap();
        for name in [".hidden", ".git/config", ".well-known/text", "plain"] {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        for (link, target) in [
            ("to-hidden", ".hidden"),
            ("to-git", ".git"),
            ("to-config", ".git/config"),
            ("to-text", ".well-known/text"),
            ("to-plain", "plain"),
            ("twice", "to-hidden"),
        ] {
            symlink(target, root.path().join(link)).unwrap();
        }
        let tree = |dotfiles| Tree::open(root.path(), Symlinks::Within, dotfiles).unwrap();
        for path in ["to-hidden", "to-git", "to-git/config", "to-config", "twice"] {
            assert_eq!(at(&tree(false), path), Err(Errno::LOOP), "{path}");
            assert!(at(&tree(true), path).is_ok(), "{path} where dotfiles are served");
        }
        for path in ["to-text", "to-plain", "plain"] {
            assert_eq!(at(&tree(false), path), Ok("file"), "{path}");
        }
    }

    #[test]
    fn names_that_no_path_can_have_are_not_listed() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a b", "a\nb", "a\\b", "a\u{7f}b"] {
            fs::write(root.path().join(name), "").unwrap();
        }
        let tree = Tree::open(root.path(), Symlinks::Within, false).unwrap();
        let (entries, _) = tree.list(b"").unwrap();
        let names: Vec<_> = entries.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(names, [b"a b"]);
    }

    #[test]
    fn fifos_sockets_and_devices_are_not_opened() {
        let root = tempfile::tempdir().unwrap();
        let fifo = root.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
        symlink("/dev/zero", root.path().join("zero")).unwrap();
        let tree = Tree::open(root.path(), Symlinks::Follow, false).unwrap();
        for name in ["fifo", "socket", "zero"] {
            assert_eq!(at(&tree, name), Err(Errno::ACCESS), "{name}");
        }
    }
}
