//! The experiment of a stored run, and the current version of the built-in experiment of its name.
//!
//! Stored runs are judged by the current claims: a claim that was too weak, or that used the wrong metric,
//! is corrected in the experiment's file. This is valid only if the run has the data that the file now
//! requires.

use super::{Budget, Cells, Experiment, Form, Machine};

/// Flags of `pollux load` and `pollux idle` that specify the means of the load and the required quality,
/// not the load itself. A run that missed this quality does not count.
const MEANS: &[&str] = &["threads", "source", "max-lag", "max-lag-share", "max-starved"];

impl Experiment {
    /// Returns this experiment in the form in which `stored` was run.
    pub(crate) fn in_the_form_of(
        &self,
        stored: &Self,
        in_guest: bool,
        quick: bool,
    ) -> anyhow::Result<Self> {
        let machine = match stored.place {
            _ if !in_guest => Machine::Host,
            Machine::DeterministicGuest => Machine::DeterministicGuest,
            Machine::Guest | Machine::Host => Machine::Guest,
        };
        self.form(Form { machine, quick })
    }

    /// Takes the current wording for each claim that compares the same data with the same threshold as the
    /// current claim of this name, so that a report has one wording for all runs.
    pub(crate) fn take_words_of(&mut self, today: &Self) {
        for claim in &mut self.claim {
            let same = today.claim.iter().find(|it| it.id == claim.id && it.compares_as(claim));
            if let Some(same) = same {
                claim.statement.clone_from(&same.statement);
                claim.paper.clone_from(&same.paper);
            }
        }
    }

    /// Whether both experiments require the same data: they may differ in texts, claims, figures and
    /// duration.
    pub(crate) fn has_the_design_of(&self, other: &Self) -> bool {
        self.design() == other.design()
    }

    fn design(&self) -> Self {
        let [mut load, mut idle] = [&self.load, &self.idle].map(Clone::clone);
        for flags in [&mut load, &mut idle] {
            flags.retain(|flag, _| !MEANS.contains(&flag.as_str()));
        }
        let (mut variant, mut axis) = (self.variant.clone(), self.axis.clone());
        let mut left_out = self.left_out.clone();
        variant.iter_mut().for_each(|variant| variant.because = None);
        axis.iter_mut().for_each(|axis| axis.label.clear());
        left_out.iter_mut().for_each(|left| left.because.clear());
        Self {
            load,
            idle,
            variant,
            axis,
            left_out,
            constant_caps: None,
            cells: Cells::All,
            title: String::new(),
            source: String::new(),
            summary: String::new(),
            budget: Budget::default(),
            figure: Vec::new(),
            claim: Vec::new(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::experiment::{Form, Machine, Threshold, Value, find, ids};

    #[test]
    fn every_form_of_an_experiment_is_known_again() {
        for id in ids() {
            let built_in = find(id).unwrap();
            for form in Form::ALL {
                let mut stored = built_in.form(form).unwrap();
                let claims = std::mem::take(&mut stored.claim);
                stored.budget.seconds = 7.0;
                let in_guest = form.machine != Machine::Host;
                let again = built_in.in_the_form_of(&stored, in_guest, form.quick).unwrap();
                assert!(again.has_the_design_of(&stored), "{id} {form}");
                assert_eq!(again.claim, claims, "{id} {form}");
                stored.load.insert("threads".into(), Value::Number(9.0));
                assert!(again.has_the_design_of(&stored), "{id}: the same load by other means");
                let words = || "in other words".to_owned();
                stored.variant.iter_mut().for_each(|variant| variant.because = Some(words()));
                stored.axis.iter_mut().for_each(|axis| axis.label = words());
                assert!(again.has_the_design_of(&stored), "{id}: the same in other words");
                stored.server.insert("accept-limit".into(), Value::Number(3.0));
                assert!(!again.has_the_design_of(&stored), "{id}");
            }
        }
    }

    #[test]
    fn a_claim_takes_todays_words_only_if_it_compares_the_same() {
        let today = find("idle").unwrap();
        let mut stored = today.clone();
        for claim in &mut stored.claim {
            claim.statement = "in older words".into();
        }
        stored.claim[0].holds = Threshold::Above(1.75);
        stored.take_words_of(&today);
        assert_eq!(stored.claim[0].statement, "in older words");
        assert_eq!(stored.claim[1..], today.claim[1..]);
    }
}
