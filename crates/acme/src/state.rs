//! The state directory: account, certificates and answers to challenges, as files.

use ring::digest::{SHA256, digest};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown,
    },
    path::{Path, PathBuf},
};
use url::Url;

/// Space that is reserved for a certificate before it is ordered: chains have about 5 KB.
const RESERVED_BYTES: u64 = 64 << 10;
/// A longer file was not stored by this crate.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The longest part of a folder's name that comes from the directory's URL.
const HOST_BYTES_MAX: usize = 80;

/// The folder of one authority's directory within the state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    /// `STATE/acme`.
    top: PathBuf,
    /// `STATE/acme/HOST-HASH`.
    folder: PathBuf,
}

/// The directories of the answers to challenges while an order runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenges {
    /// A file for each token.
    pub http: PathBuf,
    /// A certificate for each name: `NAME.pem`, with its key.
    pub tls: PathBuf,
}

/// The lock of a folder, held as long as this value exists.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "closing it unlocks")] File);

/// A file that is not complete yet, and space for it on the disk.
pub(crate) struct PendingFile {
    file: File,
    unfinished: PathBuf,
    target: PathBuf,
}

impl StateDir {
    /// The folder of `directory` below `state_dir`. Nothing is created.
    pub fn new(state_dir: &Path, directory: &str) -> Self {
        let host = Url::parse(directory).ok().and_then(|url| url.host_str().map(str::to_owned));
        let host: String = host
            .unwrap_or_default()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' })
            .take(HOST_BYTES_MAX)
            .collect();
        let hash = digest(&SHA256, directory.as_bytes());
        let hash: String = hash.as_ref()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let top = state_dir.join("acme");
        let folder = top.join(format!("{host}-{hash}"));
        Self { top, folder }
    }

    /// Creates missing directories, accessible to the owner only, and checks that files can be written.
    ///
    /// A process of root that will become another user passes that user as `owner`. What belongs to root is then given
    /// to the owner, and only the state directory itself is created: root would follow links that the owner has made in
    /// it. The process calls this function again with `None` after it has become the user, for the rest.
    ///
    /// # Errors
    /// As mkdir(2), chmod(2), chown(2) and open(2), with the path.
    pub fn create(&self, owner: Option<(u32, u32)>) -> io::Result<()> {
        let make = |path: &Path, mode| {
            let made = DirBuilder::new().recursive(true).mode(mode).create(path);
            made.map_err(|error| with_path(path, error))
        };
        if let Some((user, group)) = owner {
            let state = self.top.parent().unwrap_or(&self.top);
            if let Some(above) = state.parent() {
                // The directories above remain root's, and the user must be able to pass them.
                make(above, 0o755)?;
            }
            make(state, 0o700)?;
            give(state, user, group)?;
            if fs::symlink_metadata(&self.top).is_ok() {
                give_tree(&self.top, user, group)?;
            }
        } else {
            let challenges = self.challenges();
            for path in [&self.folder, &self.certificates(), &challenges.http, &challenges.tls] {
                make(path, 0o700)?;
            }
            fs::set_permissions(&self.top, Permissions::from_mode(0o700))
                .map_err(|error| with_path(&self.top, error))?;
            let lock = self.folder.join("lock");
            drop(open_private(&lock, false).map_err(|error| with_path(&lock, error))?);
        }
        Ok(())
    }

    /// The file with the certificate of a name and its key.
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.certificates().join(format!("{name}.pem"))
    }

    /// The directories of the answers to challenges.
    pub fn challenges(&self) -> Challenges {
        Challenges { http: self.folder.join("http-01"), tls: self.folder.join("tls-alpn-01") }
    }

    /// Locks the folder, for the one process that orders. `None` while another process has the lock.
    ///
    /// # Errors
    /// The errors of open(2) and flock(2).
    pub fn lock(&self) -> io::Result<Option<Lock>> {
        let path = self.folder.join("lock");
        let file = open_private(&path, false).map_err(|error| with_path(&path, error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(with_path(&path, error.into())),
        }
    }

    pub(crate) fn account(&self) -> PathBuf {
        self.folder.join("account.json")
    }

    fn certificates(&self) -> PathBuf {
        self.folder.join("certificates")
    }
}

/// The content of a stored file; `None` if it does not exist.
pub(crate) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let length = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(with_path(path, error)),
    };
    if length > FILE_BYTES_MAX {
        return Err(with_path(path, io::Error::other("the file is too long to be one of Pollux")));
    }
    fs::read(path).map(Some).map_err(|error| with_path(path, error))
}

/// Writes a file, so that it exists completely or not at all, also after a crash.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    PendingFile::reserve(path)?.finish(content)
}

impl PendingFile {
    /// Reserves space for a file at `target`.
    pub(crate) fn reserve(target: &Path) -> io::Result<Self> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        // Only the process with the lock writes, so a fixed name is free, or left by a crash.
        let unfinished = target.with_file_name(format!(".{name}.new"));
        let file =
            open_private(&unfinished, true).map_err(|error| with_path(&unfinished, error))?;
        let pending = Self { file, unfinished, target: target.to_owned() };
        match fallocate(&pending.file, FallocateFlags::empty(), 0, RESERVED_BYTES) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(pending),
            Err(error) => Err(with_path(target, error.into())),
        }
    }

    /// Writes the file and gives it its name.
    pub(crate) fn finish(mut self, content: &[u8]) -> io::Result<()> {
        let outcome = (|| {
            self.file.write_all(content)?;
            self.file.set_len(content.len() as u64)?;
            self.file.sync_all()?;
            fs::rename(&self.unfinished, &self.target)?;
            // The new name is on the disk only when its directory is.
            File::open(self.target.parent().unwrap_or(Path::new(".")))?.sync_all()
        })();
        outcome.map_err(|error| with_path(&self.target, error))
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        // After a success no file has this name any more.
        let _ = fs::remove_file(&self.unfinished);
    }
}

fn open_private(path: &Path, truncates: bool) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(truncates).mode(0o600).open(path)
}

/// Gives a file or folder that belongs to root to another user.
fn give(path: &Path, user: u32, group: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path).map_err(|error| with_path(path, error))?;
    if metadata.uid() == 0 && user != 0 {
        lchown(path, Some(user), Some(group)).map_err(|error| with_path(path, error))?;
    }
    Ok(())
}

fn give_tree(path: &Path, user: u32, group: u32) -> io::Result<()> {
    give(path, user, group)?;
    // Links are not followed: a link that a user has created here must not make root give away other
    // files.
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        for entry in fs::read_dir(path).map_err(|error| with_path(path, error))? {
            give_tree(&entry?.path(), user, group)?;
        }
    }
    Ok(())
}

fn with_path(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_are_for_their_owner_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let state = StateDir::new(&temporary.path().join("a/b"), "https://ca.example:14000/dir");
        state.create(None).unwrap();
        write(&state.certificate("x.example"), b"pem").unwrap();
        assert_eq!(read(&state.certificate("x.example")).unwrap().unwrap(), b"pem");
        assert_eq!(read(&state.certificate("y.example")).unwrap(), None);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&state.certificate("x.example")), 0o600);
        assert_eq!(mode(&state.certificates()), 0o700);
        assert_eq!(mode(&state.folder), 0o700);
        let name = state.folder.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("ca.example-"), "{name}");
        assert_eq!(fs::read_dir(state.certificates()).unwrap().count(), 1, "nothing unfinished");
    }

    /// Regression: the directories above it were for root alone, so the user could not reach its own.
    #[test]
    fn the_user_can_pass_the_directories_above_the_state_directory() {
        let temporary = tempfile::tempdir().unwrap();
        let above = temporary.path().join("a/b");
        let folders = StateDir::new(&above.join("state"), "https://ca.example/dir");
        if fs::metadata(temporary.path()).unwrap().uid() != 0 {
            eprintln!("skipped: only root can give a directory away");
            return;
        }
        folders.create(Some((12_345, 12_345))).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o111;
        assert_eq!(mode(&above), 0o111);
        assert_eq!(mode(above.parent().unwrap()), 0o111);
        assert_eq!(mode(&above.join("state")), 0o100);
    }

    /// Regression: root created directories wherever a link of the user led.
    #[test]
    fn nothing_is_created_behind_a_link_of_the_user_that_is_to_be_the_owner() {
        let temporary = tempfile::tempdir().unwrap();
        let (state, elsewhere) =
            (temporary.path().join("state"), temporary.path().join("elsewhere"));
        fs::create_dir(&elsewhere).unwrap();
        let owner = Some((12_345, 12_345));
        let folders = StateDir::new(&state, "https://ca.example/dir");
        let is_root = fs::metadata(temporary.path()).unwrap().uid() == 0;
        if is_root {
            folders.create(owner).unwrap();
            assert_eq!(fs::metadata(&state).unwrap().uid(), 12_345);
        } else {
            fs::create_dir(&state).unwrap();
        }
        std::os::unix::fs::symlink(&elsewhere, state.join("acme")).unwrap();
        folders.create(owner).unwrap();
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn directories_have_folders_of_their_own() {
        let folder = |url| StateDir::new(Path::new("/s"), url).folder;
        assert_ne!(folder("https://a.example/1"), folder("https://a.example/2"));
        assert!(folder("https://[::1]:1/../x").starts_with("/s/acme"));
    }

    #[test]
    fn one_process_has_the_lock() {
        let temporary = tempfile::tempdir().unwrap();
        let state = StateDir::new(temporary.path(), "https://ca.example/dir");
        state.create(None).unwrap();
        let lock = state.lock().unwrap().unwrap();
        assert!(state.lock().unwrap().is_none());
        drop(lock);
        assert!(state.lock().unwrap().is_some());
    }

    #[test]
    fn a_file_that_fails_leaves_the_former_one() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("x.pem");
        write(&path, b"former").unwrap();
        drop(PendingFile::reserve(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"former");
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 1);
        let error = write(&temporary.path().join("no/x.pem"), b"").unwrap_err().to_string();
        assert!(error.contains("no/"), "{error}");
    }
}
