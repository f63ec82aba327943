//! The kernel's memory before a run. It must be constant then, because a run measures the memory in use
//! above this baseline.
//!
//! The processes of the previous run have been reaped when a run begins, but the kernel frees their sockets
//! later, when no CPU can still read them: after a million connections this takes seconds. A run with a
//! thousand connections that read its baseline during that time measured a negative amount of memory.

use super::*;
use crate::{
    memory::LEAST_CONNECTIONS,
    result::{Outcome, Run},
};

/// The time between two readings.
const APART: Duration = Duration::from_millis(100);
/// A change between two readings that the machine causes by itself: on a machine with a load of three, half
/// of the changes were below 84 KiB, and all eighty at most 500. That is a twentieth of the memory of the
/// smallest number of connections whose memory is reported.
const AT_REST_BYTES: u64 = 512 << 10;
/// The number of consecutive small changes that is required: the kernel frees memory in batches, with
/// pauses between them.
const IN_A_ROW: usize = 2;
/// The longest wait of a run.
const LONGEST: Duration = Duration::from_secs(30);
/// The longest wait in windows of the run, so that a quick form stays quick.
const LONGEST_WINDOWS: f64 = 10.0;

/// The state of a sequence of readings.
#[derive(Clone, Copy, Debug, Default)]
struct Looks {
    last: Option<i64>,
    small_in_a_row: usize,
    last_change: u64,
}

impl Looks {
    /// Adds a reading. Returns whether the memory is constant now.
    fn add(&mut self, bytes: i64) -> bool {
        if let Some(last) = self.last.replace(bytes) {
            self.last_change = bytes.abs_diff(last);
            let is_small = self.last_change < AT_REST_BYTES;
            self.small_in_a_row = if is_small { self.small_in_a_row + 1 } else { 0 };
        }
        self.small_in_a_row >= IN_A_ROW
    }
}

impl Bench<'_> {
    /// Waits until the kernel's memory is constant, before a run with windows of `window_s` seconds. If it
    /// still changes at the end of the longest wait, returns the number of bytes of the last change between
    /// two readings.
    ///
    /// # Errors
    /// When /proc cannot be read; on Ctrl-C.
    pub(super) fn await_rest(&self, window_s: f64) -> anyhow::Result<Option<u64>> {
        let longest = LONGEST.min(Duration::from_secs_f64(LONGEST_WINDOWS * window_s));
        let most = longest.as_millis() / APART.as_millis();
        let mut looks = Looks::default();
        for _ in 0..=most.max(IN_A_ROW as u128) {
            if looks.last.is_some() {
                self.sleep_until(Instant::now() + APART)?;
            }
            if looks.add(memory::now(&[])?.kernel_bytes) {
                return Ok(None);
            }
        }
        Ok(Some(looks.last_change))
    }

    /// Whether the kernel's memory of `connections` idle connections is measured and shown.
    pub(super) fn shows_kernel_memory(&self, connections: u64) -> bool {
        connections >= LEAST_CONNECTIONS && self.experiment.looks_at(Metric::KernelBytes)
    }
}

/// A note when the kernel's memory still changed before some runs: their memory figures include the memory
/// that other processes took or freed.
pub(in crate::run) fn note(outcome: &Outcome) -> Option<String> {
    let with_memory = |run: &Run| [run.raw.held, run.raw.loaded].into_iter().flatten().next();
    let moved = |run: &Run| with_memory(run)?.kernel_moved_bytes;
    let with_memory = outcome.runs.iter().filter(|run| with_memory(run).is_some()).count();
    let all: Vec<(&Run, u64)> =
        outcome.runs.iter().filter_map(|run| Some((run, moved(run)?))).collect();
    let (worst, most) = all.iter().max_by_key(|(_, moved)| moved)?;
    Some(format!(
        "Before {} of {with_memory} runs the kernel's memory did not stand still (most: {} in {} ms, {}): their \
         memory figures include the memory that other processes took or freed. Run it again on a quiet machine.",
        all.len(),
        crate::format::bytes(*most),
        APART.as_millis(),
        worst.cell.name(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of readings after which the memory counts as constant; `None` if it never does. The
    /// `series` is in KiB.
    fn looks_until_rest(series: &[i64]) -> Option<usize> {
        let mut looks = Looks::default();
        series.iter().position(|kibibytes| looks.add(kibibytes << 10)).map(|index| index + 1)
    }

    #[test]
    fn what_stands_still_costs_three_looks() {
        assert_eq!(looks_until_rest(&[900_000; 10]), Some(3));
        // The usual changes on a machine under load.
        assert_eq!(looks_until_rest(&[900_000, 900_276, 900_124, 900_000]), Some(3));
    }

    #[test]
    fn what_is_given_back_is_waited_for() {
        // As after a million connections: many bytes are freed at first, then fewer and fewer.
        let given_back: Vec<i64> =
            (0..40).map(|i| 900_000 + (7_000_000.0 * 0.5_f64.powi(i)) as i64).collect();
        let looks = looks_until_rest(&given_back).unwrap();
        assert!(given_back[looks - 1] - 900_000 < 512, "{looks}");
        // Memory is freed in batches with a pause of one reading between them, which does not count as
        // constant.
        let batches: Vec<i64> = (0..40).map(|i| 900_000 + 50_000 * (10 - i / 2).max(0)).collect();
        assert_eq!(looks_until_rest(&batches), Some(23));
    }

    #[test]
    fn what_goes_on_changing_never_rests() {
        let swings: Vec<i64> = (0..300).map(|i| 900_000 + 2_000 * (i % 2)).collect();
        assert_eq!(looks_until_rest(&swings), None);
        let climbs: Vec<i64> = (0..300).map(|i| 900_000 + 600 * i).collect();
        assert_eq!(looks_until_rest(&climbs), None);
    }
}
