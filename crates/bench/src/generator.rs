//! `pollux load` and `pollux idle` as children.

use crate::peer::Place;
use anyhow::{Context, bail};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

/// Runs `pollux load` against `address` with `args`, pinned to `cpu`; returns its JSON.
pub(crate) fn load(
    place: &Place,
    address: SocketAddr,
    cpu: u32,
    args: &[String],
) -> anyhow::Result<Value> {
    let output = Command::new("taskset")
        .args(["-c", &cpu.to_string()])
        .arg(&place.pollux)
        .args(["load", "--json", "--threads", "1"])
        .args(args)
        .arg(format!("http://{address}/1.txt"))
        .stdin(Stdio::null())
        .output()
        .context("cannot start pollux load")?;
    // 3 is "the generator was the bottleneck": expected at saturation, judged by the caller.
    if !matches!(output.status.code(), Some(0 | 3)) {
        bail!("pollux load failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("pollux load printed no JSON")
}

/// Idle keep-alive connections, each after one request; closed when dropped.
#[derive(Debug)]
pub(crate) struct IdlePool {
    child: Child,
    /// Kept open: it writes a line at its end, too.
    _stdout: BufReader<ChildStdout>,
}

impl IdlePool {
    /// Opens `count` connections and returns when all are held.
    pub(crate) fn open(place: &Place, address: SocketAddr, count: usize) -> anyhow::Result<Self> {
        let mut command = Command::new(&place.pollux);
        pollux_sys::end_with_parent(&mut command, libc::SIGTERM);
        let mut child = command
            .args(["idle", "--json", "--kind", "after-request", "--source", "127.0.2.0/24"])
            .args(["--path", "/1.txt"])
            .args(["--connections", &count.to_string(), "--duration", "600s"])
            .arg(address.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start pollux idle")?;
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().context("no pipe")?);
        stdout.read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line)
            .with_context(|| format!("pollux idle printed no JSON line but {line:?}"))?;
        let pool = Self { child, _stdout: stdout };
        if said["held"].as_u64() != Some(count as u64) {
            bail!("only {} of {count} idle connections could be held", said["held"]);
        }
        // The last replies may still be on their way through the server.
        std::thread::sleep(Duration::from_millis(300));
        Ok(pool)
    }
}

impl Drop for IdlePool {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
