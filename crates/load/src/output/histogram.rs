//! Latencies as bars, for people.

use super::text::{WIDTH, time};
use hdrhistogram::Histogram;
use std::io::{self, Write};

/// The most rows; the ratio of a row's limits is chosen so that the rows cover the whole span.
const ROWS: usize = 10;

/// Columns beside the bar: two times, a count and the spaces between them.
const BESIDE: usize = 31;

/// Writes one row for each class of latency, with its bar. Classes grow by a constant factor, because
/// latencies span decades; the last one ends with the longest latency.
///
/// # Errors
/// The errors of the writer.
pub(super) fn write(latencies: &Histogram<u64>, out: &mut impl Write) -> io::Result<()> {
    // For fewer values than rows the table is sufficient.
    if latencies.len() < ROWS as u64 {
        return Ok(());
    }
    let rows = rows(latencies);
    let most = rows.iter().map(|row| row.count).max().unwrap_or(1).max(1);
    writeln!(out)?;
    for Row { from_ns, to_ns, count } in rows {
        let (from, to) = (time(from_ns as f64 / 1e3), time(to_ns as f64 / 1e3));
        let len = (count as f64 / most as f64 * (WIDTH - BESIDE) as f64).ceil() as usize;
        let bar = "#".repeat(len);
        let line = format!("{from:>7} to {to:>7} {count:>11} {bar}");
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// One class of latencies, in nanoseconds: above `from_ns` (in the first class: from `from_ns` on) to
/// `to_ns`.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    from_ns: u64,
    to_ns: u64,
    count: u64,
}

fn rows(latencies: &Histogram<u64>) -> Vec<Row> {
    let (first, last) = (latencies.min().max(1), latencies.max().max(1));
    let factor = (last as f64 / first as f64).powf(1.0 / ROWS as f64);
    let mut from_ns = first;
    let mut counted = 0;
    let mut rows = Vec::new();
    for number in 1..=ROWS {
        let to_ns = match number {
            ROWS => last,
            _ => (first as f64 * factor.powi(number as i32)) as u64,
        };
        if to_ns <= from_ns && number < ROWS {
            continue;
        }
        let until = match number {
            ROWS => latencies.len(),
            _ => latencies.count_between(0, to_ns),
        };
        rows.push(Row { from_ns, to_ns, count: until - counted });
        (from_ns, counted) = (to_ns, until);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: impl Iterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = crate::histogram::histogram();
        values.for_each(|value| histogram.record(value).unwrap());
        histogram
    }

    #[test]
    fn every_latency_is_in_one_row() {
        for values in [
            histogram((1..5_000).map(|n| n * 1_000)),
            histogram((0..20).map(|_| 77_000)),
            histogram([1, 3_600_000_000_000].into_iter().cycle().take(50)),
            histogram((0..30).map(|n| 1_000_000 + n)),
        ] {
            let rows = rows(&values);
            assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), values.len(), "{rows:?}");
            assert!(rows.len() <= ROWS && !rows.is_empty());
            assert!(rows.windows(2).all(|two| two[0].to_ns == two[1].from_ns), "{rows:?}");
            assert_eq!(rows.last().map(|row| row.to_ns), Some(values.max()));
        }
    }

    #[test]
    fn the_longest_bar_is_that_of_the_fullest_row() {
        let values = histogram((0..100).map(|_| 1_000_000).chain((0..10).map(|_| 90_000_000)));
        let mut out = Vec::new();
        write(&values, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let bars: Vec<usize> = text.lines().skip(1).map(|l| l.matches('#').count()).collect();
        assert_eq!(bars.iter().max(), Some(&(WIDTH - BESIDE)), "{text}");
        assert_eq!(bars.first(), bars.iter().max(), "{text}");
        assert_eq!(bars.last(), Some(&((WIDTH - BESIDE).div_ceil(10))), "{text}");
    }
}
