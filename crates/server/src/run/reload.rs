//! SIGHUP and `pollux ctl reload`: configuration, certificates and logs.

use super::service_manager;
use crate::{Reload, Server};

/// Reads everything again, and says in the log what became of it. Returns a line for each change.
///
/// # Errors
/// Something cannot be used: nothing has changed then, but certificates that are good.
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
