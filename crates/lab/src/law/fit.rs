//! The law fitted to a result: on a third of its cells, with predictions for the others.
//!
//! A seed chooses the third before anything is measured. What is predicted from that third alone can be committed
//! before the other cells are measured (`pollux lab law --predict`).

use super::{Law, Open, Point, errors};
use crate::{
    experiment::{IDLE, RATE, Value},
    plan,
    result::{Outcome, Status},
};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _};

/// The seed of the published predictions, committed on 27 November 2026.
pub const SEED: u64 = 20_261_127;
/// One cell in so many is for the fit.
const FIT_PART: u64 = 3;

/// What is predicted for one cell, beside what was measured there, if it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The mechanism.
    pub variant: String,
    /// Idle connections.
    pub idle: f64,
    /// Requests a second that are offered.
    pub rate_rps: Option<f64>,
    /// CPU a request from the rate alone, in microseconds.
    pub cpu_us: f64,
    /// The same from the waits a request that were measured.
    pub cpu_us_of_waits: Option<f64>,
    /// The best rate with so many idle connections, in requests a second.
    pub best_rate_rps: f64,
    /// CPU a request as measured, in microseconds.
    pub measured_cpu_us: Option<f64>,
}

/// The law of one mechanism with its predictions.
#[derive(Debug)]
pub struct Fit {
    /// The mechanism.
    pub variant: String,
    /// The constants.
    pub law: Law,
    /// How many cells they come from.
    pub cells: usize,
    /// The other cells.
    pub predictions: Vec<Prediction>,
}

struct Cell {
    name: String,
    idle: f64,
    rate_rps: Option<f64>,
    measured: Option<Point>,
}

/// Whether the cell is of the third that the law is fitted on: FNV-1a of seed and name.
pub fn is_for_fit(seed: u64, name: &str) -> bool {
    let bytes = seed.to_le_bytes().into_iter().chain(name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 32) % FIT_PART == 0
}

/// Fits every variant of `outcome` that has cells enough.
pub fn of(outcome: &Outcome, seed: u64) -> Vec<Fit> {
    let names = outcome.variants.iter().map(|variant| variant.name.as_str());
    names.filter_map(|variant| of_variant(outcome, variant, seed)).collect()
}

fn of_variant(outcome: &Outcome, variant: &str, seed: u64) -> Option<Fit> {
    let cells = cells(outcome, variant);
    let (fit, rest): (Vec<&Cell>, Vec<&Cell>) =
        cells.iter().partition(|cell| is_for_fit(seed, &cell.name));
    let points: Vec<Point> = fit.iter().filter_map(|cell| cell.measured).collect();
    let law = Law::fit(&points)?;
    // A request that shares no wait: the most that was seen in the fit.
    let events = points.iter().map(|point| point.waits).fold(0.0, f64::max);
    let predict = |cell: &&Cell| {
        let of_rate = cell.rate_rps.map(|rate| law.at(cell.idle, events, Open::Unlimited, rate));
        Prediction {
            variant: variant.to_owned(),
            idle: cell.idle,
            rate_rps: cell.rate_rps,
            cpu_us: of_rate.map_or_else(|| law.cpu_us(cell.idle, events), |it| it.cpu_us),
            cpu_us_of_waits: cell.measured.map(|it| law.cpu_us(it.idle, it.waits)),
            best_rate_rps: law.best_rate(cell.idle, events, Open::Unlimited),
            measured_cpu_us: cell.measured.map(|point| point.cpu_us),
        }
    };
    let predictions = rest.iter().map(predict).collect();
    Some(Fit { variant: variant.to_owned(), law, cells: points.len(), predictions })
}

/// Every cell of the design, with the means over its valid runs.
fn cells(outcome: &Outcome, variant: &str) -> Vec<Cell> {
    let number = |point: &plan::Point, axis: &str| point.get(axis).and_then(Value::number);
    let cell = |point: plan::Point| {
        let runs = outcome.runs.iter().filter(|run| {
            run.status == Status::Valid && run.cell.variant == variant && run.cell.point == point
        });
        let (mut sums, mut count) = ([0.0; 2], 0.0);
        for run in runs {
            let both = ["waits_per_request", "server_cpu_us_per_request"].map(|it| run.metric(it));
            let [Some(waits), Some(cpu_us)] = both else { continue };
            sums = [sums[0] + waits, sums[1] + cpu_us];
            count += 1.0;
        }
        let idle = number(&point, IDLE).unwrap_or(0.0);
        // A server that has a part of a CPU is offered so many times more.
        let share = outcome.runs.iter().find_map(|run| run.raw.server_share).unwrap_or(1.0);
        let measured =
            (count > 0.0).then(|| Point { idle, waits: sums[0] / count, cpu_us: sums[1] / count });
        let rate_rps = number(&point, RATE).map(|rate| rate / share);
        let name = plan::Cell { variant: variant.to_owned(), point }.name();
        Cell { name, idle, rate_rps, measured }
    };
    let points = plan::points(&outcome.dimensions).into_iter();
    points.filter(|point| outcome.asks(variant, point)).map(cell).collect()
}

/// The fits as a table, with the errors of what was predicted.
pub fn text(fits: &[Fit]) -> String {
    let mut text = String::from(
        "| mechanism | cells | c (µs) | S(N) (µs a wait) | R² | predicted cells | error from waits: median, 95th | \
         error from the rate: median, 95th |\n|---|---|---|---|---|---|---|---|\n",
    );
    for fit in fits {
        let scan = |(idle, us): &(f64, f64)| format!("{us:.0} at {idle:.0}");
        let scans: Vec<String> = fit.law.scans.iter().map(scan).collect();
        let pairs = |of: &dyn Fn(&Prediction) -> Option<f64>| {
            let pair = |it: &Prediction| Some((of(it)?, it.measured_cpu_us?));
            let all: Vec<(f64, f64)> = fit.predictions.iter().filter_map(pair).collect();
            let percent = |(median, high): (f64, f64)| {
                format!("{:.1} %, {:.1} %", 100.0 * median, 100.0 * high)
            };
            errors(&all).map_or_else(|| "–".to_owned(), percent)
        };
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {} | {:.3} | {} | {} | {} |",
            fit.variant,
            fit.cells,
            fit.law.c_us,
            scans.join(", "),
            fit.law.r_squared,
            fit.predictions.len(),
            pairs(&|it| it.cpu_us_of_waits),
            pairs(&|it| Some(it.cpu_us)),
        );
    }
    text
}

/// The predictions without what was measured, to be committed before it is: one JSON document.
///
/// # Errors
/// Never: the document has numbers and names alone.
pub fn predictions(fits: &[Fit]) -> serde_json::Result<String> {
    let strip =
        |it: &Prediction| Prediction { cpu_us_of_waits: None, measured_cpu_us: None, ..it.clone() };
    let all: BTreeMap<&str, Vec<Prediction>> = fits
        .iter()
        .map(|fit| (fit.variant.as_str(), fit.predictions.iter().map(strip).collect()))
        .collect();
    serde_json::to_string_pretty(&all)
}

#[cfg(test)]
mod tests {
    use super::is_for_fit;

    #[test]
    fn a_seed_chooses_about_a_third() {
        let names: Vec<String> = (0..3_000).map(|cell| format!("poll, rate {cell}")).collect();
        let chosen = |seed| names.iter().filter(|name| is_for_fit(seed, name)).count();
        assert!((900..1_100).contains(&chosen(super::SEED)), "{}", chosen(super::SEED));
        let differs = names.iter().any(|name| is_for_fit(1, name) != is_for_fit(2, name));
        assert!(differs);
    }
}
