//! What a server process gives up before it meets its first client.
//!
//! A server that starts as root binds its ports, reads its certificates and opens its log with root's rights, and
//! then becomes the user of `--user` ([`UserSpec`]). That happens while the process has one thread, so that no
//! thread keeps what the others have given up.

mod capabilities;
pub(crate) mod early;
mod user;

pub use user::UserSpec;

use crate::{
    config::{Accepting, Architecture, Config, Listen, LogTarget, POOL_DEFAULT},
    upgrade::{self, Role, predecessor::Predecessor},
};
use anyhow::Context;

/// What a server gives up, and what it opens before.
#[derive(Clone, Debug, Default)]
pub struct Confinement {
    /// Whom to become; `None` stays the user that started the server.
    pub user: Option<UserSpec>,
}

/// What is in force in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    /// The name of the user that the process has become.
    pub user: Option<String>,
}

/// The warning of a server that keeps root's rights.
const AS_ROOT: &str = "this server runs as root: add --user NAME, or start it as another user";

impl Confinement {
    /// Opens what needs root's rights for a server with this configuration, then gives them up. To be called while the
    /// process has one thread, before anything is opened that the server writes: files belong to the new user then.
    ///
    /// Without a user there is nothing to give up, and root is warned.
    ///
    /// # Errors
    /// Names the address or the file that cannot be opened, or says why the user cannot be had. The process may have
    /// lost a part of its rights then, and must end.
    pub fn enter(&self, config: &Config) -> anyhow::Result<InForce> {
        let Some(wanted) = &self.user else {
            if user::is_root() {
                tracing::warn!("{AS_ROOT}");
            }
            return Ok(InForce::default());
        };
        let identity = wanted.find()?;
        if user::is_root() {
            bind(config)?;
            if let Some(LogTarget::File(path)) = &config.access_log {
                early::open_log(path, &identity)
                    .with_context(|| format!("access log {}", path.display()))?;
                if config.architecture.has_processes() {
                    // The process that writes opens it anew, as the new user.
                    drop(early::take_log(path));
                }
            }
            capabilities::forbid_all()?;
        }
        identity.assume()?;
        rustix::thread::set_no_new_privs(true).context("prctl(PR_SET_NO_NEW_PRIVS)")?;
        Ok(InForce { user: Some(identity.name().to_owned()) })
    }
}

/// Binds all TCP addresses of the configuration, as often as the server will need each. Those that a former server
/// hands over are bound already.
fn bind(config: &Config) -> anyhow::Result<()> {
    Predecessor::find()?;
    let (count, shares) = match config.architecture {
        Architecture::Event => (config.workers, config.workers > 1),
        _ if config.accepting == Some(Accepting::Reuseport) => {
            (config.pool.unwrap_or(POOL_DEFAULT), true)
        }
        _ => (1, false),
    };
    for listen in &config.listen {
        bind_new(Role::Clients, listen, count, shares)?;
    }
    if let Some(listen) = &config.redirect_http {
        bind_new(Role::Clients, listen, 1, false)?;
    }
    if let Some(listen) = &config.admin {
        bind_new(Role::Admin, listen, 1, false)?;
    }
    Ok(())
}

fn bind_new(role: Role, listen: &Listen, count: usize, shares: bool) -> anyhow::Result<()> {
    match listen {
        Listen::Tcp(address) if !upgrade::has(role, &listen.to_string()) => {
            early::bind(*address, count, shares)
        }
        _ => Ok(()),
    }
}
