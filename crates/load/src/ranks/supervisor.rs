//! The supervisor process of a rank, for launchers that kill without warning.
//!
//! When one rank dies, MPICH's launcher kills the process groups of all others with SIGKILL, and
//! their measurements would be lost. So the launched process only starts the rank, in a session of
//! its own, and waits for it: it is the rank's supervisor. The rank watches it through a pidfd
//! (Linux 5.3). After the launcher has killed the supervisor, the rank ends its run and still
//! reports, because the launcher forwards standard output until it is closed.

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

/// The environment variable that gives the rank its supervisor's process id.
const SUPERVISOR_PID: &str = "POLLUX_RANK_SUPERVISOR";

/// Starts this program again as the rank and waits for it. Returns the rank's exit status; `None`
/// in the rank itself.
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

/// In the rank: the state of its supervisor.
#[derive(Debug, Default)]
pub(super) struct Supervisor {
    /// The time at which the supervisor ended, by this host's monotonic clock; 0 while it runs.
    gone_ns: AtomicI64,
    /// Whether the run has begun and will check its stop flag.
    pub(super) is_joined: AtomicBool,
}

impl Supervisor {
    /// Leaves the launcher's process group and sets `stop` when the supervisor ends. Does nothing
    /// without a supervisor.
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
        // The supervisor may have ended before, and its process id may be in use again.
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

    /// The time at which the supervisor ended, if it did.
    pub(super) fn gone_ns(&self) -> Option<i64> {
        Some(self.gone_ns.load(Relaxed)).filter(|&gone_ns| gone_ns != 0)
    }
}
