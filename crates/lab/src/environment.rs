//! The machine on which something was measured.

use crate::memory;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, path::Path, process::Command, time::Duration};

/// The CPUs to which the server and the generator are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    /// The server's CPU.
    pub server: u32,
    /// The CPU of the generator and the idle holder.
    pub generator: u32,
}

/// The information that a reader needs to repeat a run, or to explain different figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The version of this program.
    pub pollux: String,
    /// The commit that this program was built from, from [`revision`].
    pub revision: Option<String>,
    /// The command line.
    pub command: String,
    /// `uname`: system, release, version, machine.
    pub kernel: String,
    /// The distribution.
    pub system: Option<String>,
    /// The model of the first CPU.
    pub cpu: Option<String>,
    /// How many CPUs there are.
    pub cpus: usize,
    /// The CPUs to which server and generator were pinned.
    pub pinned: Option<Cpus>,
    /// The CPU that did the network's receive work, if the work was moved to one.
    #[serde(default)]
    pub receive_cpu: Option<u32>,
    /// The CPU frequency governor.
    pub governor: Option<String>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Whether the CPU has the hypervisor flag.
    pub virtual_machine: bool,
    /// The guest's kernel, if this machine is a guest of `pollux vm`, whose CPU is emulated.
    pub guest: Option<String>,
    /// Millions of instructions per second of that guest's clocks, if they count instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_mips: Option<u32>,
    /// The load average of one minute before the run.
    pub load_average: Option<f64>,
    /// The soft and hard limits of this process; `None` means unlimited.
    pub limits: BTreeMap<String, (Option<u64>, Option<u64>)>,
    /// The sysctls that affect connections ([`SYSCTLS`]).
    pub sysctls: BTreeMap<String, String>,
}

/// The sysctls that affect connections, as paths below /proc/sys.
pub const SYSCTLS: &[&str] = &[
    "fs/file-max",
    "fs/nr_open",
    "kernel/io_uring_disabled",
    "kernel/pid_max",
    "kernel/threads-max",
    "net/core/somaxconn",
    "net/core/netdev_max_backlog",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_fin_timeout",
    "net/ipv4/tcp_max_orphans",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_max_tw_buckets",
    "net/ipv4/tcp_mem",
    "net/ipv4/tcp_syncookies",
    "net/ipv4/tcp_tw_reuse",
];

/// Returns a sysctl's value with single spaces, or `None` when the kernel does not have it.
pub fn sysctl(name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns the soft and hard limits that affect connections.
pub fn limits() -> BTreeMap<String, (Option<u64>, Option<u64>)> {
    use rustix::process::{Resource, getrlimit};
    [
        ("nofile", Resource::Nofile),
        ("nproc", Resource::Nproc),
        ("memlock", Resource::Memlock),
        ("sigpending", Resource::Sigpending),
    ]
    .into_iter()
    .map(|(name, resource)| {
        let limit = getrlimit(resource);
        (name.to_owned(), (limit.current, limit.maximum))
    })
    .collect()
}

/// Returns the machine's memory in bytes (MemTotal of /proc/meminfo).
pub fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some(memory::kibibytes(&text, "MemTotal")? as u64 * 1024)
}

/// Returns the memory in bytes that this process may use: that of the machine, or less if a control group, such as that
/// of a container, has a limit.
pub fn usable_memory_bytes() -> Option<u64> {
    let machine = memory_bytes()?;
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = group_memory_bytes(Path::new("/sys/fs/cgroup"), &own);
    Some(limit.map_or(machine, |limit| limit.min(machine)))
}

/// Returns the least memory limit of the control groups (version 2) that contain a process. `own` is the content of its
/// /proc/PID/cgroup; `root` is where the groups are mounted.
fn group_memory_bytes(root: &Path, own: &str) -> Option<u64> {
    let group = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let group = root.join(group.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|directory| directory.starts_with(root));
    let limits = groups.filter_map(|directory| {
        // A group without a limit has the word "max".
        fs::read_to_string(directory.join("memory.max")).ok()?.trim().parse::<u64>().ok()
    });
    limits.min()
}

/// Returns the release of this kernel if the machine is a guest of `pollux vm`, which sets the environment
/// variable POLLUX_VM.
pub fn guest() -> Option<String> {
    std::env::var("POLLUX_VM").ok().filter(|release| !release.is_empty())
}

/// The factor by which time limits are longer in a guest. Its CPU is emulated, and it reads programs over
/// 9p: a debug build takes seconds to start there.
const GUEST_FACTOR: u32 = 8;

/// Returns `limit`, or a longer one if this machine is a guest.
pub fn patience(limit: Duration) -> Duration {
    if guest().is_some() { limit * GUEST_FACTOR } else { limit }
}

/// Returns the millions of instructions per second of this guest's clocks, if it is a deterministic guest
/// (POLLUX_VM_MIPS).
pub fn guest_mips() -> Option<u32> {
    std::env::var("POLLUX_VM_MIPS").ok()?.parse().ok().filter(|&mips| mips > 0)
}

/// Returns `uname` in one line.
pub fn kernel() -> String {
    let uname = rustix::system::uname();
    [uname.sysname(), uname.release(), uname.version(), uname.machine()]
        .map(|part| part.to_string_lossy().into_owned())
        .join(" ")
}

impl Environment {
    /// Reads the facts about this machine, for a program that was built from the commit `built`. Facts that
    /// cannot be read are absent.
    pub fn look(pinned: Cpus, built: Option<&str>) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            cpuinfo.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            })
        };
        let words: Vec<_> = std::env::args_os().collect();
        Self {
            pollux: env!("CARGO_PKG_VERSION").into(),
            revision: revision(built),
            command: crate::format::command_line(&words),
            kernel: kernel(),
            system: fs::read_to_string("/etc/os-release").ok().and_then(|text| {
                let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
                Some(name.trim_matches('"').to_owned())
            }),
            cpu: field("model name"),
            cpus: std::thread::available_parallelism().map_or(1, |count| count.get()),
            pinned: Some(pinned),
            receive_cpu: None,
            governor: fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .ok()
                .map(|text| text.trim().to_owned()),
            memory_bytes: memory_bytes(),
            virtual_machine: field("flags")
                .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
            guest: guest(),
            guest_mips: guest_mips(),
            load_average: fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|text| text.split_whitespace().next()?.parse().ok()),
            limits: limits(),
            sysctls: SYSCTLS
                .iter()
                .filter_map(|&name| Some((name.replace('/', "."), sysctl(name)?)))
                .collect(),
        }
    }

    /// Returns the first difference between `self` and `now` that affects measurements: runs before and
    /// after it must not be in one result.
    pub fn difference(&self, now: &Self) -> Option<String> {
        let or = |value: Option<String>, none: &str| value.unwrap_or_else(|| none.to_owned());
        let things = |one: &Self| {
            let pinned = one.pinned.map(|cpus| format!("{} and {}", cpus.server, cpus.generator));
            let build = one.revision.as_ref().map(|revision| revision.trim_end_matches('+'));
            [
                ("version", one.pollux.clone()),
                // Files that were changed after the build are not compared here.
                ("build", or(build.map(str::to_owned), "not known")),
                ("kernel", one.kernel.clone()),
                ("CPU", or(one.cpu.clone(), "not known")),
                ("CPUs of server and generator", or(pinned, "any")),
                (
                    "CPU to which the network's receive work is led",
                    or(one.receive_cpu.map(|cpu| cpu.to_string()), "none"),
                ),
                ("guest", or(one.guest.clone(), "none")),
                (
                    "million instructions in a second of the guest",
                    or(one.guest_mips.map(|mips| mips.to_string()), "not counted"),
                ),
            ]
        };
        let (before, now) = (things(self), things(now));
        let mut pairs = before.into_iter().zip(now);
        let ((what, before), (_, now)) = pairs.find(|((_, before), (_, now))| before != now)?;
        Some(format!("{what}: {before} then, {now} now"))
    }
}

/// The environment variable with the value of [`revision`], for a guest that does not see the source tree.
pub const REVISION: &str = "POLLUX_REVISION";

/// Returns the commit that this program was built from (`built`, known at build time), followed by `+` if
/// the program was started in a checkout of that commit with changed files. If [`REVISION`] is set, its
/// value is returned instead. A directory with another commit, or of another project, gives no information
/// about the program.
pub fn revision(built: Option<&str>) -> Option<String> {
    if let Ok(revision) = std::env::var(REVISION) {
        return Some(revision).filter(|revision| !revision.is_empty());
    }
    let built = built?;
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let is_its_checkout = git(&["rev-parse", "HEAD"]).is_some_and(|head| head.starts_with(built));
    let changes = || git(&["status", "--porcelain", "--untracked-files=no"]);
    let is_changed = is_its_checkout && changes().is_some_and(|changes| !changes.is_empty());
    Some(if is_changed { format!("{built}+") } else { built.to_owned() })
}

/// Returns the commit in the description of a build: `32b38f2 2026-11-21, release build, …`, or the name
/// that a packager gave it; `None` when the build does not know its commit.
pub fn commit(build: &str) -> Option<&str> {
    let (commit, _) = build.split_once(", ").unwrap_or((build, ""));
    let first = commit.split(' ').next().unwrap_or_default();
    let is_hash = first.len() >= 7 && first.chars().all(|c| c.is_ascii_hexdigit());
    match commit {
        "" | UNKNOWN_COMMIT => None,
        _ if is_hash => Some(first),
        given => Some(given),
    }
}

/// The text in the description of a build that does not know its commit.
const UNKNOWN_COMMIT: &str = "commit not known";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_knows_its_commit_or_has_none() {
        let rest = "release build, x86_64-unknown-linux-gnu";
        for (build, found) in [
            ("32b38f2a11 2026-11-21", Some("32b38f2a11")),
            ("1.0-3", Some("1.0-3")),
            ("Debian 1.0 of today", Some("Debian 1.0 of today")),
            ("commit not known", None),
            ("", None),
        ] {
            assert_eq!(commit(&format!("{build}, {rest}")), found);
            assert_eq!(commit(build), found);
        }
    }

    /// Regression: the doctor counted the memory of the whole machine in a container.
    #[test]
    fn the_least_limit_of_the_control_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let limit = |own: &str| group_memory_bytes(root.path(), own);
        let inner = root.path().join("system.slice/pollux.service");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit("0::/system.slice/pollux.service\n"), None);
        fs::write(root.path().join("system.slice/memory.max"), "1073741824\n").unwrap();
        assert_eq!(limit("1:name=systemd:/\n0::/system.slice/pollux.service\n"), Some(1 << 30));
        fs::write(inner.join("memory.max"), "536870912\n").unwrap();
        assert_eq!(limit("0::/system.slice/pollux.service\n"), Some(512 << 20));
        assert_eq!(limit("0::/\n"), None);
        // A container sees its own group as the root.
        fs::write(root.path().join("memory.max"), "268435456\n").unwrap();
        assert_eq!(limit("0::/\n"), Some(256 << 20));
        assert_eq!(limit("1:memory:/\n"), None);
    }

    #[test]
    fn what_differs_between_two_machines_is_named() {
        let there = Environment {
            kernel: "Linux 6.1".into(),
            pinned: Some(Cpus { server: 0, generator: 1 }),
            receive_cpu: None,
            ..Environment::default()
        };
        // Neither the load of the machine nor the command line is a difference.
        let load_average = Some(9.0);
        let later = Environment { command: "another".into(), load_average, ..there.clone() };
        assert_eq!(there.difference(&later), None);
        let changed = |now: Environment| there.difference(&now).unwrap();
        let kernel = changed(Environment { kernel: "Linux 6.12".into(), ..there.clone() });
        assert_eq!(kernel, "kernel: Linux 6.1 then, Linux 6.12 now");
        let build = changed(Environment { revision: Some("abc".into()), ..there.clone() });
        assert_eq!(build, "build: not known then, abc now");
        let network = changed(Environment { receive_cpu: Some(0), ..there.clone() });
        assert!(network.contains("none then, 0 now"), "{network}");
        let alone = Some(Cpus { server: 0, generator: 0 });
        let pinned = changed(Environment { pinned: alone, ..there.clone() });
        assert!(pinned.contains("0 and 1 then, 0 and 0 now"), "{pinned}");
        let guest = changed(Environment { guest: Some("6.1.0".into()), ..there.clone() });
        assert!(guest.starts_with("guest: "), "{guest}");
    }
}
