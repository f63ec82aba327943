//! The goals of speed, each with its limit, its figure and whether it was met.

use pollux_lab::stats::Estimate;
use serde::Serialize;

/// One goal and what was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Goal {
    /// What was wanted, in words.
    pub(crate) statement: String,
    /// The most that the figure may be.
    pub(crate) limit: f64,
    /// The figure, with its interval where it is a paired ratio.
    pub(crate) figure: Estimate,
    /// The figure's unit; empty for a ratio.
    pub(crate) unit: &'static str,
    /// Whether the figure's value is within the limit.
    pub(crate) met: bool,
}

impl Goal {
    /// Judges `figure` against `limit`.
    pub(crate) fn at_most(
        statement: impl Into<String>,
        limit: f64,
        figure: Estimate,
        unit: &'static str,
    ) -> Self {
        Self { statement: statement.into(), limit, met: figure.value <= limit, figure, unit }
    }
}

/// The table that `make bench` ends with.
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
                _ => "one measurement".into(),
            },
            if goal.met { "met" } else { "missed" }.into(),
        ]);
    }
    table
}
