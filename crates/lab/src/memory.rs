//! The memory of a server's processes, and of the kernel.

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::{fs, ops::Sub};

/// The fewest connections whose memory is reported: the memory of fewer connections is less than the
/// machine's variation from second to second.
pub const LEAST_CONNECTIONS: u64 = 1_000;

/// The fewest stored documents whose memory is reported, for the same reason.
pub const LEAST_OBJECTS: u64 = 1_000;

/// Memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The private pages of the server's processes (without those of files), in bytes.
    pub user_bytes: i64,
    /// The kernel's memory without the cache of files, in bytes.
    pub kernel_bytes: i64,
}

impl Sub for Memory {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self {
            user_bytes: self.user_bytes - earlier.user_bytes,
            kernel_bytes: self.kernel_bytes - earlier.kernel_bytes,
        }
    }
}

/// The cost of holding idle connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldCost {
    /// The number of connections.
    pub connections: u64,
    /// The time from the start of the holder until the server had all connections, in nanoseconds.
    pub fill_ns: u64,
    /// The server's CPU time during this time, in nanoseconds.
    pub fill_cpu_ns: u64,
    /// The growth of the memory. The kernel's part covers both ends of each connection, and includes the
    /// holder's own interest set.
    pub memory: Memory,
    /// The last change of the kernel's memory before the connections, in bytes, if that memory still
    /// changed at the end of the longest wait of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_moved_bytes: Option<u64>,
}

impl HoldCost {
    /// Returns the memory of one connection, if there are enough connections to measure it.
    pub fn of_one(&self, bytes: fn(&Memory) -> i64) -> Option<f64> {
        (self.connections >= LEAST_CONNECTIONS)
            .then(|| bytes(&self.memory) as f64 / self.connections as f64)
    }
}

/// The cost of storing documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreCost {
    /// The number of documents.
    pub objects: u64,
    /// The documents' own bytes in total: the URL of each, the lines of the origin's header fields that are
    /// not about the connection or the length, and the content.
    pub own_bytes: u64,
    /// From the first request to the last reply, in nanoseconds.
    pub fill_ns: u64,
    /// The growth of the memory.
    pub memory: Memory,
}

/// Returns the memory that the server's processes and the kernel use now.
///
/// # Errors
/// When a process has ended, or /proc does not show its memory.
pub fn now(pids: &[u32]) -> anyhow::Result<Memory> {
    let mut user = 0;
    for (index, pid) in pids.iter().enumerate() {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = match fs::read_to_string(&path) {
            // A process for one connection ends with that connection.
            Err(_) if index > 0 => continue,
            read => read.with_context(|| path.clone())?,
        };
        // The proportional share of pages that several processes have in common: otherwise a forked process
        // would count all pages of its parent.
        user += kibibytes(&text, "Pss_Anon")
            .or_else(|| kibibytes(&text, "Anonymous"))
            .with_context(|| format!("{path}: no Anonymous"))?;
    }
    let text = fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let zones = fs::read_to_string("/proc/zoneinfo").context("/proc/zoneinfo")?;
    let kept = kept_pages(&zones) * rustix::param::page_size() as i64;
    let kernel_bytes = kernel_kibibytes(&text)? * 1024 - kept;
    Ok(Memory { user_bytes: user * 1024, kernel_bytes })
}

/// Returns the free pages in the per-CPU lists, sometimes tens of MB, which MemFree does not include.
fn kept_pages(zoneinfo: &str) -> i64 {
    let counts = zoneinfo.lines().filter_map(|line| line.trim().strip_prefix("count:"));
    counts.filter_map(|count| count.trim().parse::<i64>().ok()).sum()
}

/// Returns the memory that is neither free, nor a cache of files, nor private to a process: slabs, directly
/// allocated pages, page tables, stacks. Slab alone would miss large tables.
fn kernel_kibibytes(meminfo: &str) -> anyhow::Result<i64> {
    let field =
        |name| kibibytes(meminfo, name).with_context(|| format!("/proc/meminfo: no {name}"));
    let others = ["MemFree", "Buffers", "Cached", "SwapCached", "AnonPages"];
    others.into_iter().try_fold(field("MemTotal")?, |left, name| Ok(left - field(name)?))
}

/// Returns the number for this name in a file of /proc with lines of this form.
pub fn kibibytes(text: &str, name: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_part_is_the_unattributed_memory() {
        let text = "MemTotal:  1000 kB\nMemFree: 300 kB\nMemAvailable: 900 kB\nBuffers: 10 kB\n\
                    Cached: 200 kB\nSwapCached: 0 kB\nAnonPages: 90 kB\n";
        assert_eq!(kernel_kibibytes(text).unwrap(), 400);
        assert!(kernel_kibibytes("MemTotal: 1 kB\n").is_err());
        let zones = "  pages free 77\n  pagesets\n    cpu: 0\n              count:    12\n              \
                     high: 90\n    cpu: 1\n              count: 30\n";
        assert_eq!(kept_pages(zones), 42);
    }

    #[test]
    fn memory_that_is_used_is_seen() {
        let own = [std::process::id()];
        let is_seen = || {
            let before = now(&own).unwrap();
            // Touch every page.
            let pages = std::hint::black_box(vec![1_u8; 32 << 20]);
            pages.len() as i64 <= (now(&own).unwrap() - before).user_bytes
        };
        // Other tests of this process may free memory at the same time, but not in every attempt.
        assert!((0..20).any(|_| is_seen()), "32 MiB were never seen");
        assert!(now(&own).unwrap().kernel_bytes > 0);
    }

    /// Returns how much 16 MiB in pipes add to the kernel's memory; none if pipes of that size are not
    /// allowed.
    fn grown_by_pipes() -> Option<i64> {
        let before = now(&[]).unwrap().kernel_bytes;
        let mut pipes = Vec::new();
        for _ in 0..16 {
            let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
            rustix::pipe::fcntl_setpipe_size(&write, 1 << 20).ok()?;
            while rustix::io::write(&write, &[1; 65536]).is_ok() {}
            pipes.push((read, write));
        }
        Some(now(&[]).unwrap().kernel_bytes - before)
    }

    #[test]
    fn kernel_memory_that_is_used_is_seen() {
        // Other processes may free as much memory at the same time, but not in every attempt.
        for _ in 0..20 {
            match grown_by_pipes() {
                None => return eprintln!("skipped: pipes of 1 MiB are not allowed here"),
                Some(grown) if grown > 8 << 20 => return,
                Some(_) => {}
            }
        }
        panic!("16 MiB in pipes were never seen");
    }
}
