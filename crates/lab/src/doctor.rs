//! `pollux doctor`: what this kernel offers, what its limits allow, and what to do about it.
//!
//! [`Facts::look`] reads the machine; [`Report::of`] judges the facts, and nothing else, so that
//! its tests need no particular machine.

mod checks;
mod commands;
mod sandbox;
mod surroundings;
#[cfg(test)]
mod tests;
mod text;
mod tls;

use crate::environment;
use pollux_event::{Error, MechanismSpec, registry};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use commands::{CommandFact, Obstacle};
pub use sandbox::SandboxFact;
pub use surroundings::Surroundings;
pub use text::Style;
pub use tls::TlsFact;
pub(crate) use tls::kernel_tls_refused;

/// What was found on the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// `uname`.
    pub kernel: String,
    /// Every mechanism of the registry.
    pub mechanisms: Vec<MechanismFact>,
    /// Soft and hard limits of this process; `None` is unlimited.
    pub limits: BTreeMap<String, (Option<u64>, Option<u64>)>,
    /// Sysctls by their path below /proc/sys.
    pub sysctls: BTreeMap<String, String>,
    /// What `pollux serve --sandbox` finds.
    #[serde(default)]
    pub sandbox: SandboxFact,
    /// What TLS has to work with.
    #[serde(default)]
    pub tls: TlsFact,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// What README's commands need around them.
    pub surroundings: Surroundings,
}

/// One mechanism on this kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MechanismFact {
    /// Its name.
    pub name: String,
    /// What it is.
    pub summary: String,
    /// Whether it really works here: it was tried.
    pub available: bool,
    /// Why it does not.
    pub reason: Option<String>,
}

/// One thing that bears on how many connections can be held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The limit or sysctl.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What the value means for connections.
    pub meaning: String,
    /// What to do; absent when it is well as it is.
    pub advice: Option<String>,
}

/// What `pollux doctor` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// `uname`.
    pub kernel: String,
    /// Every mechanism, with the reason of each that is missing.
    pub mechanisms: Vec<MechanismFact>,
    /// README's commands, with what stands in the way of each.
    pub commands: Vec<CommandFact>,
    /// The parts of `pollux serve --sandbox`.
    pub sandbox: Vec<Check>,
    /// What TLS has to work with.
    #[serde(default)]
    pub tls: TlsFact,
    /// The limits of this process.
    pub limits: Vec<Check>,
    /// The sysctls that matter.
    pub sysctls: Vec<Check>,
}

impl Facts {
    /// Looks at this machine.
    ///
    /// # Errors
    /// When /proc is not there.
    pub fn look() -> anyhow::Result<Self> {
        anyhow::ensure!(
            std::fs::exists("/proc/sys/kernel").unwrap_or(false),
            "cannot look at this machine: /proc is not mounted"
        );
        let mechanisms = registry::ALL
            .iter()
            .map(|entry| {
                let spec = MechanismSpec { name: entry.name.into(), own: BTreeMap::new() };
                let reason = registry::probe(&spec).err().map(reason);
                MechanismFact {
                    name: entry.name.into(),
                    summary: entry.summary.into(),
                    available: reason.is_none(),
                    reason,
                }
            })
            .collect();
        Ok(Self {
            kernel: environment::kernel(),
            mechanisms,
            limits: environment::limits(),
            sysctls: environment::SYSCTLS
                .iter()
                .filter_map(|&name| Some((name.to_owned(), environment::sysctl(name)?)))
                .collect(),
            sandbox: SandboxFact::look(),
            tls: TlsFact::look(),
            memory_bytes: environment::memory_bytes(),
            surroundings: Surroundings::look(),
        })
    }
}

/// Why a mechanism is not there, without repeating its name.
fn reason(error: Error) -> String {
    match error {
        Error::Unavailable { reason, .. } => reason,
        other => other.to_string(),
    }
}

impl Report {
    /// Judges the facts.
    pub fn of(facts: &Facts) -> Self {
        Self {
            kernel: facts.kernel.clone(),
            mechanisms: facts.mechanisms.clone(),
            commands: commands::commands(facts),
            sandbox: sandbox::checks(facts),
            tls: facts.tls.clone(),
            limits: checks::limits(facts),
            sysctls: checks::sysctls(facts),
        }
    }
}
