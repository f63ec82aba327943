//! Flags about certificates that the server orders itself.

use super::value;
use clap::ArgAction;
use pollux_server::config::{Challenge, Config, Text};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(next_help_heading = "ACME")]
pub(super) struct AcmeArgs {
    /// Serve HTTPS for NAME with a certificate that an ACME authority issues, and renew it; may be
    /// repeated. Needs --acme-directory
    #[arg(long, value_name = "NAME", action = ArgAction::Append)]
    acme: Vec<String>,

    /// The authority: letsencrypt, letsencrypt-staging (for trials) or the URL of an ACME directory. By
    /// naming it you accept its terms of service
    #[arg(long, value_name = "URL")]
    acme_directory: Option<String>,

    /// E-mail address where the authority may warn you
    #[arg(long, value_name = "ADDRESS")]
    acme_email: Option<String>,

    /// Trust the root in FILE (PEM) for the directory itself, instead of the system's roots
    #[arg(long, value_name = "FILE")]
    acme_ca: Option<PathBuf>,

    /// How the authority validates names: tls-alpn-01 (port 443) or http-01 (port 80, with
    /// --redirect-http); may be repeated, the preferred one first [default: each that a listener can
    /// answer]
    #[arg(long, value_name = "KIND", action = ArgAction::Append)]
    acme_challenge: Vec<Text<Challenge>>,

    /// Store the ACME account and certificates in DIR [default: $STATE_DIRECTORY of a service manager,
    /// or ~/.local/state/pollux]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl AcmeArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        value::replace(&mut config.acme, self.acme);
        value::set_some(&mut config.acme_directory, self.acme_directory);
        value::set_some(&mut config.acme_email, self.acme_email);
        value::set_some(&mut config.acme_ca, self.acme_ca);
        value::replace(&mut config.acme_challenge, self.acme_challenge);
        value::set_some(&mut config.state_dir, self.state_dir);
    }
}
