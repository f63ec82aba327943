//! The experiments that are part of the program.

use super::Experiment;
use std::sync::OnceLock;

/// Returns the ids of experiments with the texts of their files.
macro_rules! with_texts {
    ($($id:literal)*) => {
        &[$(($id, include_str!(concat!("../../experiments/", $id, ".toml")))),*]
    };
}

/// The ids and texts of the built-in experiments.
pub(super) const BUILT_IN: &[(&str, &str)] = with_texts! {
    "idle" "tls-idle" "push" "capacity" "wait-cost"
    "provos-fig4-9" "provos-fig10" "provos-fig11-13" "provos-fig14" "provos-overflow"
    "provos-hybrid" "provos-hybrid-quiet" "provos-ablation"
    "mail-hints"
    "gammo-fig1-2" "gammo-fig3-4" "gammo-fig5-6" "gammo-fig7" "gammo-specweb99" "gammo-wan"
    "gammo-table1"
    "batching" "zerohttpd-table" "zerohttpd-static" "guestbook-redis" "frontend"
};

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
