//! wrk as the neutral generator, so that no server is measured by its own house's tool.

use anyhow::{Context, bail};
use serde::Serialize;
use std::{net::SocketAddr, process::Command, time::Duration};

/// What one run of wrk did.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct WrkRun {
    /// Requests that were answered.
    pub(crate) requests: u64,
    /// Answers a second.
    pub(crate) requests_per_s: f64,
    /// wrk's own CPU time, user and system, in microseconds.
    pub(crate) own_cpu_us: f64,
}

/// One thread, pinned to `cpu`, `connections` kept alive, closed loop.
pub(crate) fn run(
    address: SocketAddr,
    document: &str,
    connections: usize,
    duration: Duration,
    cpu: u32,
) -> anyhow::Result<WrkRun> {
    let before = crate::usage::children_cpu_us()?;
    let output = Command::new("taskset")
        .args(["-c", &cpu.to_string(), "wrk", "-t1"])
        .args(["-c", &connections.to_string()])
        .args(["-d", &format!("{}s", duration.as_secs().max(1))])
        .arg(format!("http://{address}/{document}"))
        .output()
        .context("cannot start wrk: run `scripts/setup peers`")?;
    let own_cpu_us = crate::usage::children_cpu_us()? - before;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("wrk failed: {}{text}", String::from_utf8_lossy(&output.stderr));
    }
    if let Some(line) =
        text.lines().find(|line| line.contains("Socket errors") || line.contains("Non-2xx"))
    {
        bail!("wrk met errors, so the run does not count: {}", line.trim());
    }
    // "  412345 requests in 3.00s, 95.12MB read"
    let line = text.lines().find(|line| line.contains(" requests in "));
    let requests = line
        .and_then(|line| line.split_whitespace().next())
        .and_then(|word| word.parse::<u64>().ok())
        .with_context(|| format!("cannot read wrk's report:\n{text}"))?;
    let line = text.lines().find(|line| line.starts_with("Requests/sec:"));
    let requests_per_s = line
        .and_then(|line| line.split_whitespace().nth(1))
        .and_then(|word| word.parse::<f64>().ok())
        .with_context(|| format!("cannot read wrk's report:\n{text}"))?;
    Ok(WrkRun { requests, requests_per_s, own_cpu_us })
}
