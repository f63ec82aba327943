//! The host's resources for a run: descriptors and CPUs.

use anyhow::{Context, Result, ensure};
use pollux_sys as sys;

/// Descriptors of each file table that are not used for connections: standard streams, the interest
/// set, files of the process.
pub(crate) const RESERVED_DESCRIPTORS: usize = 64;

/// Raises the limit on descriptors as far as possible, and returns it.
pub(crate) fn raise_descriptors() -> Result<u64> {
    sys::raise_descriptor_limit().context("raising the limit on descriptors")
}

/// Binds this thread to `cpu`, if given, and makes its timers exact.
pub(crate) fn pin(cpu: Option<usize>) -> Result<()> {
    if let Some(cpu) = cpu {
        let mut set = rustix::thread::CpuSet::new();
        ensure!(cpu < rustix::thread::CpuSet::MAX_CPU, "--pin {cpu}: this host has no such CPU");
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set)
            .with_context(|| format!("--pin {cpu}: this host has no such CPU, or forbids it"))?;
    }
    // The default timer slack, 50 µs, would add to the lag. A failure is harmless: the lag is
    // measured.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
    Ok(())
}
