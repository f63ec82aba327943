//! The site that the corpus requests.

use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    time::{Duration, SystemTime},
};
use tempfile::TempDir;

/// The size of `large.bin` in bytes: larger than the files that the server holds in memory.
const LARGE: usize = 300_000;

/// A directory with every file that the corpus requests, and with files that the server must not send.
#[derive(Debug)]
pub struct Site {
    directory: TempDir,
}

impl Site {
    /// Creates a new site, which is removed when the value is dropped.
    pub fn make() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Self { directory };
        let root = site.root();
        fs::create_dir(&root).unwrap();
        for (name, content) in [
            ("index.html", "<p>index</p>"),
            ("digits", "0123456789"),
            ("digits.txt", "0123456789"),
            ("empty", ""),
            ("last", "last"),
            ("a b.txt", "blank"),
            ("100%.txt", "percent"),
            ("%2e%2e", "encoded dots"),
            ("café.txt", "utf-8"),
            ("a;b=c", "parameters"),
            ("a+b", "plus"),
            ("...", "three dots"),
            ("dir/index.html", "<p>dir</p>"),
            ("dir/with blank/index.html", "<p>blank</p>"),
            ("evil.com/index.html", "<p>evil</p>"),
            ("bare/file", "no index here"),
            (".hidden", "hidden"),
            (".git/config", "hidden"),
            (".well-known/security.txt", "known"),
            ("page.txt", "page page page page page"),
            ("page.txt.gz", "not really gzip"),
            ("page.txt.br", "not really brotli"),
            ("only.txt", "only gzip"),
            ("only.txt.gz", "gzip"),
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
            // Old enough that the server does not consider the file as one that is still being
            // changed.
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000)).unwrap();
        }
        let large: Vec<u8> = (0..LARGE).map(|i| (i / 3) as u8).collect();
        fs::write(root.join("large.bin"), large).unwrap();
        fs::write(site.directory.path().join("secret"), "SECRET").unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("/etc", root.join("etc")).unwrap();
        symlink("digits", root.join("in")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        symlink("nothing", root.join("dangling")).unwrap();
        symlink("/dev/zero", root.join("zero")).unwrap();
        mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        site
    }

    /// Returns the directory to serve. The file `secret` is beside it.
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }
}
