//! What the bench is held to: taking signals many at a time must pay.

use crate::{
    run::{Figure, Results},
    statistics::{Estimate, estimate},
};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

/// Signals as phhttpd took them, one a call.
pub(crate) const ONE: &str = "rtsig:dequeue=one";
/// Signals many a call, as the paper's `sigtimedwait4()` would have (Provos and Lever 2000, §6).
const BATCH: &str = "rtsig";
/// What an event of a batch may cost beside one taken alone.
const LIMIT: f64 = 0.8;

/// The goal for one number of ready connections.
pub(crate) struct Goal {
    n: usize,
    figure: Estimate,
}

impl Goal {
    fn met(&self) -> bool {
        self.figure.value <= LIMIT
    }
}

/// The goals for which there are figures: ratios within a round, as everywhere.
pub(crate) fn goals(results: &Results) -> Vec<Goal> {
    let of = |name: &'static str| {
        results.figures.iter().filter(move |f| f.case == "all-ready" && f.name == name)
    };
    let goal = |batch: &Figure| {
        let one = of(ONE).find(|one| one.n == batch.n)?;
        let pairs = batch.samples_ns.iter().zip(&one.samples_ns);
        let ratios: Vec<f64> = pairs.map(|(batch, one)| batch / one).collect();
        Some(Goal { n: batch.n, figure: estimate(&ratios) })
    };
    of(BATCH).filter_map(goal).collect()
}

/// For people; nothing when there are none.
pub(crate) fn table(goals: &[Goal]) -> String {
    if goals.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header([
        "goal: an event of all N ready, many a call / one a call",
        "≤",
        "[95 %]",
        "",
    ]);
    for column in [1, 2] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for goal in goals {
        let Estimate { value, low, high } = goal.figure;
        table.add_row([
            format!("{BATCH} / {ONE}, N = {}", goal.n),
            LIMIT.to_string(),
            format!("{value:.2} [{low:.2}, {high:.2}]"),
            if goal.met() { "met" } else { "missed" }.to_owned(),
        ]);
    }
    let met = goals.iter().filter(|goal| goal.met()).count();
    format!("\n{table}\n{met} of {} goals met\n", goals.len())
}

/// For programs.
pub(crate) fn json(goals: &[Goal]) -> Value {
    let one = |goal: &Goal| {
        let Estimate { value, low, high } = goal.figure;
        json!({"statement": format!("all-ready, {BATCH} / {ONE}"), "n": goal.n, "limit": LIMIT,
               "figure": {"value": value, "low": low, "high": high}, "met": goal.met()})
    };
    goals.iter().map(one).collect()
}
