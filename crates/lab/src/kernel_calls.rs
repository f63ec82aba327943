//! Counts how often a process calls a kernel function, such as the poll function of its sockets.
//!
//! The kernel counts with a kprobe that belongs to one thread (perf_event_open(2)): calls by other threads
//! are not counted, every call is counted instead of a sample, and the probe ends with its descriptor. The
//! probe slows each call. A wait that is measured alone is therefore timed before its calls are counted,
//! and the times of a server whose calls are counted include the counting.

use crate::{measure, sys};
use anyhow::{Context as _, bail, ensure};
use std::{
    collections::BTreeMap,
    ffi::CString,
    fs::{self, File},
    io::Read as _,
    os::fd::OwnedFd,
};

/// The file with the numbers of the kernel's kprobe events.
const KIND: &str = "/sys/bus/event_source/devices/kprobe/type";
/// The most functions that are counted in one process.
pub const MAX_FUNCTIONS: usize = 8;
/// The most threads of one process that are counted.
const MAX_THREADS: usize = 4_096;

/// The counters of a process, which start at zero when they are opened.
#[derive(Debug)]
pub struct KernelCalls {
    counters: Vec<(String, File)>,
}

impl KernelCalls {
    /// Counts this thread's calls of `functions`.
    ///
    /// # Errors
    /// When the kernel has no kprobes, no such function, or does not allow it.
    pub fn of_this_thread(functions: &[String]) -> anyhow::Result<Self> {
        Self::of_threads(functions, &[0])
    }

    /// Counts the calls of `functions` by the threads of process `pid`, and by the threads that they start.
    ///
    /// # Errors
    /// As above; when the process has ended.
    pub fn of_process(functions: &[String], pid: u32) -> anyhow::Result<Self> {
        // Without functions nothing is counted, however many threads there are.
        let threads = if functions.is_empty() { Vec::new() } else { measure::threads(pid)? };
        ensure!(threads.len() <= MAX_THREADS, "the server has more than {MAX_THREADS} threads");
        Self::of_threads(functions, &threads)
    }

    fn of_threads(functions: &[String], threads: &[u32]) -> anyhow::Result<Self> {
        let mut counters = Vec::with_capacity(functions.len() * threads.len());
        if functions.is_empty() {
            return Ok(Self { counters });
        }
        ensure!(functions.len() <= MAX_FUNCTIONS, "calls of at most {MAX_FUNCTIONS} functions");
        let kind = kind()?;
        for function in functions {
            for &thread in threads {
                counters.push((function.clone(), open(kind, function, thread)?.into()));
            }
        }
        Ok(Self { counters })
    }

    /// Returns the calls so far, by function.
    ///
    /// # Errors
    /// When a counter cannot be read.
    pub fn read(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let mut sums = BTreeMap::new();
        for (function, counter) in &self.counters {
            let mut count = [0; size_of::<u64>()];
            let mut counter: &File = counter;
            counter.read_exact(&mut count).with_context(|| format!("the count of {function}"))?;
            *sums.entry(function.clone()).or_default() += u64::from_ne_bytes(count);
        }
        Ok(sums)
    }
}

fn kind() -> anyhow::Result<u32> {
    let text = fs::read_to_string(KIND).with_context(|| {
        format!("this kernel counts no calls of its functions: it has no kprobes ({KIND})")
    })?;
    text.trim().parse().with_context(|| format!("{KIND}: {text:?}"))
}

fn open(kind: u32, function: &str, thread: u32) -> anyhow::Result<OwnedFd> {
    let name = CString::new(function).context("the name of a function")?;
    sys::count_calls(kind, &name, thread).or_else(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::EINVAL | libc::EADDRNOTAVAIL) => {
            bail!("this kernel has no function {function:?} that can be probed ({error})")
        }
        Some(libc::EACCES | libc::EPERM) => {
            bail!("calls of {function} are counted for root only, or with CAP_PERFMON ({error})")
        }
        _ => Err(error).with_context(|| format!("counting the calls of {function}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn nothing_is_counted_without_functions() {
        assert!(KernelCalls::of_this_thread(&[]).unwrap().read().unwrap().is_empty());
        // Its threads are not listed either: no process has the number 0, so that would fail.
        assert!(KernelCalls::of_process(&[], 0).unwrap().read().unwrap().is_empty());
        assert!(KernelCalls::of_process(&["sock_poll".to_owned()], 0).is_err());
    }

    #[test]
    fn what_is_missing_is_named() {
        let functions = ["no_such_function_of_a_kernel".to_owned()];
        let message = format!("{:#}", KernelCalls::of_this_thread(&functions).unwrap_err());
        let reasons = ["no kprobes", "no_such_function_of_a_kernel", "CAP_PERFMON"];
        assert!(reasons.iter().any(|reason| message.contains(reason)), "{message}");
        let many = vec!["sock_poll".to_owned(); MAX_FUNCTIONS + 1];
        let message = format!("{:#}", KernelCalls::of_this_thread(&many).unwrap_err());
        assert_eq!(message, "calls of at most 8 functions");
    }

    /// poll(2) calls this function once for each socket; files have no such function.
    #[test]
    fn a_poll_of_three_sockets_is_three_calls() {
        // The other thread is created before the counter: a thread that this one starts later would be
        // counted with it.
        let (start, started) = std::sync::mpsc::channel::<()>();
        let others = std::thread::spawn(move || {
            started.recv().unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&now)).unwrap();
        });
        let calls = match KernelCalls::of_this_thread(&["sock_poll".to_owned()]) {
            Ok(calls) => calls,
            Err(reason) => return eprintln!("skipped: {reason:#}"),
        };
        let [a, b] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let file = File::open("/proc/self/stat").unwrap();
        let mut fds = [
            PollFd::new(&a, PollFlags::IN),
            PollFd::new(&b, PollFlags::IN),
            PollFd::new(&listener, PollFlags::IN),
            PollFd::new(&file, PollFlags::IN),
        ];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        start.send(()).unwrap();
        poll(&mut fds, Some(&now)).unwrap();
        poll(&mut fds, Some(&now)).unwrap();
        others.join().unwrap();
        assert_eq!(calls.read().unwrap()["sock_poll"], 6);
    }
}
