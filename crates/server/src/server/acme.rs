//! The thread that orders certificates, in addition to the workers.

use super::Server;
use crate::{config::AcmeSettings, settings::Tls};
use anyhow::Context;
use pollux_acme::{Renewer, Status};
use std::sync::Arc;

/// Starts the thread, if there are names to order certificates for.
///
/// # Errors
/// The state directory cannot be written.
pub(super) fn start(
    settings: Option<&AcmeSettings>,
    tls: Option<&Arc<Tls>>,
) -> anyhow::Result<Option<Renewer>> {
    let (Some(settings), Some(tls)) = (settings, tls) else { return Ok(None) };
    let tls = Arc::clone(tls);
    let renewer = Renewer::start(settings.clone(), move || tls.look_at_files());
    renewer.map(Some).context("--acme: the state directory (--state-dir)")
}

impl Server {
    /// Returns the status of the orders, if certificates are ordered.
    pub(super) fn acme_status(&self) -> Option<Arc<Status>> {
        self.acme.as_ref().map(|renewer| renewer.status().clone())
    }
}
