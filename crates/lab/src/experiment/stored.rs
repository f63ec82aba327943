//! The experiment of a stored run, and the current version of the built-in experiment of its name.
//!
//! Stored runs are judged by the current claims: a claim that was too weak, or that used the wrong metric,
//! is corrected in the experiment's file. This is valid only if the run has the data that the file now
//! requires.

use super::{Budget, Cells, Experiment, Form, Machine};
use serde_json::{Map, Value as Json};

/// Flags of `pollux load` and `pollux idle` that specify the means of the load and the required quality,
/// not the load itself. A run that missed this quality does not count.
const MEANS: &[&str] = &["threads", "source", "max-lag", "max-lag-share", "max-starved"];

/// Converts the experiment of a stored result to the current layout. Until 28 November 2026 an experiment
/// had separate fields for its quick form and for guests; a result contained all of them, of which the run
/// had used some.
pub(crate) fn renew(result: &mut Json) {
    let quick = result["quick"] == true;
    let Some(experiment) = result.get_mut("experiment").and_then(Json::as_object_mut) else {
        return;
    };
    let Some(full) = experiment.remove("full") else { return };
    experiment.insert("budget".into(), full);
    choose(experiment, "budget", "quick", quick);
    experiment["budget"]["pilot"] = (!quick).into();
    for field in ["quick-variants", "guest", "deterministic-limit-step"] {
        experiment.remove(field);
    }
    for field in ["deterministic-window-seconds", "deterministic-warmup-seconds"] {
        experiment.remove(field);
    }
    let is_deterministic = experiment["place"] == "deterministic-guest";
    let axes = experiment.get_mut("axis").and_then(Json::as_array_mut);
    for axis in axes.into_iter().flatten().filter_map(Json::as_object_mut) {
        choose(axis, "values", "quick-values", quick);
    }
    if let Some(rate) = experiment.get_mut("rate").and_then(Json::as_object_mut) {
        choose(rate, "rps", "quick-rps", quick);
        choose(rate, "fractions", "quick-fractions", quick);
        rate.remove("beyond-rps");
        // In the quick form this field had no effect.
        if quick && !is_deterministic {
            rate.remove("limit-step");
        }
    }
    let claims = experiment.get_mut("claim").and_then(Json::as_array_mut);
    for claim in claims.into_iter().flatten().filter_map(Json::as_object_mut) {
        claim.remove("full-form-only");
    }
}

/// Replaces a value by that of the quick form, if this is a quick run and has such a value.
fn choose(table: &mut Map<String, Json>, field: &str, of_quick: &str, quick: bool) {
    let value = table.remove(of_quick).filter(|value| quick && !value.is_null());
    table.extend(value.map(|value| (field.to_owned(), value)));
}

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
    use super::renew;
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

    #[test]
    fn an_experiment_with_fields_for_its_forms_becomes_the_one_that_was_run() {
        let stored = |quick| {
            serde_json::json!({ "quick": quick, "experiment": {
                "place": "host", "full": { "seconds": 900.0 }, "quick": { "seconds": 60.0 },
                "quick-variants": [], "guest": null, "deterministic-window-seconds": null,
                "axis": [{ "values": [1, 2], "quick-values": [1] }, { "values": [3], "quick-values": null }],
                "rate": { "rps": [], "fractions": [0.5], "quick-fractions": [0.1], "limit-step": 0.05 },
                "claim": [{ "id": "A", "full-form-only": true }],
            } })
        };
        for (quick, expected) in [
            (
                true,
                serde_json::json!({
                    "place": "host", "budget": { "seconds": 60.0, "pilot": false },
                    "axis": [{ "values": [1] }, { "values": [3] }],
                    "rate": { "rps": [], "fractions": [0.1] }, "claim": [{ "id": "A" }],
                }),
            ),
            (
                false,
                serde_json::json!({
                    "place": "host", "budget": { "seconds": 900.0, "pilot": true },
                    "axis": [{ "values": [1, 2] }, { "values": [3] }],
                    "rate": { "rps": [], "fractions": [0.5], "limit-step": 0.05 }, "claim": [{ "id": "A" }],
                }),
            ),
        ] {
            let mut result = stored(quick);
            renew(&mut result);
            assert_eq!(result["experiment"], expected);
            renew(&mut result);
            assert_eq!(result["experiment"], expected, "once is enough");
        }
    }
}
