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
    for set in [CapSet::Ambient, CapSet::Inheritable] {
        caps::clear(None, set).with_context(|| format!("the {set:?} set of capabilities"))?;
    }
    let left: CapsHashSet =
        caps::read(None, CapSet::Permitted)?.intersection(&needed).copied().collect();
    // An effective capability must be permitted.
    for set in [CapSet::Effective, CapSet::Permitted] {
        let own = caps::read(None, set)?.intersection(&left).copied().collect();
        caps::set(None, set, &own).with_context(|| format!("the {set:?} set of capabilities"))?;
    }
    let mut left: Vec<_> = left.into_iter().collect();
    left.sort_unstable_by_key(Capability::index);
    Ok(left)
}
