//! TLS as a configuration describes it: the certificates are read, and read again for a reload.

use super::{Certificates, Settings, Tls};
use crate::{
    config::{Config, MinVersion, TlsConfig},
    transport::tls::provided,
};
use std::sync::Arc;

/// The names in a self-signed certificate for trials.
const TRIAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

impl Config {
    /// Returns the settings of TLS, including the names of `config` for which ACME orders
    /// certificates.
    fn tls_config(&self, config: &Settings) -> TlsConfig {
        TlsConfig {
            certificates: self.certificate_files(),
            acme: config.acme.clone(),
            min_version: self.tls_min.map_or(MinVersion::Tls12, |version| version.0),
            client_certificates: self.client_certificates(),
            self_signed_names: TRIAL_NAMES.map(String::from).to_vec(),
            logs_secrets: self.tls_key_log,
            kernel: self.kernel_tls,
        }
    }

    /// Selects the challenges of ACME, if certificates are ordered.
    ///
    /// # Errors
    /// The errors of [`Settings::prepare_acme`].
    pub fn prepare_acme(&self, config: &mut Settings) -> anyhow::Result<()> {
        config.prepare_acme(self.redirect_http.is_some(), &self.client_certificates())
    }

    /// Reads the certificates into `config`, which [`Config::prepare_acme`] has prepared, if
    /// the server has TLS. `present` is used instead if the certificates have been read before.
    ///
    /// # Errors
    /// The errors of [`Tls::new`].
    pub fn open_tls(&self, config: &mut Settings, present: Option<Arc<Tls>>) -> anyhow::Result<()> {
        if !self.has_tls() {
            return Ok(());
        }
        config.tls = Some(match present {
            Some(present) => present,
            None => Arc::new(Tls::new(&self.tls_config(config))?),
        });
        Ok(())
    }

    /// Reads the certificates again for a running server, if their files are not the same as in
    /// `former`. They are used after [`Tls::replace`].
    ///
    /// # Errors
    /// A certificate and its key cannot be used together.
    pub fn changed_certificates(
        &self,
        former: &Self,
        config: &Settings,
    ) -> anyhow::Result<Option<Certificates>> {
        if self.certificate_files() == former.certificate_files() || self.tls.is_some() {
            return Ok(None);
        }
        provided(&self.tls_config(config)).map(Some)
    }
}
