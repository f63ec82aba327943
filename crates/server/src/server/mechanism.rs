//! The choice of the mechanism that a server waits with.

use crate::config::MechanismChoice;
use anyhow::{Context, bail};
use pollux_event::{MechanismSpec, registry};

/// The mechanisms that `auto` tries, the best first.
const AUTO: [&str; 3] = ["epoll-et", "epoll", "poll"];

/// Returns the chosen mechanism after checking that it works here.
///
/// # Errors
/// The reason why it does not work.
pub(super) fn choose(choice: &MechanismChoice) -> anyhow::Result<MechanismSpec> {
    let MechanismChoice::Auto = choice else {
        let MechanismChoice::Named(spec) = choice else { bail!("no mechanism") };
        registry::probe(spec).with_context(|| format!("--mechanism {spec}"))?;
        return Ok(spec.clone());
    };
    let mut reasons = Vec::new();
    for name in AUTO.iter().filter(|name| registry::find(name).is_some()) {
        let spec: MechanismSpec = name.parse()?;
        match registry::probe(&spec) {
            Ok(()) => {
                tracing::info!("--mechanism auto chose {name}");
                return Ok(spec);
            }
            Err(error) => reasons.push(error.to_string()),
        }
    }
    bail!("no mechanism works here: {}", reasons.join("; "))
}
