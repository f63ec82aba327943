//! Where files are: the one seam between the second tier and the system.

use rustix::fs::{FlockOperation, flock};
use std::{
    fs,
    io::{self, ErrorKind, Write},
    path::PathBuf,
};

/// Locked by whose folder it is.
const LOCK: &str = "lock";

/// A folder with nobody else's files in it. Names are plain.
pub trait Directory: Send + 'static {
    /// The names that are there.
    ///
    /// # Errors
    /// The folder cannot be read.
    fn list(&mut self) -> io::Result<Vec<String>>;

    /// The first `max` octets of the file.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    fn read(&mut self, name: &str, max: u64) -> io::Result<Vec<u8>>;

    /// Writes a new file of `parts`. It need not survive a power failure.
    ///
    /// # Errors
    /// It cannot be written, for want of room perhaps; a part of it may be there then.
    fn write(&mut self, name: &str, parts: &[&[u8]]) -> io::Result<()>;

    /// Gives it another name, at once or not at all.
    ///
    /// # Errors
    /// It has the old one.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;

    /// Removes it.
    ///
    /// # Errors
    /// It is still there, or was not.
    fn remove(&mut self, name: &str) -> io::Result<()>;
}

/// A folder of the file system, of one store alone for as long as this is there: two would give
/// different objects the same names.
#[derive(Debug)]
pub struct FsDirectory {
    path: PathBuf,
    /// The system forgets the lock with the last descriptor of the file, also after kill -9.
    _lock: fs::File,
}

impl FsDirectory {
    /// The folder at `path`; it is made, for its owner alone, if it is not there.
    ///
    /// # Errors
    /// It cannot be made, or is none, or another one's.
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
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let path = path.display();
                let message =
                    format!("another server keeps its cache in {path}; give each its own");
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
}
