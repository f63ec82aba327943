//! Flags about the configuration itself: a file, and the control socket.

use super::value;
use pollux_server::config::Config;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct SourceArgs {
    /// Read the configuration from a TOML file, whose keys are the names of these flags; flags win over
    /// the file. `pollux config check` checks it
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Socket, for this user alone, on which `pollux cache` and `pollux ctl` talk to the server
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

impl SourceArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        value::set_some(&mut config.control, self.control);
    }
}
