//! The listener of `--redirect-http`: a server of its own, with the limits of the main one.

use super::ATTENTION;
use crate::{
    Server, Settings,
    config::{Listen, MechanismChoice},
};
use anyhow::Context;
use pollux_sys as sys;

/// Takes the listener for plain HTTP out of a configuration, and returns its own configuration. Its
/// limits count its own connections.
pub(super) fn take(config: &mut Settings) -> Option<Settings> {
    let mut redirect = Settings::new("");
    redirect.site.directory = None;
    redirect.listen = vec![config.redirect_http.take()?];
    redirect.acme_answers.clone_from(&config.acme_answers);
    redirect.clients.clone_from(&config.clients);
    // It opens the logs once more. Both append whole lines.
    redirect.log.clone_from(&config.log);
    redirect.request_ids = config.request_ids;
    copy_limits(config, &mut redirect);
    Some(redirect)
}

/// Copies the settings of connections that a reload may change.
fn copy_limits(from: &Settings, to: &mut Settings) {
    to.timeouts = from.timeouts;
    to.limits = from.limits;
    to.max_requests = from.max_requests;
    to.max_connections = from.max_connections;
    to.accept_limit = from.accept_limit;
    to.idle_eviction = from.idle_eviction;
    to.server_name.clone_from(&from.server_name);
}

/// Starts a listener for plain HTTP that redirects clients to the first TCP listener of `server`.
pub(super) fn start(server: &Server, mut config: Settings) -> anyhow::Result<Server> {
    let port = server.addresses().iter().find_map(|listen| match listen {
        Listen::Tcp(address) => Some(address.port()),
        Listen::Unix(_) | Listen::Passed(_) => None,
    });
    config.mechanism = MechanismChoice::Named(server.mechanism().clone());
    config.https_redirect =
        Some(port.context("--redirect-http: no TCP listener to send clients to")?);
    let redirect = Server::start_watched(config, Some(|| sys::signal_self(ATTENTION)))
        .context("--redirect-http")?;
    for address in redirect.addresses() {
        tracing::info!("plain HTTP on {address} is sent to HTTPS");
    }
    Ok(redirect)
}

/// Changes the limits of the listener to those that `server` has after a reload.
///
/// # Errors
/// The listener keeps its former limits.
pub(super) fn follow(redirect: &mut Server, server: &Server) -> anyhow::Result<()> {
    // Only the event-driven architecture changes its configuration.
    let (Some(present), Some(config)) = (redirect.config(), server.config()) else { return Ok(()) };
    let mut changed = present.clone();
    copy_limits(config, &mut changed);
    redirect.change(changed)
}
