//! The figures of the papers, and the claims that judge each of them (`papers.toml`).

use crate::experiment;
use anyhow::Context as _;
use serde::Deserialize;

/// The papers, in the order of docs/papers.md.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Papers {
    /// The papers; the last entry contains the claims beyond them.
    pub paper: Vec<Paper>,
}

/// A paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// The paper's short name, with which the source of a claim begins.
    pub key: String,
    /// Authors, title and where it was published.
    pub title: String,
    /// The machines on which the paper measured.
    pub machine: Option<String>,
    /// The paper's figures, and its results that are in no figure.
    pub figure: Vec<PaperFigure>,
}

/// A figure of a paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PaperFigure {
    /// The name: `Figure 10`.
    pub name: String,
    /// A description of the figure.
    pub picture: String,
    /// The names of the experiments that reproduce it.
    pub experiments: Vec<String>,
    /// The names of the claims about it, in any of the experiments.
    pub claims: Vec<String>,
    /// Claims of the paper that no experiment here can test.
    #[serde(default)]
    pub not_testable: Vec<Untestable>,
}

/// A claim of a paper that no experiment here can test.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Untestable {
    /// The claim's number.
    pub id: String,
    /// The claim in words.
    pub statement: String,
    /// The reason.
    pub why: String,
}

/// Returns all papers.
///
/// # Errors
/// When the list is invalid.
pub fn papers() -> anyhow::Result<Papers> {
    toml::from_str(include_str!("papers.toml")).context("papers.toml")
}

impl PaperFigure {
    /// Returns how many of the figure's claims share one error with the other primary claims of the paper.
    /// A claim that two experiments judge counts once.
    fn primary_claims(&self) -> usize {
        let experiments: Vec<_> =
            self.experiments.iter().filter_map(|id| experiment::find_built_in(id)).collect();
        let is_primary = |id: &&String| {
            let claims = experiments.iter().flat_map(|experiment| &experiment.claim);
            claims.into_iter().any(|claim| claim.primary && claim.id == **id)
        };
        self.claims.iter().filter(is_primary).count()
    }
}

/// Returns how many primary claims of this paper share one error ([`crate::statistics::holm`]). A page
/// about all runs adjusts the same number of claims together.
pub(crate) fn primary_claims_of(key: &str) -> usize {
    // A test parses the list.
    let papers = papers().map_or_else(|_| Vec::new(), |papers| papers.paper);
    let figures =
        papers.into_iter().filter(|paper| paper.key == key).flat_map(|paper| paper.figure);
    figures.map(|figure| figure.primary_claims()).sum()
}

#[cfg(test)]
mod tests {
    use super::primary_claims_of;
    use crate::experiment::{PAPERS, find, ids};

    #[test]
    fn every_primary_claim_of_a_paper_is_counted_once() {
        let of_experiments = |paper: &str| {
            let claims = ids().flat_map(|id| find(id).unwrap().claim);
            claims.filter(|claim| claim.primary && claim.paper_key() == Some(paper)).count()
        };
        for paper in PAPERS {
            assert_eq!(primary_claims_of(paper), of_experiments(paper), "{paper}");
        }
        assert_eq!(primary_claims_of("ours"), 0);
    }
}
