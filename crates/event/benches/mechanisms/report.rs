//! The table, and the raw data.

use crate::{
    goal,
    run::{Figure, REFERENCE, Results},
    statistics::Estimate,
};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};
use std::fmt::Write;

/// Case, what its figures are, what its ratio is to.
const TITLES: [(&str, &str, &str); 4] = [
    ("wait", "one of N becomes ready: ns per turn above the write and read alone", REFERENCE),
    ("change", "k interests of N are changed before a wait: ns per change", REFERENCE),
    ("all-ready", "all of N are ready: ns per event taken", REFERENCE),
    ("arrival", "data arrive on all of N: ns per write, for the sender", "a bare write"),
];

fn nanoseconds(ns: f64) -> String {
    if ns.abs() < 1000.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

fn ratio(Estimate { value, low, high }: Estimate) -> String {
    format!("{value:.2} [{low:.2}, {high:.2}]")
}

/// For people.
pub(crate) fn table(results: &Results) -> String {
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
            let Estimate { value, low, high } = figure.ns;
            table.add_row([
                figure.n.to_string(),
                figure.changed.map_or(String::new(), |changed| changed.to_string()),
                figure.name.clone(),
                nanoseconds(value),
                format!("[{}, {}]", nanoseconds(low), nanoseconds(high)),
                figure.ratio.map_or(String::new(), ratio),
            ]);
        }
        let _ = writeln!(text, "{table}");
    }
    let (rounds, slice) = (results.rounds, results.slice);
    let _ = writeln!(
        text,
        "\nmedians over {rounds} rounds of the thread's CPU time, each variant twice {slice:?} a round"
    );
    for note in &results.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text + &goal::table(&goal::goals(results))
}

/// For programs: all samples.
pub(crate) fn json(results: &Results) -> Value {
    let system = rustix::system::uname();
    let estimate =
        |Estimate { value, low, high }: Estimate| json!({"value": value, "low": low, "high": high});
    let figure = |figure: &Figure| {
        json!({
            "case": figure.case,
            "n": figure.n,
            "changed": figure.changed,
            "mechanism": figure.name,
            "ns": estimate(figure.ns),
            "ratio": figure.ratio.map(estimate),
            "samples_ns": figure.samples_ns,
        })
    };
    json!({
        "bench": "mechanisms",
        "kernel": system.release().to_string_lossy(),
        "machine": system.machine().to_string_lossy(),
        "rounds": results.rounds,
        "slice_ms": results.slice.as_secs_f64() * 1e3,
        "notes": results.notes,
        "goals": goal::json(&goal::goals(results)),
        "figures": results.figures.iter().map(figure).collect::<Vec<_>>(),
    })
}
