//! wrk as the neutral generator, so that no server is measured with a tool of its own project.

use crate::{generator::own_cpu_us, peer::Testbed};
use anyhow::{Context, bail};
use pollux_lab::run::{
    process::{Process, pinned},
    server::Server,
};
use std::{ffi::OsString, time::Duration};

/// The longest time that wrk may take in addition to its load.
const GRACE: Duration = Duration::from_secs(40);

/// The results of one run of wrk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrkRun {
    /// Requests that were answered.
    pub(crate) requests: u64,
    /// Answers per second.
    pub(crate) requests_per_s: f64,
    /// wrk's own CPU time, user and system, in microseconds.
    pub(crate) own_cpu_us: f64,
}

/// Runs wrk with one thread, pinned to `cpu`, and `connections` keep-alive connections, in a closed
/// loop.
pub(crate) fn run(
    testbed: &Testbed,
    server: &Server,
    document: &str,
    connections: usize,
    duration: Duration,
    cpu: u32,
) -> anyhow::Result<WrkRun> {
    let before = own_cpu_us()?;
    let mut program: Vec<OsString> = ["wrk", "-t1", "-c"].map(OsString::from).into();
    program.push(connections.to_string().into());
    program.extend(["-d".into(), format!("{}s", duration.as_secs().max(1)).into()]);
    program.push(format!("http://{}/{document}", server.address).into());
    let mut process = Process::spawn("wrk", &pinned(cpu, &program))?;
    let (status, text) = process.output(duration + GRACE, &testbed.interrupt)?;
    let own_cpu_us = own_cpu_us()? - before;
    if !status.success() {
        process.drain_stderr();
        bail!("{}; `scripts/setup peers` installs it\n{text}", process.complaint("failed"));
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
