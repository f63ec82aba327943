//! `pollux doctor`: the features of this kernel, the effect of its limits, and advice.
//!
//! [`Facts::look`] reads the machine; [`Report::of`] judges only the facts, so that its tests need no
//! particular machine.

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

/// The facts about the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// `uname`.
    pub kernel: String,
    /// Every mechanism in the registry.
    pub mechanisms: Vec<MechanismFact>,
    /// The soft and hard limits of this process; `None` means unlimited.
    pub limits: BTreeMap<String, (Option<u64>, Option<u64>)>,
    /// Sysctls, by their path below /proc/sys.
    pub sysctls: BTreeMap<String, String>,
    /// The kernel features for `pollux serve --sandbox`.
    #[serde(default)]
    pub sandbox: SandboxFact,
    /// The resources for TLS.
    #[serde(default)]
    pub tls: TlsFact,
    /// The memory that this process may use, in bytes.
    pub memory_bytes: Option<u64>,
    /// The environment of README's commands.
    pub surroundings: Surroundings,
}

/// One mechanism on this kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MechanismFact {
    /// The mechanism's name.
    pub name: String,
    /// A description in one line.
    pub summary: String,
    /// Whether the mechanism works here, which was tried.
    pub available: bool,
    /// Why it does not work.
    pub reason: Option<String>,
    /// Its own options, for `NAME:KEY=VALUE`.
    #[serde(default)]
    pub options: Vec<OptionFact>,
}

/// An option of a mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptionFact {
    /// The key.
    pub key: String,
    /// The values that it allows, the default first; none for a number.
    pub values: Vec<String>,
    /// A description in one line.
    pub meaning: String,
}

/// A setting that affects how many connections can be held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The limit or sysctl.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What the value means for connections.
    pub meaning: String,
    /// The advice; absent if no change is needed.
    pub advice: Option<String>,
}

impl Check {
    fn new(
        name: &str,
        value: impl Into<String>,
        meaning: impl Into<String>,
        advice: Option<&str>,
    ) -> Self {
        let (value, meaning) = (value.into(), meaning.into());
        Self { name: name.into(), value, meaning, advice: advice.map(str::to_owned) }
    }
}

/// The output of `pollux doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// `uname`.
    pub kernel: String,
    /// Every mechanism, with the reason of each that is missing.
    pub mechanisms: Vec<MechanismFact>,
    /// README's commands, with the problems of each.
    pub commands: Vec<CommandFact>,
    /// The parts of `pollux serve --sandbox`.
    pub sandbox: Vec<Check>,
    /// The resources for TLS.
    #[serde(default)]
    pub tls: TlsFact,
    /// The limits of this process.
    pub limits: Vec<Check>,
    /// The sysctls that affect connections.
    pub sysctls: Vec<Check>,
}

impl Facts {
    /// Reads the facts about this machine.
    ///
    /// # Errors
    /// When /proc is missing.
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
                let options = entry.own_options.iter().map(|(key, values, meaning)| OptionFact {
                    key: (*key).into(),
                    values: values.iter().map(|value| (*value).into()).collect(),
                    meaning: (*meaning).into(),
                });
                MechanismFact {
                    name: entry.name.into(),
                    summary: entry.summary.into(),
                    available: reason.is_none(),
                    reason,
                    options: options.collect(),
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
            memory_bytes: environment::usable_memory_bytes(),
            surroundings: Surroundings::look(),
        })
    }
}

/// Returns why a mechanism is not available, without repeating its name.
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
