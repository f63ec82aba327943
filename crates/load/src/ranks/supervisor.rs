//! A process that stands in for a rank before launchers that kill without a warning.
//!
//! When one rank dies MPICH's launcher ends the process groups of all others with SIGKILL, and what
//! they measured would be lost with them. So there the launched process only starts the rank, in a
//! session of its own, and waits for it. The rank watches it through a pidfd (Linux 5.3); when the
//! launcher has killed it the rank ends its run and still reports: the launcher passes on what comes
//! through standard output until that is closed.

use super::clock::ClockReading;
use anyhow::{Context, Result, ensure};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, Signal},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    os::unix::process::{CommandExt, ExitStatusExt},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
};

/// Tells the rank the process that stands in for it.
const SUPERVISOR_PID: &str = "POLLUX_RANK_SUPERVISOR";

/// Runs this program again as the rank, and waits for its end. Returns its exit status; nothing in
/// the rank itself.
pub(super) fn supervise() -> Result<Option<u8>> {
    if std::env::var_os(SUPERVISOR_PID).is_some() {
        return Ok(None);
    }
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("catching signals")?;
    let program = std::env::current_exe().context("finding this program's file")?;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| program.clone().into());
    let mut rank = Command::new(&program)
        .arg0(name)
        .args(arguments)
        .env(SUPERVISOR_PID, std::process::id().to_string())
        .spawn()
        .with_context(|| format!("starting {} as a rank", program.display()))?;
    let pid = Pid::from_child(&rank);
    std::thread::spawn(move || {
        for signal in &mut signals {
            let signal = if signal == SIGINT { Signal::INT } else { Signal::TERM };
            let _ = rustix::process::kill_process(pid, signal);
        }
    });
    let status = rank.wait().context("waiting for the rank")?;
    if let Some(signal) = status.signal() {
        eprintln!("pollux: the rank's process {} was ended by signal {signal}", pid.as_raw_pid());
    }
    let code = status.code().unwrap_or(128 + status.signal().unwrap_or(0));
    Ok(Some(u8::try_from(code).unwrap_or(1)))
}

/// In the rank: what became of the process that stands in for it.
#[derive(Debug, Default)]
pub(super) struct Supervisor {
    /// When it was gone, by this host's monotonic clock; 0 while it is there.
    gone_ns: AtomicI64,
    /// Whether anybody would notice that the run is to end.
    pub(super) is_joined: AtomicBool,
}

impl Supervisor {
    /// Leaves the launcher's process group, and has `stop` set when the supervisor is gone. Without a
    /// supervisor nothing is done.
    pub(super) fn watch(stop: &Arc<AtomicBool>) -> Result<Arc<Self>> {
        let supervisor = Arc::new(Self::default());
        let Some(parent) =
            std::env::var(SUPERVISOR_PID).ok().and_then(|text| text.parse::<i32>().ok())
        else {
            return Ok(supervisor);
        };
        let lost = || format!("the process that stands in for this rank, {parent}, is gone");
        let pid = Pid::from_raw(parent).with_context(lost)?;
        let watched = rustix::process::pidfd_open(pid, PidfdFlags::empty()).with_context(lost)?;
        // It may have gone before it was watched, and its number be another's.
        ensure!(rustix::process::getppid() == Some(pid), lost());
        rustix::process::setsid().context("a session for the rank")?;
        let (watching, stop) = (supervisor.clone(), stop.clone());
        std::thread::Builder::new()
            .name("supervisor".into())
            .spawn(move || {
                // A pidfd becomes readable when its process ends.
                while poll(&mut [PollFd::new(&watched, PollFlags::IN)], None).is_err() {}
                watching.gone_ns.store(ClockReading::now().monotonic_ns, Relaxed);
                stop.store(true, Relaxed);
                if !watching.is_joined.load(Relaxed) {
                    std::process::exit(1);
                }
            })
            .context("a thread that watches the process that stands in for this rank")?;
        Ok(supervisor)
    }

    /// Since when the supervisor is gone.
    pub(super) fn gone_ns(&self) -> Option<i64> {
        Some(self.gone_ns.load(Relaxed)).filter(|&gone_ns| gone_ns != 0)
    }
}
