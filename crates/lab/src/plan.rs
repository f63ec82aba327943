//! The order and the length of the measurements.

pub use crate::experiment::Point;
use crate::experiment::{Axis, Budget, Experiment, PHASE, Phase, RATE, Value};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde::{Deserialize, Serialize};

/// The variant and the point of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The name of the variant.
    pub variant: String,
    /// The value of each axis.
    pub point: Point,
}

impl Cell {
    /// Describes the cell: `poll, idle 501, rate 900`.
    pub fn name(&self) -> String {
        let point = self.point.iter();
        point.fold(self.variant.clone(), |text, (axis, value)| format!("{text}, {axis} {value}"))
    }
}

/// An axis with its values in this run. The rate, in requests per second, is also an axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dimension {
    /// The axis' name.
    pub name: String,
    /// The label in figures.
    pub label: String,
    /// The values, in the order of the file.
    pub values: Vec<Value>,
}

impl Dimension {
    /// Returns an axis of numbers.
    pub fn of_numbers(name: &str, label: &str, values: &[f64]) -> Self {
        let values = values.iter().map(|&value| Value::Number(value)).collect();
        Self { name: name.into(), label: label.into(), values }
    }
}

/// The most cells of an experiment.
pub const MAX_CELLS: usize = 10_000;

impl Experiment {
    /// Returns the axes of this run, without the rate.
    pub fn dimensions(&self) -> Vec<Dimension> {
        let dimension = |axis: &Axis| Dimension {
            name: axis.name.clone(),
            label: axis.label.clone(),
            values: axis.values.clone(),
        };
        self.axis.iter().map(dimension).collect()
    }

    /// Returns the paper's own rates, for `--paper-rates`.
    ///
    /// # Errors
    /// When the experiment has none.
    pub fn paper_rates(&self) -> anyhow::Result<&[f64]> {
        let rates = self.rate.as_ref().map_or(&[][..], |rate| &rate.paper_rps);
        anyhow::ensure!(
            !rates.is_empty(),
            "experiment {} has no rates of the paper's own: leave --paper-rates out",
            self.id
        );
        Ok(rates)
    }
}

/// Returns the rate as an axis.
pub fn rate_dimension(rates_rps: &[f64]) -> Dimension {
    Dimension::of_numbers(RATE, "offered rate (requests/s)", rates_rps)
}

/// Returns the phases as an axis. It must be the last axis, so that the cells of one server are next to
/// each other.
pub fn phase_dimension(phases: &[Phase]) -> Dimension {
    Dimension {
        name: PHASE.into(),
        label: "phase".into(),
        values: phases.iter().map(|phase| Value::Word(phase.name.clone())).collect(),
    }
}

/// Returns every point of the product of `dimensions`.
pub fn points(dimensions: &[Dimension]) -> Vec<Point> {
    dimensions.iter().fold(vec![Point::new()], |points, dimension| {
        points
            .iter()
            .flat_map(|point| {
                dimension.values.iter().map(|value| {
                    let mut point = point.clone();
                    point.insert(dimension.name.clone(), value.clone());
                    point
                })
            })
            .collect()
    })
}

/// Returns every cell: each variant at each point.
///
/// # Errors
/// When there are more than [`MAX_CELLS`].
pub fn cells<'a>(
    variants: impl IntoIterator<Item = &'a str>,
    dimensions: &[Dimension],
) -> anyhow::Result<Vec<Cell>> {
    let points = points(dimensions);
    let cells: Vec<Cell> = variants
        .into_iter()
        .flat_map(|variant| {
            points.iter().map(move |point| Cell { variant: variant.into(), point: point.clone() })
        })
        .collect();
    anyhow::ensure!(
        cells.len() <= MAX_CELLS,
        "the experiment has {} cells; at most {MAX_CELLS} can be run: shorten its axes",
        cells.len()
    );
    Ok(cells)
}

/// Returns the order of one block: A B … B A. An even block runs the cells in a random order derived from
/// the seed, and the next, odd block runs the same order backwards, so that a machine that slows down
/// steadily affects every cell equally.
pub fn block_order(cells: usize, block: u32, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cells).collect();
    order.shuffle(&mut StdRng::seed_from_u64(seed.wrapping_add(u64::from(block / 2))));
    if block % 2 == 1 {
        order.reverse();
    }
    order
}

/// Returns the longest possible length of the measured windows with which `runs` more of them fit into the
/// time.
///
/// `overhead_s` is the cost of a run beside its window (start, idle connections, end), as measured so far.
pub fn window_seconds(budget: &Budget, left_s: f64, runs: usize, overhead_s: f64) -> f64 {
    let fits = left_s / runs.max(1) as f64 - overhead_s;
    // Round down to hundredths, because the generator's flag is a number of seconds.
    let fits = (fits * 100.0).floor() / 100.0;
    fits.clamp(budget.min_window_seconds, budget.max_window_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_mirror_each_other() {
        let forth = block_order(9, 0, 5);
        let mut back = block_order(9, 1, 5);
        back.reverse();
        assert_eq!(forth, back);
        assert_ne!(forth, block_order(9, 2, 5), "every pair of blocks has its own order");
        let mut sorted = forth.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..9).collect::<Vec<_>>(), "each cell once");
        assert_eq!(forth, block_order(9, 0, 5), "drawn from the seed");
    }

    #[test]
    fn cells_are_the_product() {
        let idle = Dimension::of_numbers("idle", "", &[0.0, 8.0]);
        let dimensions = [idle, rate_dimension(&[1.0, 2.0, 3.0])];
        let cells = cells(["poll", "epoll"], &dimensions).unwrap();
        assert_eq!(cells.len(), 12);
        assert_eq!(cells[7].variant, "epoll");
        assert_eq!(cells[7].point["idle"], Value::Number(0.0));
        assert_eq!(cells[7].point["rate"], Value::Number(2.0));
        assert_eq!(super::cells(["a"], &[]).unwrap().len(), 1, "no axis: one cell a variant");
    }

    #[test]
    fn windows_fit_the_budget_and_its_bounds() {
        let budget =
            Budget { min_window_seconds: 0.5, max_window_seconds: 2.0, ..Budget::default() };
        assert_eq!(window_seconds(&budget, 60.0, 40, 0.3), 1.2);
        assert_eq!(window_seconds(&budget, 600.0, 40, 0.3), 2.0, "not above the maximum");
        assert_eq!(window_seconds(&budget, 1.0, 40, 0.3), 0.5, "not below the minimum");
        assert_eq!(window_seconds(&budget, 60.0, 0, 0.3), 2.0, "no division by zero");
    }
}
