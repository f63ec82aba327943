//! SIGHUP and `pollux ctl reload`: configuration, certificates and logs.

use super::{redirect, service_manager};
use crate::{Reload, Server, reload::NoConfirmation};

/// Reads everything again and logs the result. Returns a line for each change. `other` is the
/// listener of `--redirect-http`, which writes the same logs.
///
/// # Errors
/// A configuration or a certificate cannot be used. Nothing has changed then, except that the access
/// log has been opened again; after [`NoConfirmation`] everything has changed.
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
        let mut outcome = server.renew(reload);
        if outcome.as_ref().err().is_none_or(is_in_force)
            && let Some(other) = other
            && let Err(error) = redirect::follow(other, server)
        {
            let kept = if is_in_force(&error) { "" } else { "its former limits stay in use: " };
            let message = format!("redirect-http: {kept}{error:#}");
            match &mut outcome {
                Ok(changes) => changes.push(message),
                Err(_) => tracing::error!("reload: {message}"),
            }
        }
        outcome
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
        Err(error) if is_in_force(error) => tracing::error!("reload: {error:#}"),
        Err(error) => {
            tracing::error!("reload: the former configuration stays in use: {error:#}");
        }
    }
    service_manager::ready();
    outcome
}

/// Returns whether the new configuration is in force in spite of this error.
fn is_in_force(error: &anyhow::Error) -> bool {
    error.is::<NoConfirmation>()
}
