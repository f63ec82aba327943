//! The experiments that are part of the program.

use super::Experiment;
use std::sync::OnceLock;

/// The ids and texts of the built-in experiments.
pub(super) const BUILT_IN: &[(&str, &str)] = &[
    ("idle", include_str!("../../experiments/idle.toml")),
    ("tls-idle", include_str!("../../experiments/tls-idle.toml")),
    ("push", include_str!("../../experiments/push.toml")),
    ("capacity", include_str!("../../experiments/capacity.toml")),
    ("wait-cost", include_str!("../../experiments/wait-cost.toml")),
    ("provos-fig4-9", include_str!("../../experiments/provos-fig4-9.toml")),
    ("provos-fig10", include_str!("../../experiments/provos-fig10.toml")),
    ("provos-fig11-13", include_str!("../../experiments/provos-fig11-13.toml")),
    ("provos-fig14", include_str!("../../experiments/provos-fig14.toml")),
    ("provos-overflow", include_str!("../../experiments/provos-overflow.toml")),
    ("provos-hybrid", include_str!("../../experiments/provos-hybrid.toml")),
    ("provos-hybrid-quiet", include_str!("../../experiments/provos-hybrid-quiet.toml")),
    ("provos-ablation", include_str!("../../experiments/provos-ablation.toml")),
    ("mail-hints", include_str!("../../experiments/mail-hints.toml")),
    ("gammo-fig1-2", include_str!("../../experiments/gammo-fig1-2.toml")),
    ("gammo-fig3-4", include_str!("../../experiments/gammo-fig3-4.toml")),
    ("gammo-fig5-6", include_str!("../../experiments/gammo-fig5-6.toml")),
    ("gammo-fig7", include_str!("../../experiments/gammo-fig7.toml")),
    ("gammo-specweb99", include_str!("../../experiments/gammo-specweb99.toml")),
    ("gammo-wan", include_str!("../../experiments/gammo-wan.toml")),
    ("gammo-table1", include_str!("../../experiments/gammo-table1.toml")),
    ("batching", include_str!("../../experiments/batching.toml")),
    ("zerohttpd-table", include_str!("../../experiments/zerohttpd-table.toml")),
    ("zerohttpd-static", include_str!("../../experiments/zerohttpd-static.toml")),
    ("guestbook-redis", include_str!("../../experiments/guestbook-redis.toml")),
    ("frontend", include_str!("../../experiments/frontend.toml")),
];

/// The ids of the built-in experiments, in the order of `pollux lab list`.
pub fn ids() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(id, _)| *id)
}

/// Returns the text of a built-in experiment.
pub fn text(id: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == id).map(|(_, text)| *text)
}

/// The built-in experiments that were parsed before: a check of all forms of one takes milliseconds, and
/// many of them are used many times.
static READ: [OnceLock<Experiment>; BUILT_IN.len()] = [const { OnceLock::new() }; BUILT_IN.len()];

/// Returns the built-in experiment of this name.
pub(crate) fn find_built_in(id: &str) -> Option<&'static Experiment> {
    let index = BUILT_IN.iter().position(|(known, _)| *known == id)?;
    let read = || {
        let parsed = Experiment::parse(BUILT_IN[index].1);
        parsed.unwrap_or_else(|error| panic!("built-in experiment {id}: {error:#}"))
    };
    Some(READ[index].get_or_init(read))
}

/// Reads a built-in experiment, or a file when `id` ends in `.toml`.
///
/// # Errors
/// When the id is unknown (the message lists the known ones), the file cannot be read, or its content is
/// invalid (the message says where).
pub fn find(id: &str) -> anyhow::Result<Experiment> {
    use anyhow::Context as _;
    if let Some(experiment) = find_built_in(id) {
        return Ok(experiment.clone());
    }
    if id.ends_with(".toml") {
        let text = std::fs::read_to_string(id).with_context(|| format!("cannot read {id}"))?;
        return Experiment::parse(&text).with_context(|| format!("experiment file {id}"));
    }
    let known: Vec<_> = ids().collect();
    anyhow::bail!(
        "no experiment is called {id:?}; there are {} (a path that ends in .toml works too)",
        known.join(", ")
    )
}
