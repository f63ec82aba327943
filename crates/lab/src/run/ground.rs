//! The kernel features that an experiment needs beside its mechanisms: its own network, delay and loss,
//! function calls that can be counted. They are set up before the measurements.

use crate::environment::Cpus;
use crate::{
    environment::{Environment, guest},
    experiment::{Experiment, Machine, ReceiveOn, Subject},
    kernel_calls::KernelCalls,
    network, sys,
};
use anyhow::Context as _;

/// Sets up the kernel for this thread and the processes that it starts. Returns the CPU that does the
/// network's receive work, if that work was moved. Adds a note for each optional feature that is missing.
///
/// # Errors
/// When this kernel lacks a required feature. The message names a kernel that has it.
pub(super) fn prepare(
    experiment: &Experiment,
    cpus: Cpus,
    notes: &mut Vec<String>,
) -> anyhow::Result<Option<u32>> {
    KernelCalls::of_this_thread(&experiment.kernel_calls)
        .map_err(|error| in_guest_instead(experiment, &error))?;
    let receive_cpu = lead_receive_work(experiment, cpus, notes);
    if let Some(clients) = &experiment.clients {
        // Delay and loss are never set up on the loopback interface that other processes use.
        if receive_cpu.is_none() {
            network::own().with_context(|| format!("experiment {}", experiment.id))?;
        }
        network::Distance::put(clients).map_err(|error| in_guest_instead(experiment, &error))?;
    }
    if is_deterministic(experiment) && experiment.subject == Subject::Server {
        receive_at_once()?;
    }
    Ok(receive_cpu)
}

/// Whether this process runs in a guest whose clock counts instructions.
pub(super) fn is_deterministic(experiment: &Experiment) -> bool {
    experiment.place == Machine::DeterministicGuest && guest().is_some()
}

/// The kernel threads that do deferred receive work when a lot of it is pending (one thread for each CPU).
const DEFERRED: &str = "ksoftirqd/";

/// Gives the kernel's thread for deferred receive work priority over the generator. While that thread waits
/// for the CPU, all deferred work waits and is accounted to no process. Beside a generator with a higher
/// priority, the same work is accounted to the server in one window and to this thread in the next, and the
/// queue in front of it overflows in a burst of requests. A segment dropped there is retransmitted after
/// one or three seconds, as if the server had lost it.
///
/// # Errors
/// When there is no such thread, or this process may not change its scheduling policy.
fn receive_at_once() -> anyhow::Result<()> {
    let mut found = 0;
    for process in std::fs::read_dir("/proc").context("/proc")? {
        let process = process.context("/proc")?;
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        let Some(id) = process.file_name().to_str().and_then(|id| id.parse().ok()) else {
            continue;
        };
        if name.starts_with(DEFERRED) {
            sys::goes_before_the_first(id).with_context(|| format!("{} first", name.trim()))?;
            found += 1;
        }
    }
    anyhow::ensure!(found > 0, "this kernel has no thread {DEFERRED}N");
    Ok(())
}

/// The note that explains figures measured in a guest.
pub(super) fn of_guest(experiment: &Experiment, environment: &Environment) -> Option<String> {
    let kernel = environment.guest.as_ref()?;
    let Some(mips) = environment.guest_mips else {
        return Some(format!(
            "These figures come from an emulated CPU: the guest of `pollux vm`, Linux {kernel}. \
             It is slower than a real one, by ten times or so, but not by the same factor in all \
             that it does. Only ratios between variants within this guest count; no time here \
             says anything about a machine."
        ));
    };
    let shared = match experiment.subject {
        Subject::Server if is_deterministic(experiment) => SHARED_CPU.to_owned(),
        Subject::Server => " Server and generator share its one CPU.".to_owned(),
        Subject::Wait => String::new(),
    };
    Some(format!(
        "These figures come from an emulated CPU whose clocks count instructions, {mips} million in a \
         second: the deterministic guest of `pollux vm`, Linux {kernel}. No cache, no memory and nothing \
         else on the machine slows it, and a further run of the same build gives the same figures. Its time \
         of day is made up.{shared}"
    ))
}

/// The order in which processes get the one CPU of the deterministic guest.
const SHARED_CPU: &str = " Server and generator share its one CPU; the generator goes first (SCHED_FIFO), and its own \
     instructions are reported beside those of the server. Before it goes the kernel's thread that receives what \
     comes too fast. At the limit the generator has more of that CPU than the server, so that best rates, and what \
     fails beyond them, are of both. Blocks differ by the seed of the arrivals alone.";

/// Adds the kernel that has the missing feature to an error.
fn in_guest_instead(experiment: &Experiment, error: &anyhow::Error) -> anyhow::Error {
    let id = &experiment.id;
    match guest() {
        Some(_) => anyhow::anyhow!("experiment {id}: {error:#}"),
        None => anyhow::anyhow!(
            "experiment {id}: {error:#}; `pollux lab run {id} --guest` runs it in a kernel with all \
             that it needs"
        ),
    }
}

/// Moves the network's receive work to the server's CPU if the experiment requires it, and returns that CPU
/// on success. On failure, a note says what is missing, and claims that depend on it are not judged.
fn lead_receive_work(experiment: &Experiment, cpus: Cpus, notes: &mut Vec<String>) -> Option<u32> {
    if experiment.receive_on == ReceiveOn::Sender || cpus.server == cpus.generator {
        return None;
    }
    match network::receive_on(cpus.server) {
        Ok(()) => Some(cpus.server),
        Err(error) => {
            notes.push(format!(
                "The network's receive work could not be moved to the server's CPU ({error:#}): the \
                 sender does it, so the generator may be the bottleneck before the server is. \
                 Run it as root."
            ));
            None
        }
    }
}
