//! Fills in values that a file may omit because they follow from other values.

use super::Experiment;
use crate::metric;
use anyhow::Context as _;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The fields that a claim does not copy from another claim.
const OWN: [&str; 4] = ["id", "statement", "primary", "control"];

/// Completes each claim with `like = ID`: it copies the fields that it lacks from an earlier claim of the
/// file.
///
/// # Errors
/// When that claim does not exist.
pub(super) fn complete_claims(experiment: &mut DeTable<'_>) -> anyhow::Result<()> {
    let Some(DeValue::Array(claims)) = experiment.get_mut("claim").map(Spanned::get_mut) else {
        return Ok(());
    };
    for index in 0..claims.len() {
        let (earlier, rest) = claims.split_at_mut(index);
        let DeValue::Table(claim) = rest[0].get_mut() else { continue };
        let Some(like) = claim.remove("like") else { continue };
        let model = earlier.iter().map(Spanned::get_ref).find(|model| {
            let id = model.get("id").and_then(|id| id.get_ref().as_str());
            id.is_some() && id == like.get_ref().as_str()
        });
        let model = model.and_then(DeValue::as_table).with_context(|| {
            let id = like.get_ref().as_str().unwrap_or_default();
            format!("[[claim]] like = {id:?}: no claim before it has this id")
        })?;
        for (key, value) in model.iter().filter(|(key, _)| !OWN.contains(&&**key.get_ref())) {
            claim.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    Ok(())
}

impl Experiment {
    /// Fills in the mechanism of each variant whose name is its mechanism, and the titles of figures.
    pub(super) fn fill_in(&mut self) {
        for variant in &mut self.variant {
            let is_other = variant.architecture.is_some()
                || variant.peer.is_some()
                || variant.redis_benchmark.is_some()
                || variant.floor_of.is_some();
            if variant.mechanism.is_empty() && !is_other {
                variant.mechanism.clone_from(&variant.name);
            }
        }
        for figure in self.figure.iter_mut().filter(|figure| figure.title.is_empty()) {
            if let Some(metric) = metric::find(&figure.y) {
                let (first, rest) = metric.label.split_at(1);
                figure.title = first.to_uppercase() + rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(second: &str) -> anyhow::Result<Experiment> {
        Experiment::parse(&format!(
            r#"
id = "t"
title = "t"
source = "t"
summary = "t"
workload = "one-byte"
variants = ["poll", "epoll"]
[[claim]]
id = "A"
statement = "t"
source = "gammo"
paper = "t"
paper-value = 2.0
primary = true
metric = "throughput_rps"
each = ["poll"]
b = {{ variant = "epoll" }}
holds = {{ above = 1.5 }}
[[claim]]
{second}
"#
        ))
    }

    #[test]
    fn a_claim_has_what_it_does_not_say_from_the_one_that_it_is_like() {
        let second = "id = \"B\"\nstatement = \"s\"\nlike = \"A\"\nholds = { below = 1.0 }";
        let [a, b]: [_; 2] = parsed(second).unwrap().claim.try_into().unwrap();
        assert_eq!((b.id.as_str(), b.statement.as_str(), b.primary), ("B", "s", false));
        assert_eq!(b.holds, crate::experiment::Threshold::Below(1.0), "all of it is its own");
        assert_eq!(
            (b.paper_value, &b.metric, &b.each, &b.b),
            (Some(2.0), &a.metric, &a.each, &a.b)
        );
    }

    #[test]
    fn names_say_what_a_variant_is_and_what_a_figure_shows() {
        let own = "id = \"B\"\nstatement = \"s\"\nlike = \"A\"\n[[variant]]\nname = \"epoll\"\nserver.interest = \"eager\"\n\
                   [[axis]]\nname = \"idle\"\nlabel = \"\"\nvalues = [0]\n\
                   [[figure]]\nid = \"p50\"\nx = \"idle\"\ny = \"latency_p50_us\"";
        let it = parsed(own).unwrap();
        assert_eq!(it.variant[1].mechanism, "epoll");
        assert_eq!(it.figure[0].title, "Median latency");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (second, expected) in [
            ("id = \"B\"\nstatement = \"s\"\nlike = \"C\"", "like = \"C\": no claim before it"),
            ("id = \"B\"\nstatement = \"s\"\nlike = \"B\"", "like = \"B\": no claim before it"),
            ("id = \"B\"\nlike = \"A\"", "missing field `statement`"),
            ("id = \"B\"\nstatement = \"s\"\nlike = \"A\"\nhold = 1", "line 23, column 1"),
        ] {
            let message = format!("{:#}", parsed(second).unwrap_err());
            assert!(message.contains(expected), "{second}: {message}");
        }
    }
}
