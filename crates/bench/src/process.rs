//! A server under measurement: started, asked for its CPU time and memory, ended.

use anyhow::{Context, bail};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a server may take to answer its first request.
const START_LIMIT: Duration = Duration::from_secs(10);

/// A running server. Ended when dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    name: &'static str,
}

impl Running {
    /// Starts `command` and waits until `address` answers a request.
    pub(crate) fn start(
        name: &'static str,
        mut command: Command,
        address: SocketAddr,
        scratch: &Path,
    ) -> anyhow::Result<Self> {
        // So that a bench that is killed leaves no server behind: SIGTERM, for the reason below.
        pollux_sys::end_with_parent(&mut command, libc::SIGTERM);
        let log = scratch.join(format!("{name}.out"));
        let out = fs::File::create(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("cannot start {name}: {command:?}"))?;
        let mut running = Self { child, address, name };
        let started_at = Instant::now();
        while !running.answers() {
            if let Some(status) = running.child.try_wait()? {
                let said = fs::read_to_string(&log).unwrap_or_default();
                bail!("{name} ended at once ({status}); it said:\n{said}");
            }
            if started_at.elapsed() > START_LIMIT {
                bail!("{name} did not answer on {address} within {START_LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    fn answers(&self) -> bool {
        let limit = Duration::from_millis(500);
        let Ok(mut stream) = TcpStream::connect_timeout(&self.address, limit) else {
            return false;
        };
        let _ = stream.set_read_timeout(Some(limit));
        let request = b"GET /1.txt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut head = [0; 12];
        stream.write_all(request).is_ok()
            && stream.read_exact(&mut head).is_ok()
            && &head == b"HTTP/1.1 200"
    }

    /// The CPU time of all its threads and children so far, in nanoseconds
    /// (`/proc/PID/task/TID/schedstat`, first field).
    pub(crate) fn cpu_ns(&self) -> anyhow::Result<u64> {
        let mut total = 0;
        for pid in family(self.child.id())? {
            for task in fs::read_dir(format!("/proc/{pid}/task"))? {
                let path = task?.path().join("schedstat");
                // A thread may end between the listing and the reading.
                if let Ok(text) = fs::read_to_string(&path) {
                    total += text.split(' ').next().unwrap_or("0").trim().parse::<u64>()?;
                }
            }
        }
        Ok(total)
    }

    /// The anonymous memory of all its processes, in bytes (`Anonymous` in smaps_rollup):
    /// heap and stacks, without files and without the kernel's socket memory.
    pub(crate) fn anonymous_bytes(&self) -> anyhow::Result<u64> {
        let mut total = 0;
        for pid in family(self.child.id())? {
            let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let line = text.lines().find(|line| line.starts_with("Anonymous:"));
            let kib = line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or("0");
            total += kib.parse::<u64>()? * 1024;
        }
        Ok(total)
    }
}

/// `pid` and all its descendants.
fn family(pid: u32) -> anyhow::Result<Vec<u32>> {
    let mut all = vec![pid];
    let mut next = 0;
    while next < all.len() {
        let pid = all[next];
        next += 1;
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten() {
            let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|text| text.parse::<u32>().ok()));
        }
    }
    Ok(all)
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGTERM lets nginx's master end its worker; SIGKILL would leave the worker behind.
        let pids = family(self.child.id()).unwrap_or_default();
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let started_at = Instant::now();
        while started_at.elapsed() < Duration::from_secs(3) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        eprintln!("bench: {} did not end on SIGTERM; it is killed", self.name);
        for pid in pids {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
        let _ = self.child.wait();
    }
}
