//! SIGHUP and `pollux ctl reload`: configuration, certificates and logs.

use super::{redirect, service_manager};
use crate::{Reload, Server};

/// Reads everything again and logs the result. Returns a line for each change. `other` is the
/// listener of `--redirect-http`, which writes the same logs.
///
/// # Errors
/// A configuration or a certificate cannot be used. Nothing has changed then, except that the access
/// log has been opened again.
pub(super) fn renew(
    server: &mut Server,
    other: Option<&mut Server>,
    reload: Option<&mut (dyn Reload + '_)>,
) -> anyhow::Result<Vec<String>> {
    service_manager::reloading();
    // The main thread waits for the files and for all workers.
    let outcome = service_manager::keep_alive(server.architecture(), || {
        // Also if the configuration has a fault: a rotated log must not be written any longer.
        if let Some(other) = other.as_deref() {
            other.reopen_log();
        }
        let mut changes = server.renew(reload)?;
        if let Some(other) = other
            && let Err(error) = redirect::follow(other, server)
        {
            changes.push(format!("redirect-http: its former limits stay in use: {error:#}"));
        }
        Ok(changes)
    });
    match &outcome {
        Ok(changes) if changes.is_empty() => {
            tracing::info!("reload: nothing has changed, and there is no access log to open anew")
        }
        Ok(changes) => {
            for change in changes {
                tracing::info!("reload: {change}");
            }
        }
        Err(error) => {
            tracing::error!("reload: the former configuration stays in use: {error:#}");
        }
    }
    service_manager::ready();
    outcome
}
