//! Flags about privileges that the server gives up before it accepts its first client.

use super::{Configuration, guestbook, open_tls, value};
use crate::sys::own_file_tables;
use clap::ValueEnum;
use pollux_server::{
    Settings,
    config::{Config, SandboxMode, Text, UserSpec},
    sandbox::{Confinement, Domain},
};
use std::{path::Path, sync::Arc};

#[derive(clap::Args)]
#[command(next_help_heading = "Security")]
pub(super) struct SecurityArgs {
    /// Run as this user (and group), when started as root: ports are bound, certificates read and the
    /// access log opened first, then all of root's rights are given up
    #[arg(long, value_name = "NAME[:GROUP]")]
    user: Option<Text<UserSpec>>,

    /// Let the kernel refuse files and TCP ports that the configuration does not name (Landlock). A
    /// system call that the server does not need is logged (log) or ends the server (kill). auto:
    /// as log, with the parts that the kernel has; off: no limits [default: auto]
    #[arg(long, value_name = "MODE")]
    sandbox: Option<SandboxArg>,
}

#[derive(Clone, Copy, ValueEnum)]
enum SandboxArg {
    Auto,
    Off,
    Log,
    Kill,
}

impl From<SandboxArg> for SandboxMode {
    fn from(arg: SandboxArg) -> Self {
        match arg {
            SandboxArg::Auto => Self::Auto,
            SandboxArg::Off => Self::Off,
            SandboxArg::Log => Self::Log,
            SandboxArg::Kill => Self::Kill,
        }
    }
}

impl SecurityArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        value::set_some(&mut config.user, self.user);
        value::set(&mut config.sandbox, self.sandbox.map(Into::into));
    }
}

/// Opens everything that may need root's rights, and then gives them up. Returns the part of the
/// configuration that was opened: the certificates.
pub(super) fn enter(configuration: &Configuration) -> anyhow::Result<Settings> {
    // The sites are left out: their caches have threads and files, which must belong to the new
    // user.
    let server = Config { site: Vec::new(), ..configuration.file.clone() };
    let mut config = server.open(|| anyhow::bail!("a server without sites has no guestbook"))?;
    // Sites may have names for ACME, too.
    config.acme = configuration.file.acme()?.map(Arc::new);
    open_tls(&configuration.file, &mut config, None)?;
    config.own_file_tables = Some(own_file_tables());
    let user = configuration.file.user.as_ref().map(|user| user.value.clone());
    let mode = configuration.file.sandbox;
    let mut domain = match mode {
        SandboxMode::Off => Domain::default(),
        SandboxMode::Auto | SandboxMode::Log | SandboxMode::Kill => domain(configuration)?,
    };
    // Room for a reload is needed only with a file, because flags cannot change while the server
    // runs.
    if mode == SandboxMode::Auto && configuration.sources.files().next().is_some() {
        domain.leave_room();
    }
    Confinement { user, mode, domain }.enter(&config)?;
    Ok(config)
}

/// Returns the files and ports that a configuration needs.
pub(super) fn domain(configuration: &Configuration) -> anyhow::Result<Domain> {
    let mut domain = Domain::of(&configuration.file);
    for source in configuration.sources.files() {
        domain.file(Path::new(&source.name));
    }
    // A folder without any file may get its first one before a reload.
    for pattern in configuration.sources.patterns() {
        domain.file(pattern);
    }
    let has_default_store =
        configuration.file.site.iter().any(|site| site.guestbook.is_some() && site.store.is_none());
    if has_default_store {
        domain.store(&guestbook::default_store()?);
    }
    Ok(domain)
}
