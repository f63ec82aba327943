//! Protection of an earlier result, which may have needed hours of measuring: it is never
//! overwritten.

use pollux_lab::{archive, run::journal};
use std::path::Path;

/// Refuses `out` if it contains a result, either complete or of a run that was killed.
///
/// # Errors
/// The message names the directory and the alternatives.
pub(super) fn refuse(out: &Path) -> anyhow::Result<()> {
    let earlier = [archive::FILE, archive::PACKED, journal::FILE];
    if let Some(file) = earlier.into_iter().find(|file| out.join(file).exists()) {
        anyhow::bail!(
            "--out {0}: {file} of an earlier run is there; name another directory, or go on with \
             that run by --resume {0}",
            out.display()
        );
    }
    Ok(())
}
