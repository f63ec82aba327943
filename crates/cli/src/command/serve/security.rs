//! Flags about what the server gives up before it meets its first client.

use super::{Configuration, value};
use pollux_server::{
    Config,
    config::file::{ConfigFile, Text},
    sandbox::{Confinement, UserSpec},
};

#[derive(clap::Args)]
#[command(next_help_heading = "Security")]
pub(super) struct SecurityArgs {
    /// Run as this user (and group), when started as root: ports are bound, certificates read and the
    /// access log opened first, then all of root's rights are given up
    #[arg(long, value_name = "NAME[:GROUP]")]
    user: Option<Text<UserSpec>>,
}

impl SecurityArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut ConfigFile) {
        value::set_some(&mut config.user, self.user);
    }
}

/// Opens what may need root's rights and gives them up. Returns the part of the configuration that was opened: the
/// certificates.
pub(super) fn enter(configuration: &Configuration) -> anyhow::Result<Config> {
    // Without its sites: their caches have threads and files, which must belong to the new user.
    let server = ConfigFile { site: Vec::new(), ..configuration.file.clone() };
    let mut config = server.open(|| anyhow::bail!("a server without sites has no guestbook"))?;
    configuration.tls.clone().apply(&mut config, None)?;
    let user = configuration.file.user.as_ref().map(|user| user.value.clone());
    Confinement { user }.enter(&config)?;
    Ok(config)
}
