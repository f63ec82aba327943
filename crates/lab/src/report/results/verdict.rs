//! The verdict on a result in the words of the page.

use super::points;
use crate::{
    experiment::Threshold,
    statistics::Compare,
    verdict::{ClaimOutcome, Verdict},
};
use serde::Serialize;
use std::fmt;

/// The verdict in the words of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReaderVerdict {
    /// At least half of the paper's effect, or the equality that the paper states, was measured.
    Reproduced,
    /// The effect has the paper's direction, but less than half of its size, or the paper gives no size.
    DirectionOnly,
    /// There is no such effect, or the opposite effect.
    Contradicted,
    /// Reasonable operating points disagree; the text names the parameter that decides.
    Depends(String),
    /// The run decides the claim, but with all runs of it, or with all claims of the paper, chance could have
    /// decided it as well.
    NotSignificant {
        /// The runs and claims that are counted, in words.
        over: String,
        /// The verdict of the run by itself.
        alone: Box<Self>,
    },
    /// The data here cannot decide the claim; the text is the reason.
    NotTestable(String),
}

impl fmt::Display for ReaderVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "**{}**", self.name())?;
        match self {
            Self::Reproduced | Self::DirectionOnly | Self::Contradicted => Ok(()),
            Self::Depends(on) => write!(f, " on {on}"),
            Self::NotSignificant { over, alone } => {
                let over = over.strip_prefix("not significant").unwrap_or(over).trim_start();
                // The number of runs says enough; the page explains the correction.
                let over =
                    over.strip_suffix(OVER_THE_PAPER).filter(|it| !it.is_empty()).unwrap_or(over);
                write!(f, " {over} (alone: {})", alone.name())
            }
            Self::NotTestable(why) => write!(f, ": {why}"),
        }
    }
}

/// The end of the words for a claim that is not significant with the other claims of its paper.
const OVER_THE_PAPER: &str = " with all primary claims of the paper";

impl ReaderVerdict {
    /// Returns the verdict without its reason.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::DirectionOnly => "direction only",
            Self::Contradicted => "contradicted",
            Self::Depends(_) => "depends",
            Self::NotSignificant { .. } => "not significant",
            Self::NotTestable(_) => "not testable",
        }
    }

    /// Returns the reader's verdict on one claim.
    pub fn of(claim: &ClaimOutcome) -> Self {
        match claim.verdict {
            Verdict::Holds if is_any_difference(claim) => Self::DirectionOnly,
            Verdict::Holds => Self::Reproduced,
            Verdict::Depends => Self::Depends(points::deciding_axes(claim)),
            Verdict::DoesNotHold if goes_the_way(claim) => Self::DirectionOnly,
            Verdict::DoesNotHold => Self::Contradicted,
            Verdict::Undecided | Verdict::Seen | Verdict::NotTestable => {
                Self::NotTestable(why_open(claim))
            }
        }
    }

    /// Returns the reader's verdict on several readings of one result. A reading that is not significant
    /// neither decides the result nor may it be ignored: the result is not significant if that reading alone
    /// disagrees with the others.
    pub fn of_all(readings: Vec<Self>, decided_by: &str) -> Self {
        let is_doubtful = |verdict: &&Self| matches!(verdict, Self::NotSignificant { .. });
        let is_open =
            |verdict: &&Self| is_doubtful(verdict) || matches!(verdict, Self::NotTestable(_));
        let mut decided = readings.iter().filter(|verdict| !is_open(verdict));
        let Some(first) = decided.next().cloned() else {
            let open = readings.iter().find(is_doubtful).or_else(|| readings.first());
            return open
                .cloned()
                .unwrap_or_else(|| Self::NotTestable("no published run measures it".into()));
        };
        let disagrees = |verdict: &&Self| match verdict {
            Self::NotSignificant { alone, .. } => **alone != first,
            _ => false,
        };
        if let Some(doubtful) = readings.iter().find(disagrees) {
            return doubtful.clone();
        }
        let agree = decided.all(|verdict| *verdict == first);
        match first {
            Self::Depends(on) if decided_by.is_empty() => Self::Depends(on),
            Self::Depends(_) => Self::Depends(decided_by.to_owned()),
            first if agree => first,
            _ => Self::Depends(decided_by.to_owned()),
        }
    }
}

/// Returns in few words why the claim is open: at which operating points it is, or which data would decide it.
/// The page of the run has the whole reason.
fn why_open(claim: &ClaimOutcome) -> String {
    let open = claim.parts.iter().find(|part| !part.verdict.is_decided());
    let first = |note: &String| note.split("; ").next().unwrap_or_default().to_owned();
    let reason = || {
        let outlook = open?.outlook.map(|outlook| outlook.to_string());
        outlook.or_else(|| open?.note.as_ref().map(first))
    };
    match points::open(claim).filter(|place| !place.is_empty()) {
        Some(place) => format!("undecided at {place}"),
        None => reason().unwrap_or_else(|| claim.verdict.to_string()),
    }
}

/// Returns the value of a comparison of two equal sides.
fn no_effect(compare: Compare) -> Option<f64> {
    match compare {
        Compare::Ratio => Some(1.0),
        Compare::Difference => Some(0.0),
        Compare::Value => None,
    }
}

/// Whether the threshold is "no effect": the claim holds for any difference in its direction.
fn is_any_difference(claim: &ClaimOutcome) -> bool {
    match claim.threshold {
        Threshold::Above(limit) | Threshold::Below(limit) => {
            no_effect(claim.compare) == Some(limit)
        }
        Threshold::Within(_) => false,
    }
}

/// Returns whether the interval lies on the same side of "no effect" as the claim's threshold.
fn goes_the_way(claim: &ClaimOutcome) -> bool {
    let Some(none) = no_effect(claim.compare) else { return false };
    let Some((low, high)) = claim.low.zip(claim.high) else { return false };
    match claim.threshold {
        Threshold::Above(limit) => limit > none && low > none,
        Threshold::Below(limit) => limit < none && high < none,
        Threshold::Within(_) => false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::verdict::Part;

    /// Returns a claim about a ratio.
    pub(in super::super) fn claim(
        verdict: Verdict,
        ends: [f64; 2],
        threshold: Threshold,
    ) -> ClaimOutcome {
        ClaimOutcome {
            id: String::new(),
            statement: String::new(),
            verdict,
            metric: "throughput_rps".into(),
            compare: Compare::Ratio,
            value: None,
            low: Some(ends[0]),
            high: Some(ends[1]),
            bound: None,
            paper: None,
            paper_says: String::new(),
            threshold,
            primary: false,
            p: None,
            p_with_all: None,
            parts: Vec::new(),
        }
    }

    fn verdict(verdict: Verdict, ends: [f64; 2], threshold: Threshold) -> ReaderVerdict {
        ReaderVerdict::of(&claim(verdict, ends, threshold))
    }

    #[test]
    fn half_of_the_effect_is_reproduced_and_less_is_its_direction() {
        let below = Threshold::Below(0.6);
        assert_eq!(verdict(Verdict::Holds, [0.2, 0.3], below), ReaderVerdict::Reproduced);
        assert_eq!(verdict(Verdict::DoesNotHold, [0.8, 0.9], below), ReaderVerdict::DirectionOnly);
        assert_eq!(verdict(Verdict::DoesNotHold, [0.9, 1.1], below), ReaderVerdict::Contradicted);
        assert_eq!(verdict(Verdict::DoesNotHold, [1.1, 1.2], below), ReaderVerdict::Contradicted);
        let alike = Threshold::Within([0.95, 1.05]);
        assert_eq!(verdict(Verdict::DoesNotHold, [1.1, 1.2], alike), ReaderVerdict::Contradicted);
    }

    #[test]
    fn any_difference_is_a_direction_only() {
        let of = |compare, threshold| {
            ReaderVerdict::of(&ClaimOutcome {
                compare,
                ..claim(Verdict::Holds, [1.0, 1.1], threshold)
            })
        };
        for threshold in [Threshold::Above(1.0), Threshold::Below(1.0)] {
            assert_eq!(of(Compare::Ratio, threshold), ReaderVerdict::DirectionOnly);
        }
        assert_eq!(of(Compare::Difference, Threshold::Above(0.0)), ReaderVerdict::DirectionOnly);
        // A margin, an equality, and a value that is compared with nothing.
        assert_eq!(of(Compare::Ratio, Threshold::Above(1.05)), ReaderVerdict::Reproduced);
        assert_eq!(of(Compare::Ratio, Threshold::Within([1.0, 1.1])), ReaderVerdict::Reproduced);
        assert_eq!(of(Compare::Value, Threshold::Below(1.0)), ReaderVerdict::Reproduced);
    }

    #[test]
    fn readings_that_disagree_depend_on_a_parameter() {
        let of = |all: &[ReaderVerdict]| ReaderVerdict::of_all(all.to_vec(), "the cap");
        let (yes, no) = (ReaderVerdict::Reproduced, ReaderVerdict::Contradicted);
        let open = ReaderVerdict::NotTestable("noise".into());
        let doubtful = |alone: &ReaderVerdict| ReaderVerdict::NotSignificant {
            over: "not significant over 11 runs".into(),
            alone: Box::new(alone.clone()),
        };
        assert_eq!(of(&[yes.clone(), no.clone()]), ReaderVerdict::Depends("the cap".into()));
        assert_eq!(of(&[yes.clone(), open.clone()]), yes);
        assert_eq!(of(&[doubtful(&no), no.clone()]), no);
        assert_eq!(of(&[doubtful(&yes), no.clone()]), doubtful(&yes), "it is not ignored");
        assert_eq!(of(std::slice::from_ref(&open)), open);
        assert_eq!(of(&[open.clone(), doubtful(&yes)]), doubtful(&yes));
        assert_eq!(
            doubtful(&yes).to_string(),
            "**not significant** over 11 runs (alone: reproduced)"
        );
        let of_paper = |over: &str| ReaderVerdict::NotSignificant {
            over: format!("not significant{over}{OVER_THE_PAPER}"),
            alone: Box::new(no.clone()),
        };
        assert_eq!(
            of_paper(" over 8 runs").to_string(),
            "**not significant** over 8 runs (alone: contradicted)"
        );
        assert_eq!(
            of_paper("").to_string(),
            "**not significant** with all primary claims of the paper (alone: contradicted)"
        );
        assert!(matches!(of(&[]), ReaderVerdict::NotTestable(_)));
    }

    #[test]
    fn what_decides_is_the_axis_of_the_operating_points() {
        let part = |point: &str, verdict| Part {
            operating_point: Some(point.into()),
            verdict,
            ..Part::default()
        };
        let parts = vec![
            part("backlog 5, rate x1.05", Verdict::Holds),
            part("backlog 128, rate x1.05", Verdict::DoesNotHold),
        ];
        let claim =
            ClaimOutcome { parts, ..claim(Verdict::Depends, [0.0, 1.0], Threshold::Above(0.3)) };
        let of = |decided_by| ReaderVerdict::of_all(vec![ReaderVerdict::of(&claim)], decided_by);
        assert_eq!(of(""), ReaderVerdict::Depends("backlog".into()));
        assert_eq!(of("the queue"), ReaderVerdict::Depends("the queue".into()));
    }

    #[test]
    fn what_is_open_has_a_short_reason() {
        let part = |point: Option<&str>| Part {
            operating_point: point.map(str::to_owned),
            note: Some("poll was not steady at this point: 13 % more; a second reason".into()),
            ..Part::default()
        };
        let of = |parts| {
            let about = claim(Verdict::Undecided, [0.5, 0.7], Threshold::Below(0.6));
            ReaderVerdict::of(&ClaimOutcome { parts, ..about }).to_string()
        };
        assert_eq!(
            of(vec![part(None)]),
            "**not testable**: poll was not steady at this point: 13 % more"
        );
        let decided = Part { verdict: Verdict::Holds, ..part(Some("at-once 8")) };
        assert_eq!(
            of(vec![decided, part(Some("at-once 64"))]),
            "**not testable**: undecided at at-once 64"
        );
        let outlook = Some(crate::verdict::Outlook::Blocks(45));
        assert_eq!(
            of(vec![Part { outlook, ..part(None) }]),
            "**not testable**: about 45 blocks would decide it"
        );
    }
}
