//! How often a server's threads gave up the CPU, or lost it.
//!
//! The kernel counts (a software event of perf_event_open(2)): /proc shows live threads only, and a
//! server that makes a thread or a process for each connection has none of those left at the end. What
//! the counted threads start later is counted with them. It costs each switch a fraction of a
//! microsecond, for every server alike, and each fork or clone a little more.

use crate::{measure, sys};
use anyhow::{Context as _, ensure};
use std::{fs::File, io::Read as _};

/// The most threads of one server that are counted: each takes a descriptor.
const MAX_THREADS: usize = 16_384;

/// Counters of a server's threads.
#[derive(Debug, Default)]
pub struct Switches {
    counters: Vec<File>,
}

impl Switches {
    /// Counts, from now on, those of `pid`, of its descendants, and of what they start.
    ///
    /// # Errors
    /// When the kernel does not allow it, or there are more threads than `MAX_THREADS`.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let mut counters = Vec::new();
        for pid in measure::processes(pid)? {
            // One that has ended meanwhile switches no more.
            for thread in measure::threads(pid).unwrap_or_default() {
                ensure!(
                    counters.len() < MAX_THREADS,
                    "context switches of more than {MAX_THREADS} threads"
                );
                match sys::count_switches(thread) {
                    Ok(counter) => counters.push(counter.into()),
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => {
                        return Err(error).context(
                            "context switches are counted for root only, or with CAP_PERFMON",
                        );
                    }
                }
            }
        }
        Ok(Self { counters })
    }

    /// How many there were.
    ///
    /// # Errors
    /// When a counter cannot be read.
    pub fn read(&self) -> anyhow::Result<u64> {
        self.counters.iter().try_fold(0, |sum, mut counter: &File| {
            let mut count = [0; size_of::<u64>()];
            counter.read_exact(&mut count).context("a count of context switches")?;
            Ok(sum + u64::from_ne_bytes(count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Twenty programs, one after the other, of each of which the shell waits for the end; and a shell
    /// that does nothing.
    #[test]
    fn children_that_have_ended_are_counted() {
        let counted = |script: &str| {
            let mut shell = Command::new("sh")
                .args(["-c", &format!("read line; {script}; echo done; read line")])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let switches = Switches::of(shell.id());
            let (mut input, mut output) =
                (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
            std::io::Write::write_all(&mut input, b"\n").unwrap();
            output.read_exact(&mut [0; 5]).unwrap();
            let count = switches.and_then(|switches| switches.read());
            drop(input);
            shell.wait().unwrap();
            count
        };
        let twenty = "i=0; while [ $i -lt 20 ]; do /bin/sleep 0.001; i=$((i+1)); done";
        let (busy, quiet) = match (counted(twenty), counted("true")) {
            (Ok(busy), Ok(quiet)) => (busy, quiet),
            (Err(reason), _) | (_, Err(reason)) => return eprintln!("skipped: {reason:#}"),
        };
        // Each program sleeps once, and the shell waits for it once.
        assert!(busy >= quiet + 40, "{busy} with twenty programs, {quiet} without");
    }
}
