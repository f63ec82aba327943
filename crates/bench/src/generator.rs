//! Runs `pollux load` and `pollux idle` as child processes.

use crate::peer::{PATH, Testbed};
use anyhow::ensure;
use pollux_lab::{
    measure,
    run::{
        process::{Process, pinned},
        server::Server,
        trial,
    },
};
use serde_json::Value;
use std::{ffi::OsString, time::Duration};

/// The CPU time of children that have ended so far, in microseconds. The servers under measurement are
/// children too, but none of them ends while a generator is measured.
pub(crate) fn own_cpu_us() -> anyhow::Result<f64> {
    Ok(measure::ended_children_ns()? as f64 / 1000.0)
}

/// Runs `pollux load` against `server` for `duration`, with the additional `flags`, pinned to `cpu`;
/// returns its JSON.
pub(crate) fn load(
    testbed: &Testbed,
    server: &Server,
    cpu: u32,
    duration: Duration,
    flags: &[&str],
) -> anyhow::Result<Value> {
    let seconds = duration.as_secs_f64();
    let mut program: Vec<OsString> = vec![testbed.pollux.clone().into()];
    program.extend(["load", "--json", "--threads", "1"].map(OsString::from));
    program.extend(["--duration".into(), format!("{seconds}s").into()]);
    program.extend(flags.iter().map(OsString::from));
    program.push(format!("http://{}{PATH}", server.address).into());
    let mut process = Process::spawn("pollux load", &pinned(cpu, &program))?;
    let report = trial::result_of(&mut process, seconds, &testbed.interrupt)?;
    let completed = report["requests"]["completed"].as_u64();
    ensure!(completed > Some(0), "{}", process.complaint("had no request answered"));
    Ok(report)
}

/// Opens `count` keep-alive connections to `server`, each of which makes one request and is then idle,
/// and returns when all are open. They are closed when the process ends.
pub(crate) fn hold(testbed: &Testbed, server: &Server, count: usize) -> anyhow::Result<Process> {
    let mut program: Vec<OsString> = vec![testbed.pollux.clone().into()];
    program.extend(
        ["idle", "--json", "--kind", "after-request", "--source", "127.0.2.0/24"]
            .map(OsString::from),
    );
    program.extend(["--path", PATH, "--duration", "600s"].map(OsString::from));
    program.extend(["--connections".into(), count.to_string().into()]);
    program.push(server.address.clone().into());
    let mut process = Process::spawn("pollux idle", &program)?;
    server.await_open(count as u64, &mut process, &testbed.interrupt)?;
    Ok(process)
}
