//! Capabilities (capabilities(7)): the parts of root's rights.

use anyhow::Context;
use caps::{CapSet, Capability, CapsHashSet};

/// The capabilities of a server that stays root. Its operator expects that it can read and write the
/// files of all users: sites, keys, logs, caches. Its ports are bound already, and a successor is
/// started by a process that has all capabilities.
const OF_ROOT: [Capability; 3] =
    [Capability::CAP_DAC_OVERRIDE, Capability::CAP_DAC_READ_SEARCH, Capability::CAP_FOWNER];

/// Ensures that no program which this process executes can have a capability, not even as root:
/// empties the ambient, the bounding and the inheritable set of this thread and of the threads and
/// processes that it starts. The thread needs its own capabilities until it has become another user;
/// then [`give_up`] follows.
///
/// # Errors
/// EPERM without CAP_SETPCAP.
pub(super) fn forbid_all() -> anyhow::Result<()> {
    for set in [CapSet::Ambient, CapSet::Bounding, CapSet::Inheritable] {
        caps::clear(None, set).with_context(|| format!("the {set:?} set of capabilities"))?;
    }
    Ok(())
}

/// Gives up all capabilities of this thread, and of the threads and processes that it starts, also
/// those that a process of an ordinary user was started with. The bounding set stays: only
/// CAP_SETPCAP may change it, and with no_new_privs it grants nothing.
///
/// # Errors
/// The errors of capset(2) and prctl(2).
pub(super) fn give_up() -> anyhow::Result<()> {
    // Without permitted capabilities, there are no effective ones either.
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Permitted] {
        caps::clear(None, set).with_context(|| format!("the {set:?} set of capabilities"))?;
    }
    Ok(())
}

/// Gives up the capabilities that a server does not need which keeps its user: all except
/// [`OF_ROOT`]. Returns those that are left. Holds for this thread, and for the threads and processes
/// that it starts.
///
/// # Errors
/// The errors of capset(2) and prctl(2).
pub(super) fn restrict() -> anyhow::Result<Vec<Capability>> {
    let needed = CapsHashSet::from(OF_ROOT);
    // Only CAP_SETPCAP may change the bounding set, and many containers do not have it. With
    // no_new_privs, the set grants nothing.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for other in caps::read(None, CapSet::Bounding)?.difference(&needed) {
            caps::drop(None, CapSet::Bounding, *other)
                .with_context(|| format!("{other} in the bounding set of capabilities"))?;
        }
    }
    caps::clear(None, CapSet::Ambient).context("the Ambient set of capabilities")?;
    let left: CapsHashSet =
        caps::read(None, CapSet::Permitted)?.intersection(&needed).copied().collect();
    // An effective capability must be permitted.
    for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        let present = caps::read(None, set)?;
        let own: CapsHashSet = match set {
            CapSet::Inheritable => CapsHashSet::new(),
            _ => present.intersection(&left).copied().collect(),
        };
        // Units with `SystemCallFilter=~@privileged` refuse capset(2), and their processes have no capability.
        if own != present {
            caps::set(None, set, &own)
                .with_context(|| format!("the {set:?} set of capabilities"))?;
        }
    }
    let mut left: Vec<_> = left.into_iter().collect();
    left.sort_unstable_by_key(Capability::index);
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    use std::{collections::BTreeMap, env::consts::ARCH, thread};

    /// Regression: a server without capabilities could not enter its sandbox where capset(2) is refused.
    #[test]
    fn a_process_without_capabilities_needs_no_capset() {
        // Capabilities and filters belong to a thread.
        let without = thread::spawn(|| {
            give_up().unwrap();
            let refused = BTreeMap::from([(libc::SYS_capset, Vec::new())]);
            let action = SeccompAction::Errno(libc::EPERM as u32);
            let arch = ARCH.try_into().unwrap();
            let filter = SeccompFilter::new(refused, SeccompAction::Allow, action, arch).unwrap();
            let program: BpfProgram = filter.try_into().unwrap();
            seccompiler::apply_filter(&program).unwrap();
            assert!(give_up().is_err(), "the filter has no effect");
            assert!(restrict().unwrap().is_empty());
        });
        without.join().unwrap();
    }
}
