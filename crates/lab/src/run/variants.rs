//! The variants of an experiment, and whether this kernel supports them.

use crate::{
    doctor,
    experiment::{Encryption, Experiment, Variant},
    result::VariantOutcome,
};
use pollux_event::{MechanismSpec, registry};

/// Returns the experiment's variants, or one for every mechanism in the registry when the experiment names
/// none.
pub(crate) fn variants(experiment: &Experiment) -> Vec<Variant> {
    if !experiment.variant.is_empty() {
        return experiment.variant.clone();
    }
    registry::ALL.iter().map(|entry| Variant::of_mechanism(entry.name)).collect()
}

/// Describes a variant: its mechanism, its architecture, or the name and version of another server.
pub(crate) fn what_it_is(variant: &Variant) -> String {
    match (&variant.architecture, variant.peer) {
        (Some(architecture), _) => format!("architecture {architecture}"),
        (None, Some(peer)) if variant.tls == Some(Encryption::Kernel) => {
            format!("{}, kernel TLS", peer.version())
        }
        (None, Some(peer)) => peer.version(),
        (None, None) if variant.redis_benchmark.is_some() => "redis-benchmark".into(),
        (None, None) if variant.floor.contains_key("threads") => {
            "recv and send alone, a thread for each connection".into()
        }
        (None, None) if variant.floor_of.is_some() && variant.tls.is_some() => {
            "epoll_wait, recv, AEAD and send alone".into()
        }
        (None, None) if variant.floor_of.is_some() => "epoll_wait, recv and send alone".into(),
        _ => variant.mechanism.clone(),
    }
}

/// Returns the variants, each with the reason why it is not available, if so.
///
/// # Errors
/// When no variant is available.
pub(super) fn tried(variants: &[Variant]) -> anyhow::Result<Vec<VariantOutcome>> {
    let outcome = |variant: &Variant| VariantOutcome {
        name: variant.name.clone(),
        mechanism: what_it_is(variant),
        unavailable: unavailable(variant),
    };
    let tried: Vec<VariantOutcome> = variants.iter().map(outcome).collect();
    let reasons: Vec<String> = tried.iter().filter_map(|it| it.unavailable.clone()).collect();
    anyhow::ensure!(
        reasons.len() < tried.len(),
        "this kernel has none of its mechanisms\n  {}",
        reasons.join("\n  ")
    );
    Ok(tried)
}

/// Returns why a variant is not available: its mechanism, its program or kernel TLS is missing.
fn unavailable(variant: &Variant) -> Option<String> {
    if let Some(peer) = variant.peer {
        let missing = peer.program().err().map(|error| error.to_string());
        let is_kernels = variant.tls == Some(Encryption::Kernel);
        let refused = || is_kernels.then(doctor::kernel_tls_refused).flatten();
        return missing.or_else(|| refused().map(|reason| format!("no kernel TLS: {reason}")));
    }
    if variant.mechanism.is_empty() {
        return None;
    }
    let tried = variant.mechanism.parse::<MechanismSpec>().and_then(|spec| registry::probe(&spec));
    tried.err().map(|error| error.to_string())
}
