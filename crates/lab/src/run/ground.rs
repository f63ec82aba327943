//! What an experiment needs of the kernel beside its mechanisms: a network of its own, delay and
//! loss, calls that can be counted. Prepared before anything is measured.

use crate::environment::Cpus;
use crate::{
    environment::{Environment, guest},
    experiment::{Experiment, Machine, ReceiveOn, Subject},
    kernel_calls::KernelCalls,
    network, sys,
};
use anyhow::Context as _;

/// Prepares it for this thread and what it starts; the CPU to which the network's receive work is
/// led, if it is. Notes say what could not be had and can be done without.
///
/// # Errors
/// What this kernel lacks, and which one has it.
pub(super) fn prepare(
    experiment: &Experiment,
    cpus: Cpus,
    notes: &mut Vec<String>,
) -> anyhow::Result<Option<u32>> {
    KernelCalls::of_this_thread(&experiment.kernel_calls)
        .map_err(|error| in_guest_instead(experiment, &error))?;
    let receive_cpu = lead_receive_work(experiment, cpus, notes);
    if let Some(clients) = &experiment.clients {
        // Never on the loopback that others use.
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

/// Whether this runs where a clock counts instructions.
pub(super) fn is_deterministic(experiment: &Experiment) -> bool {
    experiment.place == Machine::DeterministicGuest && guest().is_some()
}

/// The kernel's threads that do the network's receive work where there is much of it at once (one for each CPU).
const DEFERRED: &str = "ksoftirqd/";

/// Gives the kernel's thread for deferred receive work priority over the generator. While that thread waits
/// for the CPU, all deferred work waits and is accounted to no process. Beside a generator with a higher
/// priority, the same work is accounted to the server in one window and to this thread in the next, and the
/// queue in front of it overflows in a burst of requests. A segment dropped there is sent again after one
/// or three seconds, and looks as if the server had lost it.
/// # Errors
/// When there is no such thread, or this process may not say when it runs.
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

/// What a reader should know of figures from a guest.
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

/// Which process has the one CPU of the deterministic guest, and when.
const SHARED_CPU: &str = " Server and generator share its one CPU; the generator goes first (SCHED_FIFO), and its own \
     instructions are reported beside those of the server. Before it goes the kernel's thread that receives what \
     comes too fast. At the limit the generator has more of that CPU than the server, so that best rates, and what \
     fails beyond them, are of both. Blocks differ by the seed of the arrivals alone.";

/// What this kernel lacks for the experiment, and the kernel that has it.
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

/// Leads the network's receive work to the server's CPU where the experiment wants that; the CPU,
/// if it was done. Where it could not be, a note says what is missing, and no claim is judged by what
/// depends on it.
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
