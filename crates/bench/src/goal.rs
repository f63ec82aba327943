//! The goals of speed, each with its limit, its figure and its verdict. A goal is met if the upper end
//! of the interval is within the limit, missed if the lower end is beyond it, and undecided if the
//! limit lies between them.

use pollux_lab::statistics::{Estimate, MIN_BLOCKS};
use serde::Serialize;

/// One goal and its measured figure.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    /// The goal in words.
    pub(crate) statement: String,
    /// The most that the figure may be.
    pub(crate) limit: f64,
    /// The figure, with its interval if it is a paired ratio.
    pub(crate) figure: Estimate,
    /// The figure's unit; empty for a ratio.
    pub(crate) unit: &'static str,
    /// The verdict on the goal.
    pub(crate) verdict: Verdict,
}

/// The verdict on a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// The whole interval lies within the limit.
    Met,
    /// The whole interval lies beyond it.
    Missed,
    /// The limit lies inside the interval, or there are too few rounds for an interval of known
    /// coverage.
    Undecided,
}

impl Verdict {
    fn of(figure: &Estimate, limit: f64) -> Self {
        match (figure.low, figure.high) {
            _ if figure.blocks < MIN_BLOCKS => Self::Undecided,
            (_, Some(high)) if high <= limit => Self::Met,
            (Some(low), _) if low > limit => Self::Missed,
            _ => Self::Undecided,
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Undecided => "undecided",
        }
    }
}

impl Goal {
    /// Judges `figure` against `limit`.
    pub(crate) fn at_most(
        statement: impl Into<String>,
        limit: f64,
        figure: Estimate,
        unit: &'static str,
    ) -> Self {
        let verdict = Verdict::of(&figure, limit);
        Self { statement: statement.into(), limit, verdict, figure, unit }
    }

    /// Judges the cost of this build against another's. The goal is met if the interval ends within
    /// `limit` and does not lie above 1 as a whole; it is missed if all of the interval lies above 1.
    pub(crate) fn no_dearer(statement: impl Into<String>, limit: f64, figure: Estimate) -> Self {
        let is_above_one = figure.blocks >= MIN_BLOCKS && figure.low.is_some_and(|low| low > 1.0);
        let goal = Self::at_most(statement, limit, figure, "");
        Self { verdict: if is_above_one { Verdict::Missed } else { goal.verdict }, ..goal }
    }

    /// Judges a count. A count has no noise, so its interval is the count itself.
    pub(crate) fn count_at_most(
        statement: impl Into<String>,
        limit: u32,
        count: u32,
        of: u32,
    ) -> Self {
        let (value, none) = (f64::from(count), None);
        let (low, high) = (Some(value), Some(value));
        let blocks = of as usize;
        let figure =
            Estimate { value, low, high, range: None, blocks, rank_value: none, rank: None };
        let verdict = if count <= limit { Verdict::Met } else { Verdict::Missed };
        Self { statement: statement.into(), limit: f64::from(limit), verdict, figure, unit: "" }
    }
}

/// The table of goals at the end of the output.
pub(crate) fn table(goals: &[Goal]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["goal", "limit", "figure", "95 % interval", ""]);
    for goal in goals {
        let digits = if goal.limit >= 10.0 { 1 } else { 3 };
        table.add_row([
            goal.statement.clone(),
            format!("≤ {}{}", goal.limit, goal.unit),
            format!("{:.digits$}{}", goal.figure.value, goal.unit),
            match (goal.figure.low, goal.figure.high) {
                (Some(low), Some(high)) => format!("{low:.digits$} – {high:.digits$}"),
                _ => goal.figure.range.map_or("one measurement".into(), |seen| {
                    format!("none; seen {:.digits$} to {:.digits$}", seen.low, seen.high)
                }),
            },
            goal.verdict.text().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_by_the_upper_end_and_missed_by_the_lower() {
        let figure = |low: f64, high: f64, blocks| Estimate {
            value: (low + high) / 2.0,
            low: Some(low),
            high: Some(high),
            range: None,
            blocks,
            rank_value: None,
            rank: None,
        };
        let verdict = |low, high| Goal::at_most("g", 1.1, figure(low, high, 10), "").verdict;
        assert_eq!(verdict(1.0, 1.09), Verdict::Met);
        assert_eq!(verdict(1.0, 1.15), Verdict::Undecided, "its middle is within the limit");
        assert_eq!(verdict(1.08, 1.2), Verdict::Undecided, "its middle is not");
        assert_eq!(verdict(1.11, 1.2), Verdict::Missed);
        let few = Goal::at_most("g", 1.1, figure(1.0, 1.01, 5), "");
        assert_eq!(few.verdict, Verdict::Undecided, "five rounds decide nothing");
        let beside = |low, high| Goal::no_dearer("g", 1.03, figure(low, high, 10)).verdict;
        assert_eq!(beside(0.98, 1.02), Verdict::Met);
        assert_eq!(beside(0.98, 1.04), Verdict::Undecided, "it may be four in a hundred dearer");
        assert_eq!(beside(1.01, 1.02), Verdict::Missed, "a little dearer is dearer");
        assert_eq!(Goal::count_at_most("g", 0, 0, 10).verdict, Verdict::Met);
        assert_eq!(Goal::count_at_most("g", 0, 1, 10).verdict, Verdict::Missed);
    }
}
