//! SIGHUP and `pollux ctl reload`: configuration, certificates and logs.

use super::{redirect, service_manager};
use crate::{Reload, Server, reload::NoConfirmation, server::Renewed};
use anyhow::anyhow;

/// Reads everything again and logs the result. Returns a line for each change. `other` is the
/// listener of `--redirect-http`, which writes the same logs.
///
/// # Errors
/// A configuration or a certificate cannot be used. Nothing has changed then, except that the access
/// log has been opened again; after [`NoConfirmation`] everything has changed. Or a log cannot be opened again, and
/// everything else is done.
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
                Ok(renewed) => renewed.changes.push(message),
                Err(_) => tracing::error!("reload: {message}"),
            }
        }
        outcome
    });
    let outcome = match outcome {
        Ok(Renewed { changes, log_failure }) => {
            if changes.is_empty() && log_failure.is_none() {
                tracing::info!(
                    "reload: nothing has changed, and there is no access log to open anew"
                );
            }
            for change in &changes {
                tracing::info!("reload: {change}");
            }
            match log_failure {
                None => Ok(changes),
                // The log has reported it.
                Some(failure) => Err(anyhow!("{failure}; the rest of the reload is done")),
            }
        }
        Err(error) if is_in_force(&error) => {
            tracing::error!("reload: {error:#}");
            Err(error)
        }
        Err(error) => {
            tracing::error!("reload: the former configuration stays in use: {error:#}");
            Err(error)
        }
    };
    service_manager::ready();
    outcome
}

/// Returns whether the new configuration is in force in spite of this error.
fn is_in_force(error: &anyhow::Error) -> bool {
    error.is::<NoConfirmation>()
}
