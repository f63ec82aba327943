//! The cache directory: kernels, headers, built modules. Each entry is a directory that appears in one
//! step and complete, and is made once even if several `pollux vm` start at the same time.

use crate::{process::Supervisor, progress};
use anyhow::{Context, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use std::{
    env,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How long another `pollux vm` may take to make the entry that this one needs (the debug kernel takes
/// longest).
const LOCK_WAIT: Duration = Duration::from_secs(3600);
const LOCK_TICK: Duration = Duration::from_millis(100);
/// The number of built modules and inits that are kept; the oldest are removed.
const BUILDS_MAX: usize = 32;
/// The groups of entries that every change of a source, or update of a package, adds to.
const PRUNED: [&str; 3] = ["images", "init", "modules"];

/// The cache directory.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache at `root`, or at `$POLLUX_CACHE`, or below `$XDG_CACHE_HOME`, or below `~/.cache`.
    ///
    /// # Errors
    /// No directory is known, or it cannot be created.
    pub fn open(root: Option<&Path>) -> anyhow::Result<Cache> {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let root = root
            .map(Path::to_owned)
            .or_else(|| set("POLLUX_CACHE"))
            .or_else(|| Some(set("XDG_CACHE_HOME")?.join("pollux")))
            .or_else(|| Some(set("HOME")?.join(".cache/pollux")))
            .context("no place for the cache: set POLLUX_CACHE to a directory")?;
        fs::create_dir_all(root.join("locks"))
            .with_context(|| format!("cache directory {} (set POLLUX_CACHE)", root.display()))?;
        let root = root.canonicalize()?;
        ensure!(
            !root.as_os_str().as_encoded_bytes().iter().any(u8::is_ascii_whitespace),
            "cache directory {:?}: make copes with no blanks in it; set POLLUX_CACHE to another",
            root
        );
        Ok(Cache { root })
    }

    /// The cache's directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of the entry `name`, such as `headers/6.1.0-56-amd64`. If it does not exist,
    /// `make` fills an empty directory for it.
    pub(crate) fn entry(
        &self,
        supervisor: &Supervisor,
        name: &str,
        make: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<PathBuf> {
        let path = self.root.join(name);
        if path.exists() {
            return Ok(path);
        }
        let (group, _) = name.split_once('/').context("an entry has a group")?;
        // Builds are short and have ever new names, so one lock is enough for all of them. A download,
        // or the debug kernel, must not delay other entries.
        let work = if PRUNED.contains(&group) { group.to_owned() } else { name.replace('/', "-") };
        let _lock = self.lock(supervisor, &work)?;
        if path.exists() {
            return Ok(path);
        }
        fs::create_dir_all(self.root.join(group))?;
        let partial = Partial::new(self.root.join("locks").join(format!("{work}.partial")))?;
        make(&partial.0)?;
        fs::rename(&partial.0, &path).with_context(|| format!("cache entry {}", path.display()))?;
        if PRUNED.contains(&group) {
            self.prune(group);
        }
        Ok(path)
    }

    /// A small text stored in the cache, such as the release that a series stands for.
    pub(crate) fn note(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.root.join(name)).ok()
    }

    /// Replaces a small text in one step.
    pub(crate) fn set_note(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.root)?;
        file.write_all(text.as_bytes())?;
        file.persist(self.root.join(name))?;
        Ok(())
    }

    /// Removes the oldest entries of a group of builds, which every change of a source adds to. An
    /// entry that another run has just built is among the newest, so it stays.
    fn prune(&self, group: &str) {
        let Ok(entries) = fs::read_dir(self.root.join(group)) else { return };
        let mut entries: Vec<_> = entries
            .flatten()
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        entries.sort();
        let surplus = entries.len().saturating_sub(BUILDS_MAX);
        for (_, path) in entries.into_iter().take(surplus) {
            let _ = fs::remove_dir_all(path);
        }
    }

    fn lock(&self, supervisor: &Supervisor, work: &str) -> anyhow::Result<File> {
        let path = self.root.join("locks").join(format!("{work}.lock"));
        let file = File::create(&path).with_context(|| format!("lock {}", path.display()))?;
        let start = Instant::now();
        let mut is_announced = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => return Err(error).context(format!("lock {}", path.display())),
            }
            supervisor.check()?;
            if start.elapsed() > Duration::from_secs(2) && !is_announced {
                progress::say(&format!("waiting for another `pollux vm` that makes {work}"));
                is_announced = true;
            }
            if start.elapsed() > LOCK_WAIT {
                bail!("another program has held {} for an hour; end it", path.display());
            }
            std::thread::sleep(LOCK_TICK);
        }
    }
}

/// A directory that is being filled. The holder of the entry's lock may remove the files of an earlier
/// run that was killed.
struct Partial(PathBuf);

impl Partial {
    fn new(path: PathBuf) -> anyhow::Result<Partial> {
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))?;
        }
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Partial(path))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename the directory is no longer there.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn an_entry_is_made_once_by_concurrent_runs() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(directory.path())).unwrap();
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let supervisor = Supervisor::new().unwrap();
                    let path = cache.entry(&supervisor, "group/entry", |partial| {
                        made.fetch_add(1, Ordering::SeqCst);
                        // Slow enough for the other runs to find that it is being made.
                        std::thread::sleep(Duration::from_millis(50));
                        fs::write(partial.join("file"), "whole").map_err(Into::into)
                    });
                    assert_eq!(fs::read(path.unwrap().join("file")).unwrap(), b"whole");
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn what_fails_or_was_killed_halfway_leaves_no_entry() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(directory.path())).unwrap();
        let supervisor = Supervisor::new().unwrap();
        let left = cache.root().join("locks/group-entry.partial");
        fs::create_dir_all(left.join("left by a killed run")).unwrap();
        let failed = cache.entry(&supervisor, "group/entry", |partial| {
            assert_eq!(fs::read_dir(partial).unwrap().count(), 0);
            bail!("no network")
        });
        assert!(failed.is_err() && !cache.root().join("group/entry").exists());
        assert!(!left.exists());
    }

    #[test]
    fn a_directory_that_make_cannot_use_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = Cache::open(Some(&directory.path().join("two words"))).unwrap_err();
        assert!(error.to_string().contains("POLLUX_CACHE"), "{error}");
    }

    #[test]
    fn only_the_newest_builds_stay() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(directory.path())).unwrap();
        for n in 0..BUILDS_MAX + 3 {
            let path = cache.root().join(format!("modules/{n}"));
            fs::create_dir_all(&path).unwrap();
            let time = std::time::UNIX_EPOCH + Duration::from_secs(1000 + n as u64);
            File::open(&path).unwrap().set_modified(time).unwrap();
        }
        cache.prune("modules");
        assert_eq!(fs::read_dir(cache.root().join("modules")).unwrap().count(), BUILDS_MAX);
        assert!(
            !cache.root().join("modules/2").exists() && cache.root().join("modules/3").exists()
        );
    }
}
