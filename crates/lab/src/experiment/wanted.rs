//! The metrics that an experiment uses.

use super::Experiment;

impl Experiment {
    /// Whether a figure or a claim uses the metric of this name. Statistics that are expensive for the
    /// server are requested only if one does.
    pub(crate) fn looks_at(&self, metric: &str) -> bool {
        let drawn = self.figure.iter().map(|figure| figure.y.as_str());
        let sides = self.claim.iter().flat_map(|claim| claim.sides());
        let of_sides = sides.filter_map(|side| side.metric.as_deref());
        let judged = self.claim.iter().map(|claim| claim.metric.as_str());
        drawn.chain(judged).chain(of_sides).any(|name| name == metric)
    }
}

#[cfg(test)]
mod tests {
    use crate::experiment::find;

    #[test]
    fn what_is_drawn_or_judged_is_looked_at() {
        let wan = find("gammo-wan").unwrap();
        assert!(wan.looks_at("open_connections"));
        assert!(!find("idle").unwrap().looks_at("open_connections"));
        let drawn_alone = super::super::Experiment { claim: Vec::new(), ..wan };
        assert!(drawn_alone.looks_at("open_connections"));
    }
}
