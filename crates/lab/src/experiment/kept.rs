//! An experiment that was run and kept, and the built-in one of its name as it is today.
//!
//! Stored runs are judged by the current claims: a claim that was too weak, or that read the wrong metric,
//! is corrected in the experiment's file. That is right only if the run has the data that the file now
//! requires.

use super::{Budget, Experiment, Machine, SaturationOf};

/// No time at all.
const NO_BUDGET: Budget = Budget {
    seconds: 0.0,
    blocks: 0,
    min_window_seconds: 0.0,
    max_window_seconds: 0.0,
    warmup_seconds: 0.0,
    saturation_seconds: 0.0,
    saturation_of: SaturationOf::All,
};

/// Flags of `pollux load` that say with what means it makes the load and how well it has to, not what the load
/// is: a run in which that was not done does not count.
const MEANS: &[&str] = &["threads", "max-lag", "max-lag-share", "max-starved"];

impl Experiment {
    /// The form in which `kept` was run.
    pub(crate) fn in_the_form_of(mut self, kept: &Self, in_guest: bool, quick: bool) -> Self {
        if in_guest {
            self = self.in_guest();
            if kept.place == Machine::DeterministicGuest {
                self = self.in_deterministic_guest();
                if quick {
                    self = self.with_fewer_rates();
                }
            }
        }
        if quick { self.in_quick_form() } else { self }
    }

    /// Takes today's words for each claim that compares the same data with the same threshold as today's claim of
    /// this name: a report then uses one wording for all runs.
    pub(crate) fn take_words_of(&mut self, today: &Self) {
        for claim in &mut self.claim {
            let same = today.claim.iter().find(|it| it.id == claim.id && it.compares_as(claim));
            if let Some(same) = same {
                claim.statement.clone_from(&same.statement);
                claim.paper.clone_from(&same.paper);
            }
        }
    }

    /// Whether both require the same data: they may differ in texts, claims, figures and duration.
    pub(crate) fn has_the_design_of(&self, other: &Self) -> bool {
        self.design() == other.design()
    }

    fn design(&self) -> Self {
        // The settings of the deterministic guest have no effect elsewhere.
        let there = self.place == Machine::DeterministicGuest;
        let mut load = self.load.clone();
        load.retain(|flag, _| !MEANS.contains(&flag.as_str()));
        let (mut variant, mut axis) = (self.variant.clone(), self.axis.clone());
        let mut left_out = self.left_out.clone();
        variant.iter_mut().for_each(|variant| variant.because = None);
        axis.iter_mut().for_each(|axis| axis.label.clear());
        left_out.iter_mut().for_each(|left| left.because.clear());
        Self {
            load,
            variant,
            axis,
            left_out,
            constant_caps: None,
            cells: super::Cells::All,
            title: String::new(),
            source: String::new(),
            summary: String::new(),
            quick_variants: Vec::new(),
            full: NO_BUDGET,
            quick: NO_BUDGET,
            guest: None,
            figure: Vec::new(),
            claim: Vec::new(),
            deterministic_window_seconds: self.deterministic_window_seconds.filter(|_| there),
            deterministic_warmup_seconds: self.deterministic_warmup_seconds.filter(|_| there),
            deterministic_server_share: self.deterministic_server_share.filter(|_| there),
            deterministic_limit_step: self.deterministic_limit_step.filter(|_| there),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::experiment::{Threshold, Value, find, ids};

    #[test]
    fn every_form_of_an_experiment_is_known_again() {
        for id in ids() {
            let built_in = || find(id).unwrap();
            let mut forms = vec![
                (built_in(), false, false),
                (built_in().in_quick_form(), false, true),
                (built_in().in_guest(), true, false),
                (built_in().in_guest().in_quick_form(), true, true),
                (built_in().in_guest().in_deterministic_guest(), true, false),
            ];
            let few = built_in().in_guest().in_deterministic_guest().with_fewer_rates();
            forms.push((few.in_quick_form(), true, true));
            for (mut kept, in_guest, quick) in forms {
                let claims = std::mem::take(&mut kept.claim);
                kept.budget_mut(quick).seconds = 7.0;
                let again = built_in().in_the_form_of(&kept, in_guest, quick);
                assert!(again.has_the_design_of(&kept), "{id} {in_guest} {quick}");
                assert_eq!(again.claim, claims, "{id} {in_guest} {quick}");
                kept.load.insert("threads".into(), Value::Number(9.0));
                assert!(again.has_the_design_of(&kept), "{id}: the same load by other means");
                let words = || "in other words".to_owned();
                kept.variant.iter_mut().for_each(|variant| variant.because = Some(words()));
                kept.axis.iter_mut().for_each(|axis| axis.label = words());
                assert!(again.has_the_design_of(&kept), "{id}: the same in other words");
                kept.server.insert("accept-limit".into(), Value::Number(3.0));
                assert!(!again.has_the_design_of(&kept), "{id}");
            }
        }
    }

    #[test]
    fn a_claim_takes_todays_words_only_if_it_compares_the_same() {
        let today = find("idle").unwrap();
        let mut kept = today.clone();
        for claim in &mut kept.claim {
            claim.statement = "in older words".into();
        }
        kept.claim[0].holds = Threshold::Above(1.75);
        kept.take_words_of(&today);
        assert_eq!(kept.claim[0].statement, "in older words");
        assert_eq!(kept.claim[1..], today.claim[1..]);
    }
}
