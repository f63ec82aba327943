//! The site that the corpus asks for, and servers of it.

use pollux_testkit::serve::Serve;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_pollux");

/// Octets of `large.bin`: more than is held in memory.
pub(crate) const LARGE: usize = 300_000;

pub(crate) struct Site {
    directory: TempDir,
}

impl Site {
    pub(crate) fn new() -> Self {
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
            // Old enough that nothing takes it for still changing.
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

    pub(crate) fn root(&self) -> std::path::PathBuf {
        self.directory.path().join("root")
    }
}

pub(crate) fn serve(site: &Site, arguments: &[&str]) -> Serve {
    serve_directory(&site.root(), arguments)
}

pub(crate) fn serve_directory(directory: &Path, arguments: &[&str]) -> Serve {
    Serve::start(BINARY, directory, arguments)
}

/// The mechanisms that this kernel offers, by the word of `pollux doctor`.
pub(crate) fn mechanisms() -> Vec<String> {
    let output = Command::new(BINARY).args(["doctor", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = report["mechanisms"].as_array().expect("a list of mechanisms");
    let name = |mechanism: &serde_json::Value| mechanism["name"].as_str().unwrap().to_owned();
    for mechanism in all.iter().filter(|mechanism| mechanism["available"] != true) {
        eprintln!("skipped: {}: {}", name(mechanism), mechanism["reason"]);
    }
    all.iter().filter(|mechanism| mechanism["available"] == true).map(name).collect()
}
