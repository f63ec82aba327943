//! The kernel features that `pollux serve --sandbox` can use here.

use super::{Check, Facts};

/// The kernel features with which a server can confine itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SandboxFact {
    /// The ABI of Landlock.
    pub landlock_abi: Option<u32>,
    /// Why Landlock is missing.
    pub landlock_refused: Option<String>,
    /// The actions of seccomp filters; empty if the kernel has no seccomp filters.
    pub seccomp_actions: String,
}

impl SandboxFact {
    /// Queries this kernel.
    pub fn look() -> Self {
        let abi = pollux_sys::landlock_abi();
        let path = "/proc/sys/kernel/seccomp/actions_avail";
        Self {
            landlock_refused: abi.as_ref().err().map(ToString::to_string),
            landlock_abi: abi.ok(),
            seccomp_actions: std::fs::read_to_string(path).unwrap_or_default().trim().to_owned(),
        }
    }
}

/// The effect of `--sandbox` if the kernel lacks a part of it.
const WITHOUT: &str = "--sandbox auto does without; log and kill do not start";

/// Checks the parts of the sandbox.
pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let fact = &facts.sandbox;
    let landlock = match (fact.landlock_abi, &fact.landlock_refused) {
        (Some(abi), _) => {
            let (limited, advice) = match abi {
                1..=3 => ("files", Some("Linux 6.7 limits TCP ports as well")),
                4 | 5 => ("files and TCP ports", Some("Linux 6.12 limits signals as well")),
                _ => ("files, TCP ports and signals", None),
            };
            let meaning = format!("pollux serve limits its {limited} (--sandbox)");
            Check::new("Landlock", format!("ABI {abi}"), meaning, advice)
        }
        (None, refused) => Check::new(
            "Landlock",
            "no",
            format!("{WITHOUT}: {}", refused.as_deref().unwrap_or("the kernel has none")),
            Some(
                "use Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK, and with landlock in lsm= if the \
                 kernel's command line has that",
            ),
        ),
    };
    let has = |action| fact.seccomp_actions.split_whitespace().any(|one| one == action);
    let seccomp = if has("log") && has("kill_process") {
        let meaning = "pollux serve limits its system calls (--sandbox)";
        Check::new("seccomp", "log, kill_process", meaning, None)
    } else {
        let advice = "use Linux 4.14 or later with CONFIG_SECCOMP_FILTER";
        Check::new("seccomp", "no", WITHOUT, Some(advice))
    };
    vec![landlock, seccomp]
}
