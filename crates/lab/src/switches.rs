//! Counts the context switches of a server's threads, voluntary and involuntary.
//!
//! The kernel counts them (a software event of perf_event_open(2)), because /proc shows live threads only:
//! a server that starts a thread or a process for each connection has none of these left at the end.
//! Threads and processes that the counted threads start later are also counted. Counting costs a fraction
//! of a microsecond for each switch, for every server alike, and slightly more for each fork or clone.

use crate::{measure, sys};
use anyhow::{Context as _, ensure};
use std::{fs::File, io::Read as _};

/// The most threads of one server that are counted: each requires a descriptor.
const MAX_THREADS: usize = 16_384;

/// Counters of a server's threads.
#[derive(Debug, Default)]
pub struct Switches {
    counters: Vec<File>,
}

impl Switches {
    /// Starts to count the context switches of `pid`, of its descendants, and of the threads and processes
    /// that they start.
    ///
    /// # Errors
    /// When the kernel does not allow it, or there are more threads than `MAX_THREADS`.
    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let mut counters = Vec::new();
        for pid in measure::processes(pid)? {
            // A process that has ended in the meantime makes no more switches.
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

    /// Returns the number of switches so far.
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

    /// Compares a shell that runs twenty programs, and waits for each to end, with a shell that does
    /// nothing.
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
