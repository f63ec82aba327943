//! Privileges that a server process gives up before it accepts its first client.
//!
//! A server that starts as root binds its ports, reads its certificates and opens its log with
//! root's rights. Then it becomes the user of `--user` ([`UserSpec`]). With `--sandbox` the kernel
//! afterwards limits the files and ports that the process can reach (Landlock, [`Domain`]) and its
//! system calls (seccomp). All this happens while the process has only one thread, so that no other
//! thread keeps these privileges.

#[cfg(debug_assertions)]
pub(crate) mod attempt;
mod capabilities;
mod core_dumps;
mod domain;
mod filter;
mod ruleset;
mod user;

pub use core_dumps::exclude_memory_from_core_dumps;
pub use domain::Domain;

use crate::{
    config::{Accepting, Architecture, Listen, LogTarget, MechanismChoice, SandboxMode, UserSpec},
    settings::Settings,
    transport::{early, inherited, listener::LISTEN, role::Role},
    upgrade::{launcher, predecessor::Predecessor},
};
use anyhow::Context;
use pollux_acme::StateDir;
use pollux_event::{Capabilities, registry};
use ruleset::ProcessRights;
use serde::Serialize;
use std::{fmt, sync::OnceLock};

/// The privileges that a server gives up, and the files and ports that it needs.
#[derive(Clone, Debug, Default)]
pub struct Confinement {
    /// The user that the server becomes; `None` keeps the user that started it.
    pub user: Option<UserSpec>,
    /// The mode of the sandbox.
    pub mode: SandboxMode,
    /// The files and ports that a server in the sandbox may use.
    pub domain: Domain,
}

/// The restrictions that are in force in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InForce {
    /// The name of the user that the process has become.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The capabilities of a process that has kept its user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The ABI of Landlock; `None` without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub landlock: Option<u32>,
    /// Whether Landlock lets the server read all files, because a site follows all links.
    pub reads_all: bool,
    /// The action for a system call that is not allowed.
    pub seccomp: Seccomp,
    /// The parts of the sandbox that this kernel does not have, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// The action for a system call that is not allowed, in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seccomp {
    /// All system calls are allowed.
    #[default]
    Off,
    /// The kernel logs the system call.
    Log,
    /// The kernel kills the process.
    Kill,
}

impl InForce {
    /// Names the parts that Landlock with this ABI does not have yet. They are no error in any mode: Debian 12's kernel
    /// lacks two of them, and its users need the other parts.
    fn name_missing_parts(&mut self, abi: u32) {
        let missing = ruleset::missing(abi).map(|(part, reason)| format!("{part}: {reason:#}"));
        self.missing.extend(missing);
    }
}

/// Shows the restrictions in force, and the parts that are missing.
impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(abi) = self.landlock {
            let files = if self.reads_all { "files (all can be read)" } else { "files" };
            let ports = if abi >= ruleset::PORTS { ", TCP ports" } else { "" };
            let signals = if abi >= ruleset::SCOPES { ", signals" } else { "" };
            parts.push(format!("Landlock ABI {abi} ({files}{ports}{signals})"));
        }
        match self.seccomp {
            Seccomp::Off => {}
            Seccomp::Log => parts.push("seccomp (log)".into()),
            Seccomp::Kill => parts.push("seccomp (kill)".into()),
        }
        if let Some(user) = &self.user {
            parts.push(format!("user {user} without capabilities"));
        }
        if parts.is_empty() {
            parts.push("no sandbox".into());
        }
        f.write_str(&parts.join("; "))?;
        if !self.missing.is_empty() {
            write!(f, " (without {})", self.missing.join("; "))?;
        }
        Ok(())
    }
}

static IN_FORCE: OnceLock<InForce> = OnceLock::new();
static ENTERED: OnceLock<ProcessRights> = OnceLock::new();

/// Returns the restrictions of this process; `None` if there are none.
pub(crate) fn in_force() -> Option<&'static InForce> {
    IN_FORCE.get()
}

/// Checks that a server in this process can reach everything that another configuration needs.
///
/// # Errors
/// The message names the file or port that the sandbox does not allow.
pub fn check_reachable(domain: &Domain) -> anyhow::Result<()> {
    ENTERED.get().map_or(Ok(()), |entered| entered.check(domain))
}

/// The warning of a server that keeps root's rights.
const AS_ROOT: &str = "this server runs as root: add --user NAME, or start it as another user";

impl Confinement {
    /// Opens everything that needs root's rights for a server with this configuration, then gives
    /// up these rights and enters the sandbox. Must be called while the process has one thread, and
    /// before any file is opened that the server writes, because such files must belong to the new
    /// user.
    ///
    /// Logs a warning if the server stays root because no user is set.
    ///
    /// # Errors
    /// The message names the address or the file that cannot be opened, or the reason why the user
    /// or the sandbox cannot be set. The process may have lost some of its rights already, and must
    /// end.
    pub fn enter(&self, config: &Settings) -> anyhow::Result<InForce> {
        let has_sandbox = self.mode != SandboxMode::Off;
        let identity = self.user.as_ref().map(user::find).transpose()?;
        let is_root = user::is_root();
        if identity.is_none() && is_root {
            tracing::warn!("{AS_ROOT}");
        }
        if has_sandbox || identity.is_some() {
            bind(config)?;
        }
        let mut in_force = InForce::default();
        if let Some(identity) = &identity {
            if is_root {
                if let Some(acme) = &config.acme {
                    StateDir::new(&acme.state_dir, &acme.directory)
                        .create(Some((identity.uid().as_raw(), identity.gid().as_raw())))
                        .context("--state-dir")?;
                }
                // The listener of `--redirect-http` writes the logs, too.
                let writers = 1 + usize::from(config.redirect_http.is_some());
                for target in config.log.targets() {
                    let LogTarget::File(path) = target else { continue };
                    for _ in 0..writers {
                        early::open_log(path, identity.uid().as_raw(), identity.gid().as_raw())
                            .with_context(|| format!("log {}", path.display()))?;
                    }
                    if config.architecture.has_processes() {
                        // The process that writes the log opens it again, as the new user.
                        drop(early::take_log(path));
                    }
                }
                capabilities::forbid_all()?;
            }
            identity.assume()?;
            capabilities::give_up()?;
            rustix::thread::set_no_new_privs(true).context("prctl(PR_SET_NO_NEW_PRIVS)")?;
            in_force.user = Some(identity.name().to_owned());
        }
        if has_sandbox {
            self.enter_sandbox(config, &mut in_force)
                .with_context(|| format!("--sandbox {}", self.mode))?;
        }
        if in_force != InForce::default() {
            tracing::info!("in force: {in_force}");
            if !in_force.capabilities.is_empty() {
                tracing::info!("capabilities: {}", in_force.capabilities.join(", "));
            }
            let _ = IN_FORCE.set(in_force.clone());
        }
        Ok(in_force)
    }

    fn enter_sandbox(&self, config: &Settings, in_force: &mut InForce) -> anyhow::Result<()> {
        // Servers with other architectures cannot be upgraded.
        if config.architecture == Architecture::Event
            && let Some(promise) = config.own_file_tables
        {
            // Without the launcher, a server in a sandbox cannot be upgraded.
            if let Err(error) = launcher::start(promise) {
                return self.do_without("any sandbox", error, in_force);
            }
        }
        rustix::thread::set_no_new_privs(true).context("prctl(PR_SET_NO_NEW_PRIVS)")?;
        if self.user.is_none() {
            match capabilities::restrict() {
                Ok(left) => in_force.capabilities = left.iter().map(ToString::to_string).collect(),
                Err(error) => self.do_without("giving up capabilities", error, in_force)?,
            }
        }
        let domain = &self.domain;
        domain.create_directories();
        match ruleset::enter(domain) {
            Ok(entered) => {
                in_force.name_missing_parts(entered.abi);
                in_force.landlock = Some(entered.abi);
                in_force.reads_all = domain.reads_all();
                let _ = ENTERED.set(entered);
            }
            Err(error) => self.do_without("Landlock", error, in_force)?,
        }
        let action = if self.mode == SandboxMode::Kill { Seccomp::Kill } else { Seccomp::Log };
        match filter::enter(action, has_ring(config)) {
            Ok(()) => in_force.seccomp = action,
            Err(error) => self.do_without("seccomp", error, in_force)?,
        }
        Ok(())
    }

    /// Notes that a part of the sandbox is missing, if the mode allows that.
    fn do_without(
        &self,
        part: &str,
        error: anyhow::Error,
        in_force: &mut InForce,
    ) -> anyhow::Result<()> {
        if self.mode != SandboxMode::Auto {
            anyhow::bail!("{error:#}; --sandbox auto does without it");
        }
        in_force.missing.push(format!("{part}: {error:#}"));
        Ok(())
    }
}

/// Returns whether a server waits with io_uring.
fn has_ring(config: &Settings) -> bool {
    match &config.mechanism {
        MechanismChoice::Named(spec) => registry::capabilities(spec)
            .is_ok_and(|capabilities| capabilities.contains(Capabilities::USES_RING)),
        // `auto` never chooses such a mechanism.
        MechanismChoice::Auto => false,
    }
}

/// Binds all TCP addresses of the configuration, each as often as the server needs it. Addresses
/// that a former server hands over are bound already.
fn bind(config: &Settings) -> anyhow::Result<()> {
    if Predecessor::find()?.is_some() {
        Settings::check_upgrade(config.architecture)?;
    }
    let (count, shares) = match config.architecture {
        Architecture::Event => (config.workers, config.workers > 1),
        _ if config.accepting == Some(Accepting::Reuseport) => {
            (config.pool_size().unwrap_or(1), true)
        }
        _ => (1, false),
    };
    for listen in &config.listen {
        bind_new((Role::Clients, LISTEN), listen, count, shares)?;
    }
    if let Some(listen) = &config.redirect_http {
        bind_new((Role::Clients, "--redirect-http"), listen, 1, false)?;
    }
    if let Some(listen) = &config.admin {
        bind_new((Role::Admin, "--admin"), listen, 1, false)?;
    }
    Ok(())
}

fn bind_new(
    (role, flag): (Role, &str),
    listen: &Listen,
    count: usize,
    shares: bool,
) -> anyhow::Result<()> {
    match listen {
        Listen::Tcp(address) if !inherited::has(role, &listen.to_string()) => {
            early::bind(flag, *address, count, shares)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: these parts were left out silently.
    #[test]
    fn the_parts_that_an_older_landlock_lacks_are_named() {
        let cases: [(u32, &[&str]); 3] =
            [(3, &["TCP ports", "signals"]), (4, &["signals"]), (6, &[])];
        for (abi, parts) in cases {
            let mut in_force = InForce::default();
            in_force.name_missing_parts(abi);
            assert_eq!(in_force.missing.len(), parts.len());
            for (missing, part) in in_force.missing.iter().zip(parts) {
                assert!(missing.starts_with(part), "{missing}");
            }
        }
    }
}
