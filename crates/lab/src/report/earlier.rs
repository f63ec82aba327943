//! Verdicts under other thresholds: a threshold that was changed after data had been seen is marked where its
//! verdict is shown.

use crate::{
    claims,
    experiment::{
        Claim, find_built_in,
        soundness::{Entry, register},
    },
    result::Outcome,
};

/// Returns the verdicts under the other thresholds that `thresholds.toml` has for this claim, in words, if
/// they differ from the verdict of the claim.
pub(super) fn other_verdicts(outcome: &Outcome, claim: &Claim) -> Vec<String> {
    // The register has thresholds of the comparison that is made today.
    let today = find_built_in(&outcome.experiment.id).and_then(|it| it.find_claim(&claim.id));
    let is_todays =
        today.is_some_and(|it| it.metric == claim.metric && it.compare == claim.compare);
    let register = register();
    let Some(entries) = register.get(&claim.id).filter(|_| is_todays) else { return Vec::new() };
    differing(entries, claim, |claim| claims::judge_one(outcome, claim).verdict.to_string())
}

fn differing(entries: &[Entry], claim: &Claim, verdict: impl Fn(&Claim) -> String) -> Vec<String> {
    let mut others: Vec<&Entry> =
        entries.iter().filter(|it| it.form.is_none() && it.holds != claim.holds).collect();
    if others.is_empty() {
        return Vec::new();
    }
    others.dedup_by_key(|entry| entry.holds);
    let now = verdict(claim);
    let under = |entry: &Entry| {
        let then = verdict(&Claim { holds: entry.holds, ..claim.clone() });
        (then != now)
            .then(|| format!("{then} with the threshold of {} ({})", entry.date, entry.holds))
    };
    others.into_iter().filter_map(under).collect()
}

/// Returns the earlier forms of a claim that another comparison replaced, in words.
pub(super) fn earlier_forms(id: &str) -> Vec<String> {
    let register = register();
    let entries = register.get(id).into_iter().flatten();
    let form = |entry: &Entry| {
        let form = entry.form.as_ref()?;
        Some(format!(
            "the threshold of {} ({}) was for another comparison: {form}",
            entry.date, entry.holds
        ))
    };
    entries.filter_map(form).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Threshold, find};

    fn entry(date: &str, limit: f64, form: Option<&str>) -> Entry {
        let (date, holds) = (date.to_owned(), Threshold::Below(limit));
        Entry { date, holds, form: form.map(str::to_owned), why: String::new() }
    }

    #[test]
    fn a_threshold_that_changes_the_verdict_is_marked() {
        let experiment = find("provos-fig4-9").unwrap();
        let claim = experiment.find_claim("P1-sooner").unwrap();
        // The measured ratio is 0.97.
        let verdict = |claim: &Claim| claim.holds.has(0.97).to_string();
        let of = |entries: &[Entry]| differing(entries, claim, verdict);
        let (first, now) = (entry("2026-11-22", 1.0, None), entry("2026-11-25", 0.955, None));
        assert_eq!(of(&[first, now.clone()]), ["true with the threshold of 2026-11-22 (< 1)"]);
        let same = entry("2026-11-22", 0.96, None);
        let another_form = entry("2026-11-22", 1.0, Some("another comparison"));
        assert_eq!(of(&[same, another_form, now]), [""; 0]);
    }

    #[test]
    fn the_first_form_of_p3_is_in_the_register() {
        assert_eq!(earlier_forms("P3").len(), 1);
        assert!(earlier_forms("P1").is_empty());
    }
}
