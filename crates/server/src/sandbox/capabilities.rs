//! Capabilities (capabilities(7)): the parts of root's rights.

use anyhow::Context;
use caps::CapSet;

/// Makes sure that no program which this process executes can have a capability, not even as root: empties the
/// bounding and the ambient set of this thread and of what it starts. The thread's own capabilities go when it
/// becomes another user.
///
/// # Errors
/// EPERM without CAP_SETPCAP.
pub(super) fn forbid_all() -> anyhow::Result<()> {
    for set in [CapSet::Ambient, CapSet::Bounding, CapSet::Inheritable] {
        caps::clear(None, set).with_context(|| format!("the {set:?} set of capabilities"))?;
    }
    Ok(())
}
