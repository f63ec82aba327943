//! A part of a CPU for a server that has none of its own.
//!
//! Where server and generator share one CPU, and the generator goes first, a server is at its limit when the
//! generator has used up the rest: which rate that is depends on what a request costs both. The kernel gives the
//! server a part that it cannot exceed (cpu.max of cgroup v2, the kernel's cgroup-v2.rst). As long as the generator
//! leaves that, the server's limit is its own, as that of a slower machine is.

use anyhow::Context as _;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The time for which a part is given, in microseconds: short, so that a server that has used it up is as one
/// that is slow, and not as one that stops.
const PERIOD_US: f64 = 4_000.0;
/// The least part: the kernel gives a millisecond in a period, and no less.
pub const LEAST: f64 = 0.25;
/// Where the hierarchy of control groups is.
const ROOT: &str = "/sys/fs/cgroup";
/// The server's group.
const GROUP: &str = "pollux-server";

/// The control group of a server, which has a part of a CPU.
#[derive(Debug)]
pub(super) struct Share {
    group: PathBuf,
}

impl Share {
    /// Gives these processes, all of them together with what they start from now on, `share` of a CPU at most.
    ///
    /// # Errors
    /// When the kernel has no such limit (cgroup v2 with its controller `cpu`), or this process may not set it.
    pub(super) fn of(share: f64, processes: &[u32]) -> anyhow::Result<Self> {
        Self::under(Path::new(ROOT), share, processes)
            .context("a part of a CPU for the server (cpu.max of cgroup v2)")
    }

    fn under(root: &Path, share: f64, processes: &[u32]) -> anyhow::Result<Self> {
        let group = root.join(GROUP);
        write(&root.join("cgroup.subtree_control"), "+cpu")?;
        if !group.is_dir() {
            fs::create_dir(&group).with_context(|| group.display().to_string())?;
        }
        let most_us = (share * PERIOD_US).round();
        write(&group.join("cpu.max"), &format!("{most_us} {PERIOD_US}"))?;
        for process in processes {
            write(&group.join("cgroup.procs"), &process.to_string())?;
        }
        Ok(Self { group })
    }

    /// For how long its processes had used their part up, so far, in nanoseconds.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub(super) fn throttled_ns(&self) -> anyhow::Result<u64> {
        let path = self.group.join("cpu.stat");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let found = text.lines().find_map(|line| line.strip_prefix("throttled_usec "));
        let us: u64 =
            found.and_then(|us| us.parse().ok()).context("cpu.stat lacks throttled_usec")?;
        Ok(us * 1_000)
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("{} to {}", text, path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_is_told() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(GROUP)).unwrap();
        let share = Share::under(root.path(), 0.28, &[17]).unwrap();
        let told = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        assert_eq!(told("cgroup.subtree_control"), "+cpu");
        assert_eq!(told("pollux-server/cpu.max"), "1120 4000");
        assert_eq!(told("pollux-server/cgroup.procs"), "17");
        let stat = "usage_usec 9\nnr_throttled 2\nthrottled_usec 1500\n";
        fs::write(root.path().join("pollux-server/cpu.stat"), stat).unwrap();
        assert_eq!(share.throttled_ns().unwrap(), 1_500_000);
    }

    #[test]
    fn a_kernel_without_such_a_limit_is_an_error() {
        let nothing = Path::new("/nowhere");
        let error = Share::under(nothing, 0.5, &[1]).unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere/cgroup.subtree_control"), "{error:#}");
    }
}
