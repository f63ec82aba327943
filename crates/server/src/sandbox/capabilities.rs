//! Capabilities (capabilities(7)): the parts of root's rights.

use anyhow::Context;
use caps::CapSet;

/// Ensures that no program which this process executes can have a capability, not even as root:
/// empties the ambient, the bounding and the inheritable set of this thread and of the threads and
/// processes that it starts. The thread loses its own capabilities when it becomes another user.
///
/// # Errors
/// EPERM without CAP_SETPCAP.
pub(super) fn forbid_all() -> anyhow::Result<()> {
    for set in [CapSet::Ambient, CapSet::Bounding, CapSet::Inheritable] {
        caps::clear(None, set).with_context(|| format!("the {set:?} set of capabilities"))?;
    }
    Ok(())
}
