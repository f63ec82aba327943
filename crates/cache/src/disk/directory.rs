//! File operations of the disk tier, behind a trait so that tests can inject faults.

use rustix::fs::{FlockOperation, flock};
use std::{
    fs,
    io::{self, ErrorKind, Write},
    path::PathBuf,
};

/// The lock file; the process that uses the directory holds a lock on it.
const LOCK: &str = "lock";

/// A directory that is used by one store alone. File names contain no separators.
pub trait Directory: Send + 'static {
    /// Lists the file names.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn list(&mut self) -> io::Result<Vec<String>>;

    /// Reads the first `max` bytes of a file.
    ///
    /// # Errors
    /// The file does not exist or cannot be read.
    fn read(&mut self, name: &str, max: u64) -> io::Result<Vec<u8>>;

    /// Creates a file with the contents of `parts`. It need not survive a power failure.
    ///
    /// # Errors
    /// The file cannot be written, for example because the disk is full. A partial file may remain.
    fn write(&mut self, name: &str, parts: &[&[u8]]) -> io::Result<()>;

    /// Renames a file atomically.
    ///
    /// # Errors
    /// The file cannot be renamed; it keeps its old name.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The file cannot be removed or does not exist.
    fn remove(&mut self, name: &str) -> io::Result<()>;

    /// Lets another store use the directory. This store may still read and remove files, but writes
    /// none any more.
    fn release(&mut self) {}
}

/// A directory of the file system, locked for one store as long as this value lives. Two stores
/// would give different objects the same file names.
#[derive(Debug)]
pub struct FsDirectory {
    path: PathBuf,
    /// The kernel releases the lock with the last descriptor of the file, even after kill -9.
    lock: fs::File,
}

impl FsDirectory {
    /// Opens the directory at `path`. If it does not exist it is created with mode 0700.
    ///
    /// # Errors
    /// The directory cannot be created or opened; or another process uses it
    /// ([`ErrorKind::ResourceBusy`]).
    pub fn open(path: PathBuf) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        fs::read_dir(&path)?;
        let lock = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join(LOCK))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path, lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let path = path.display();
                let message = format!(
                    "another server uses the cache directory {path}; give each server its own directory"
                );
                Err(io::Error::new(ErrorKind::ResourceBusy, message))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Directory for FsDirectory {
    fn list(&mut self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name()));
        let names: io::Result<Vec<_>> = names.collect();
        Ok(names?.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    fn read(&mut self, name: &str, max: u64) -> io::Result<Vec<u8>> {
        use std::io::Read;
        let mut bytes = Vec::new();
        fs::File::open(self.path.join(name))?.take(max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&mut self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let mut file = fs::File::create_new(self.path.join(name))?;
        parts.iter().try_for_each(|part| file.write_all(part))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn release(&mut self) {
        // This fails only for a descriptor that is not open.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}
