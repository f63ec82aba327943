//! SIGHUP and `pollux ctl reload`: configuration, certificates and logs.

use super::service_manager;
use crate::{Reload, Server};

/// Reads everything again and logs the result. Returns a line for each change.
///
/// # Errors
/// A configuration or a certificate cannot be used. Nothing has changed then, except that the access
/// log has been opened again.
pub(super) fn renew(
    server: &mut Server,
    reload: Option<&mut (dyn Reload + '_)>,
) -> anyhow::Result<Vec<String>> {
    service_manager::reloading();
    let outcome = server.renew(reload);
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
