//! What the papers print, figure by figure, and the claims that judge it (`papers.toml`).

use crate::experiment;
use anyhow::Context as _;
use serde::Deserialize;

/// The papers, in the order of docs/papers.md.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Papers {
    /// Each of them; the last is what goes beyond them.
    pub paper: Vec<Paper>,
}

/// One of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Its short name, with which the source of a claim begins.
    pub key: String,
    /// Authors, title and where it was published.
    pub title: String,
    /// Its figures, and what stands in no figure.
    pub figure: Vec<PaperFigure>,
}

/// A figure of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// `Figure 10`.
    pub name: String,
    /// What is to be seen in it.
    pub picture: String,
    /// The experiments that run it again.
    pub experiments: Vec<String>,
    /// The claims about it: those of these names, in any of the experiments.
    pub claims: Vec<String>,
}

/// All of them.
///
/// # Errors
/// When the list is not right.
pub fn papers() -> anyhow::Result<Papers> {
    toml::from_str(include_str!("papers.toml")).context("papers.toml")
}

impl PaperFigure {
    /// How many of its claims share one error with the other primary ones of the paper. What two experiments
    /// judge is one claim.
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

/// How many primary claims of this paper share one error ([`crate::statistics::holm`]): as many as a page over
/// all runs adjusts together.
pub(crate) fn primary_claims_of(key: &str) -> usize {
    // A test reads the list.
    let papers = papers().map_or_else(|_| Vec::new(), |papers| papers.paper);
    let figures =
        papers.into_iter().filter(|paper| paper.key == key).flat_map(|paper| paper.figure);
    figures.map(|figure| figure.primary_claims()).sum()
}

#[cfg(test)]
mod tests {
    use super::primary_claims_of;
    use crate::experiment::{find, ids};

    #[test]
    fn every_primary_claim_of_a_paper_is_counted_once() {
        let of_experiments = |paper: &str| {
            let claims = ids().flat_map(|id| find(id).unwrap().claim);
            claims.filter(|claim| claim.primary && claim.paper_key() == Some(paper)).count()
        };
        for paper in ["provos", "mail", "gammo", "zerohttpd"] {
            assert_eq!(primary_claims_of(paper), of_experiments(paper), "{paper}");
        }
        assert_eq!(primary_claims_of("ours"), 0);
    }
}
