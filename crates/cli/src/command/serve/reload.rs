//! Reading the configuration again while the server runs.

use super::{Args, Configuration, finish, guestbook, security};
use anyhow::Context;
use pollux_server::{
    Reload, ReloadedConfig, Settings,
    config::Config,
    sandbox,
    settings::{Certificates, Tls},
};
use std::sync::Arc;

/// Reads the file of `--config` again; the flags stay the same.
pub(super) struct Reloader {
    /// Reads the flags from the command line once more.
    args_again: fn() -> Option<Args>,
    /// The configuration that the server runs with.
    present: Config,
    /// The configuration that was read last.
    next: Option<Next>,
}

struct Next {
    file: Config,
    tls: Option<Arc<Tls>>,
    /// The certificates, if the file names other certificate files than before.
    certificates: Option<Certificates>,
}

impl Reloader {
    pub(super) fn new(args_again: fn() -> Option<Args>, present: Config) -> Self {
        Self { args_again, present, next: None }
    }
}

impl Reload for Reloader {
    fn read(&mut self, current: &Settings) -> anyhow::Result<ReloadedConfig> {
        let args = (self.args_again)().context("the command line cannot be read again")?;
        let configuration = Configuration::of(args)?;
        configuration.validate()?;
        let mut changes = configuration.file.changes_from(&self.present, &configuration.sources)?;
        sandbox::check_reachable(&security::domain(&configuration)?)?;
        let config =
            configuration.file.open_again(guestbook::default_store, &self.present, current)?;
        let config = finish(&configuration, config, Some(current))?;
        if config.has_other_passwords(current) {
            changes.push("basic-auth: passwords read again".into());
        }
        if config.has_other_authorities(current) {
            changes.push("origin-ca: read again".into());
        }
        let certificates = configuration.file.changed_certificates(&self.present, &config)?;
        let (tls, replaces_certificates) = (config.tls.clone(), certificates.is_some());
        self.next = Some(Next { file: configuration.file, tls, certificates });
        Ok(ReloadedConfig { config, changes, replaces_certificates })
    }

    fn accept(&mut self) {
        if let Some(next) = self.next.take() {
            if let (Some(tls), Some(certificates)) = (next.tls, next.certificates) {
                tls.replace(certificates);
            }
            self.present = next.file;
        }
    }
}
