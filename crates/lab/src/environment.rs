//! The machine on which something was measured.

use crate::run::trial::Cpus;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, process::Command};

/// What a reader needs to repeat a run, or to see why he gets other figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The version of this program.
    pub pollux: String,
    /// The revision of the source tree, when it was run from one, with `+` if it was changed.
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
    /// Where server and generator were pinned.
    pub pinned: Option<Cpus>,
    /// The CPU on which the network's receive work was done, where it was led to one.
    #[serde(default)]
    pub receive_cpu: Option<u32>,
    /// The CPU frequency governor.
    pub governor: Option<String>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The hypervisor flag of the CPU.
    pub virtual_machine: bool,
    /// The kernel of the guest of `pollux vm` that this is, whose CPU is emulated.
    pub guest: Option<String>,
    /// How many millions of instructions a second of that guest's clocks has, where they count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_mips: Option<u32>,
    /// The load average of one minute before the run.
    pub load_average: Option<f64>,
    /// Limits of this process: soft and hard, `None` for unlimited.
    pub limits: BTreeMap<String, (Option<u64>, Option<u64>)>,
    /// The sysctls that matter ([`SYSCTLS`]).
    pub sysctls: BTreeMap<String, String>,
}

/// The sysctls that bear on connections, as paths below /proc/sys.
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

/// A sysctl's value with single spaces, or `None` when the kernel does not have it.
pub fn sysctl(name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The limits that bear on connections: soft and hard.
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

/// The machine's memory (MemTotal of /proc/meminfo).
pub fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The release of this kernel if it is that of a guest of `pollux vm`, which says so in the
/// environment of what it runs (POLLUX_VM).
pub fn guest() -> Option<String> {
    std::env::var("POLLUX_VM").ok().filter(|release| !release.is_empty())
}

/// How many millions of instructions make a second of this guest's clocks, if it is a deterministic one
/// (POLLUX_VM_MIPS).
pub fn guest_mips() -> Option<u32> {
    std::env::var("POLLUX_VM_MIPS").ok()?.parse().ok().filter(|&mips| mips > 0)
}

/// `uname` in one line.
pub fn kernel() -> String {
    let uname = rustix::system::uname();
    [uname.sysname(), uname.release(), uname.version(), uname.machine()]
        .map(|part| part.to_string_lossy().into_owned())
        .join(" ")
}

impl Environment {
    /// Looks at this machine. What cannot be found out is left out.
    pub fn look(pinned: Cpus) -> Self {
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
            revision: revision(),
            command: crate::run::process::command_line(&words),
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
}

/// The revision of the source tree, for a guest that does not see it.
pub const REVISION: &str = "POLLUX_REVISION";

/// `git rev-parse` of the directory where the program was started, or what [`REVISION`] says.
pub fn revision() -> Option<String> {
    if let Ok(revision) = std::env::var(REVISION) {
        return Some(revision).filter(|revision| !revision.is_empty());
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let revision = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { revision } else { format!("{revision}+") })
}
