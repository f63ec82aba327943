//! The tables, and the raw data.

use super::run::{Figure, REFERENCE, Results};
use comfy_table::{CellAlignment, Table, presets};
use pollux_lab::statistics::Estimate;
use serde_json::{Value, json};
use std::fmt::Write;

/// The case, the meaning of its figures, and the reference of its ratio.
const TITLES: [(&str, &str, &str); 4] = [
    ("wait", "one of N becomes ready: ns per iteration above the write and read alone", REFERENCE),
    ("change", "k interests of N are changed before a wait: ns per change", REFERENCE),
    ("all-ready", "all of N are ready: ns per event taken", REFERENCE),
    ("arrival", "data arrive on all of N: ns per write, for the sender", "a bare write"),
];

fn nanoseconds(ns: f64) -> String {
    if ns.abs() < 1000.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

/// The figure and its interval. A slice of some milliseconds may coincide with a pause of the machine.
/// So the figure is the Hodges–Lehmann estimate, which such a round hardly changes.
fn shown(estimate: &Estimate, digits: fn(f64) -> String) -> [String; 2] {
    let interval = estimate.rank.map(|i| format!("[{}, {}]", digits(i.low), digits(i.high)));
    [estimate.rank_value.map(digits).unwrap_or_default(), interval.unwrap_or_default()]
}

/// The tables for people.
pub(crate) fn tables(results: &Results) -> String {
    let mut text = String::new();
    for (case, title, reference) in TITLES {
        let figures: Vec<_> = results.figures.iter().filter(|figure| figure.case == case).collect();
        if figures.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{case}: {title}");
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        let of = format!("of {reference} [95 %]");
        table.set_header(["N", "k", "mechanism", "ns", "[95 %]", &of]);
        for column in [0, 1, 3, 4, 5] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for figure in figures {
            let [ns, ns_interval] = shown(&figure.ns, nanoseconds);
            let ratio = figure.ratio.map(|ratio| shown(&ratio, |ratio| format!("{ratio:.2}")));
            table.add_row([
                figure.n.to_string(),
                figure.changed.map_or(String::new(), |changed| changed.to_string()),
                figure.name.clone(),
                ns,
                ns_interval,
                ratio.map(|ratio| ratio.join(" ").trim_end().to_owned()).unwrap_or_default(),
            ]);
        }
        let _ = writeln!(text, "{table}");
    }
    let (rounds, slice) = (results.rounds, results.slice);
    let _ = writeln!(
        text,
        "\nmedians over the pairs of {rounds} rounds (Hodges–Lehmann) of the thread's CPU time, each \
         variant twice {slice:?} a round"
    );
    for note in &results.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// The data for programs: all samples. The tables show `rank_value` and `rank`.
pub(crate) fn figures(results: &Results) -> Value {
    let figure = |figure: &Figure| {
        json!({
            "case": figure.case,
            "n": figure.n,
            "changed": figure.changed,
            "mechanism": figure.name,
            "ns": figure.ns,
            "ratio": figure.ratio,
            "samples_ns": figure.samples_ns,
        })
    };
    results.figures.iter().map(figure).collect()
}
