//! The outcome in one or two sentences.

use crate::{
    result::{Outcome, Run, Status},
    verdict::{Bound, Verdict},
};

/// Returns the result in one or two sentences: how many claims hold, and the verdicts of the primary
/// claims.
pub fn in_words(outcome: &Outcome) -> String {
    if outcome.runs.iter().all(|run| run.status != Status::Valid) {
        let reason = outcome.runs.iter().rev().find_map(|run| run.reason.as_deref());
        return format!(
            "There is no result: no run is valid{}.",
            reason.map_or_else(String::new, |reason| format!(" ({reason})"))
        );
    }
    if outcome.claims.is_empty() {
        return "The experiment has no claim.".into();
    }
    let count = |verdict: Verdict| {
        let (one, many) = verdict.predicate();
        let why = if verdict == Verdict::Seen { ": a verdict needs six blocks" } else { "" };
        match outcome.claims.iter().filter(|claim| claim.verdict == verdict).count() {
            0 => None,
            1 => Some(format!("1 {one}{why}")),
            count => Some(format!("{count} {many}{why}")),
        }
    };
    let parts: Vec<String> = Verdict::ALL.into_iter().filter_map(count).collect();
    let mut text = match outcome.claims.as_slice() {
        [_] => "The experiment has one claim.".to_owned(),
        all => format!("Of {} claims {}.", all.len(), parts.join(", ")),
    };
    let is_only = outcome.claims.len() == 1;
    for claim in outcome.claims.iter().filter(|claim| claim.primary || is_only) {
        text.push_str(&format!(" {}: {}", claim.id, claim.verdict));
        if let Some(span) = claim.span() {
            text.push_str(&format!(" ({span})"));
        } else if let Some(value) = claim.value {
            let sign = Bound::sign(claim.bound);
            text.push_str(&format!(" ({sign}{})", claim.number(value)));
        }
        text.push('.');
    }
    text
}

/// Returns a sentence if the machine was not quiet: how many runs do not count because other programs
/// delayed the generator. Returns `None` if they are less than a tenth of all runs.
pub fn noise(outcome: &Outcome) -> Option<String> {
    let made = outcome.runs.len();
    // A generator without free descriptors or ports would lack them on a quiet machine, too.
    let was_disturbed = |run: &&Run| run.status == Status::Invalid && run.raw.shortage().is_none();
    let lost = outcome.runs.iter().filter(was_disturbed).count();
    (made > 0 && lost * 10 >= made).then(|| {
        format!(
            "This machine was not quiet: {lost} of {made} runs do not count, because other \
             programs delayed the generator. Run the experiment again with nothing else running."
        )
    })
}
