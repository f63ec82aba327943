//! Certificates by ACME: what the settings mean for a server's listeners.

use super::Settings;
use crate::config::ClientCertificates;
use anyhow::ensure;
use pollux_acme::{Challenge, Settings as AcmeSettings};
use std::{path::PathBuf, sync::Arc};

/// Selects the challenges that the server can answer, if the configuration selects none.
///
/// # Errors
/// A selected challenge cannot work, or no challenge can work.
fn select_challenges(
    settings: &mut AcmeSettings,
    has_plain_listener: bool,
    client_certificates: &ClientCertificates,
) -> anyhow::Result<()> {
    let requires_certificates = matches!(client_certificates, ClientCertificates::Required(_));
    if settings.challenges.is_empty() {
        if !requires_certificates {
            settings.challenges.push(Challenge::TlsAlpn01);
        }
        if has_plain_listener {
            settings.challenges.push(Challenge::Http01);
        }
    }
    ensure!(
        !(requires_certificates && settings.challenges.contains(&Challenge::TlsAlpn01)),
        "--acme-challenge tls-alpn-01: the authority has no client certificate, which --tls-client-ca \
         requires: take http-01 with --redirect-http :80, or add --tls-client-optional"
    );
    ensure!(
        !settings.challenges.is_empty(),
        "--acme: with --tls-client-ca the authority cannot validate names over TLS: add --redirect-http \
         :80 for http-01, or --tls-client-optional"
    );
    Ok(())
}

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
            select_challenges(settings, has_plain_listener, client_certificates)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use Challenge::{Http01, TlsAlpn01};

    fn settings(challenges: &[Challenge]) -> AcmeSettings {
        AcmeSettings {
            names: vec!["a.example".into()],
            directory: "https://ca.example/dir".into(),
            email: None,
            root: None,
            state_dir: "/s".into(),
            challenges: challenges.to_vec(),
            timing: Default::default(),
        }
    }

    #[test]
    fn challenges_are_those_that_a_listener_can_answer() {
        let (none, required) =
            (ClientCertificates::None, ClientCertificates::Required("/ca".into()));
        let selected = |challenges: &[Challenge], plain, clients: &ClientCertificates| {
            let mut settings = settings(challenges);
            select_challenges(&mut settings, plain, clients).map(|()| settings.challenges)
        };
        assert_eq!(selected(&[], false, &none).unwrap(), [TlsAlpn01]);
        assert_eq!(selected(&[], true, &none).unwrap(), [TlsAlpn01, Http01]);
        assert_eq!(selected(&[Http01], false, &none).unwrap(), [Http01]);
        assert_eq!(selected(&[], true, &required).unwrap(), [Http01]);
        assert!(selected(&[], false, &required).is_err());
        assert!(selected(&[TlsAlpn01], true, &required).is_err());
    }
}
