//! Certificates by ACME: what the settings mean for a server's listeners.

use super::Settings;
use crate::config::{ClientCertificates, select_challenges};
use anyhow::Context;
use pollux_acme::{Challenge, Settings as AcmeSettings};
use std::{path::PathBuf, sync::Arc};

/// The error if names would have to be validated over TLS.
const NOT_OVER_TLS: &str = "--acme: with --tls-client-ca the authority cannot validate names over TLS: take http-01 \
                            with --redirect-http :80, or add --tls-client-optional";

impl Settings {
    /// Completes the settings of `acme`, if there are any, before [`Tls::new`](super::Tls::new)
    /// gets them. `has_plain_listener` is true if the authority can reach this server over plain
    /// HTTP.
    ///
    /// # Errors
    /// No challenge can work, or one that was selected cannot.
    pub fn prepare_acme(
        &mut self,
        has_plain_listener: bool,
        client_certificates: &ClientCertificates,
    ) -> anyhow::Result<()> {
        if let Some(settings) = self.acme.as_mut().map(Arc::make_mut) {
            let configured = settings.challenges.clone();
            settings.challenges =
                select_challenges(configured, has_plain_listener, client_certificates)
                    .context(NOT_OVER_TLS)?;
            self.acme_answers = answers_folder(settings);
        }
        Ok(())
    }
}

/// Returns the directory with the responses to challenges over plain HTTP, if these are in use.
fn answers_folder(settings: &AcmeSettings) -> Option<PathBuf> {
    let state = pollux_acme::StateDir::new(&settings.state_dir, &settings.directory);
    settings.challenges.contains(&Challenge::Http01).then(|| state.challenges().http)
}
