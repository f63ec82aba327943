//! Capabilities (capabilities(7)): the parts of root's rights.

use anyhow::Context;
use caps::CapSet;

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
