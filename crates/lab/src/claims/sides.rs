//! The two sides of a claim, block by block.
//!
//! If the best of several points is chosen and read from the same data, the figure is too good, because
//! noise influences the choice. Two cases differ.
//!
//! - *One side is the best of several points.* The point is chosen on the other half of the blocks: the runs of a block
//!   are read at the point that is best in the half to which the block does not belong. Two consecutive blocks, whose
//!   orders mirror each other, belong to the same half.
//! - *Both sides are the best of several points.* All blocks of a side are read at the point with the best mean. In the
//!   comparison, the two sides are too good by nearly as much. With a choice on each half, the blocks of a half would
//!   share the error of their choice, and the interval would be too narrow: a test simulates both.

use super::limit::THROUGHPUT;
use crate::{
    environment::Cpus,
    experiment::{Claim, RATE, Select, Side, Take, Value},
    metric::Metric,
    plan::{self, Cell, Dimension, Point},
    result::{Outcome, Run, grouped},
    statistics::{self, Compare, Sample},
};
use std::rc::Rc;

/// The rate that the server would answer with a CPU of its own.
const OWN_RATE: &str = Metric::RepliesPerCpuSecond.name();

/// The metrics that are shares of counted events, with the metrics of hits and trials.
const COUNTED: &[(Metric, Metric, Metric)] = &[
    (Metric::ErrorShare, Metric::RequestsFailed, Metric::RequestsScheduled),
    (Metric::CompletedShare, Metric::RequestsCompleted, Metric::RequestsScheduled),
];

/// The largest share of the blocks that may lack a side.
pub(super) const MOST_LOST: f64 = 0.2;

/// One side of a claim, with the points at which it is read.
#[derive(Clone)]
pub(super) struct Arm<'a> {
    outcome: &'a Outcome,
    pub(super) side: &'a Side,
    pub(super) variant: &'a str,
    pub(super) metric: &'a str,
    /// The metric that is read at the point where `metric` is best; if `None`, `metric` itself.
    read: Option<&'a str>,
    pub(super) points: Vec<Point>,
    /// Whether both sides of the claim are the best of several points.
    is_beside_best: bool,
    /// The side with all points of the claim, including this one, if each point is judged by itself.
    whole: Option<Rc<Self>>,
    /// The runs at the points, valid or not, of the variant and of the variant that is subtracted.
    runs: Vec<&'a Run>,
}

/// Both sides of a claim for one variant.
pub(super) struct Sides<'a> {
    pub(super) outcome: &'a Outcome,
    pub(super) claim: &'a Claim,
    pub(super) a: Arm<'a>,
    pub(super) b: Option<Arm<'a>>,
}

impl<'a> Sides<'a> {
    pub(super) fn of(outcome: &'a Outcome, claim: &'a Claim, variant: &'a str) -> Self {
        let arm = |side: &'a Side| {
            let variant = side.variant.as_deref().unwrap_or(variant);
            let mut points = points(outcome, side);
            points.retain(|point| outcome.measures(variant, point));
            let is_its = |run: &&Run| {
                let name = run.cell.variant.as_str();
                let is_named = name == variant || Some(name) == side.minus.as_deref();
                is_named && points.contains(&run.cell.point)
            };
            let runs = outcome.runs.iter().filter(is_its).collect();
            let metric = side.metric.as_deref().unwrap_or(&claim.metric);
            let (read, whole, is_beside_best) = (None, None, false);
            Arm { outcome, side, variant, metric, read, points, is_beside_best, whole, runs }
        };
        let mut sides = Self { outcome, claim, a: arm(&claim.a), b: claim.b.as_ref().map(arm) };
        let is_best = |arm: &Arm<'_>| arm.side.take == Take::Max && arm.points.len() > 1;
        let are_both = sides.b.as_ref().is_some_and(|b| is_best(b) && is_best(&sides.a));
        sides.choose_on_all_blocks(are_both);
        sides
    }

    /// Whether a side is read at this cell.
    pub(super) fn has(&self, cell: &Cell) -> bool {
        self.arms().any(|arm| {
            let is_its = arm.variant == cell.variant
                || arm.side.minus.as_deref() == Some(cell.variant.as_str());
            is_its && arm.points.contains(&cell.point)
        })
    }

    /// Sets whether the points of both sides are chosen on all blocks.
    pub(super) fn choose_on_all_blocks(&mut self, on_all: bool) {
        self.a.is_beside_best = on_all;
        if let Some(b) = &mut self.b {
            b.is_beside_best = on_all;
        }
    }

    /// Returns the sides with the reply rate of the server alone, if the measured reply rate is not the
    /// server's own. It is not if server and generator share one CPU, because the generator's work for a
    /// reply is then part of that rate. The CPU time that the server spends on a reply at that rate is
    /// its own.
    pub(super) fn of_server_alone(&self) -> Option<Self> {
        let is_shared = |cpus: Cpus| cpus.server == cpus.generator;
        let is_rate = |arm: &Arm<'_>| arm.metric == THROUGHPUT && arm.side.minus.is_none();
        let wanted = self.outcome.environment.pinned.is_some_and(is_shared)
            && self.claim.compare == Compare::Ratio
            && self.arms().all(is_rate);
        let alone = |arm: &Arm<'a>| Arm { read: Some(OWN_RATE), ..arm.clone() };
        wanted.then(|| Self { a: alone(&self.a), b: self.b.as_ref().map(alone), ..*self })
    }

    /// Returns the comparisons that the claim consists of: one for each point of side a if the claim is
    /// about each of them.
    pub(super) fn each_point(self) -> Vec<Self> {
        if self.a.side.take != Take::Each || self.a.points.len() < 2 {
            return vec![self];
        }
        let Self { outcome, claim, a, b } = self;
        let whole = Rc::new(a);
        let at = |point: &Point| {
            let a = whole.at_points(vec![point.clone()]);
            Self { outcome, claim, a: Arm { whole: Some(Rc::clone(&whole)), ..a }, b: b.clone() }
        };
        whole.points.iter().map(at).collect()
    }

    pub(super) fn arms(&self) -> impl Iterator<Item = &Arm<'a>> {
        std::iter::once(&self.a).chain(&self.b)
    }

    /// Returns every variant of the claim, with its points.
    pub(super) fn named(&self) -> impl Iterator<Item = (&str, &[Point])> {
        self.arms().flat_map(|arm| {
            let names = std::iter::once(arm.variant).chain(arm.side.minus.as_deref());
            names.map(move |name| (name, arm.points.as_slice()))
        })
    }

    /// Returns the reason why this form of the experiment has nothing to compare; it may have fewer
    /// values of an axis than the claim needs.
    pub(super) fn nothing_to_compare(&self) -> Option<String> {
        let absent = self.arms().flat_map(|arm| &arm.side.at).find(|(name, select)| {
            let values = self.outcome.values(name);
            values.is_some_and(|values| selected(self.outcome, select, values).is_none())
        });
        if let Some((name, select)) = absent {
            return Some(format!("this form of the experiment has no {name} {}", select.0));
        }
        let b = self.b.as_ref()?;
        let of =
            |arm: &Arm<'_>| (arm.variant.to_owned(), arm.metric.to_owned(), arm.points.clone());
        let is_same = of(&self.a) == of(b)
            && self.a.side.minus == b.side.minus
            && self.a.side.take == b.side.take;
        is_same.then(|| "both sides are the same in this form of the experiment".to_owned())
    }

    fn pairs(&self) -> Vec<(Option<f64>, Option<f64>)> {
        let b = self.b.as_ref().map(Arm::values);
        let of_b = |block: usize| b.as_ref().and_then(|b| b[block]);
        let a = self.a.values().into_iter().enumerate();
        a.map(|(block, a)| (a, of_b(block))).collect()
    }

    /// Returns whether a block has both sides, even if the two cannot be compared.
    pub(super) fn any_pair(&self) -> bool {
        self.pairs().iter().any(|(a, b)| a.is_some() && (b.is_some() || self.b.is_none()))
    }

    /// Returns the comparison over the blocks, or `None` if no block has both sides. If a share is
    /// judged at each of several points, the requests of all these points are counted, because no
    /// failure in few requests proves little.
    pub(super) fn sample(&self) -> Option<Sample> {
        self.counted(self.a.whole.as_deref())
    }

    /// Returns the same with the requests of this point alone, if the claim has several points: failures
    /// at one of many points must not be hidden by the number of all requests.
    pub(super) fn sample_here(&self) -> Option<Sample> {
        self.a.whole.as_ref().and_then(|_| self.counted(None))
    }

    /// Returns the comparison with the counts of all points of `whole`, or of the points that are read if
    /// there is no `whole`.
    fn counted(&self, whole: Option<&Arm<'a>>) -> Option<Sample> {
        let sample = Sample::of(self.pairs(), self.claim.compare, self.claim.holds.is_positive())?;
        Some(match self.counts(whole) {
            Some((hits, trials)) => sample.counted(hits, trials),
            None => sample,
        })
    }

    /// Returns hits and trials of all blocks, if the claim is about one share of counted events.
    fn counts(&self, whole: Option<&Arm<'a>>) -> Option<(u64, u64)> {
        let (_, hits, trials) =
            COUNTED.iter().find(|(share, ..)| self.b.is_none() && share.name() == self.a.metric)?;
        if self.a.side.minus.is_some() {
            return None;
        }
        let sum = |metric: Metric| {
            let read = Some(metric.name());
            let values = match whole {
                None => Arm { read, ..self.a.clone() }.values(),
                Some(it) => {
                    it.points.iter().flat_map(|at| it.values_at(metric.name(), at)).collect()
                }
            };
            values.into_iter().flatten().reduce(|a, b| a + b)
        };
        Some((sum(*hits)? as u64, sum(*trials)? as u64))
    }

    /// Returns the blocks that lack a side.
    pub(super) fn lost(&self) -> LostBlocks {
        let blocks = self.outcome.blocks();
        let mut lost = LostBlocks::default();
        for (block, (a, b)) in (0..blocks).zip(self.pairs()) {
            let compare = self.claim.compare;
            let compared = |a| compare.is_endless(a, b) || compare.of(a, b).is_some();
            if a.is_some_and(compared) {
                lost.of += 1;
                continue;
            }
            let lacks_b = self.b.as_ref().filter(|_| b.is_none());
            let lacking = Some(&self.a).filter(|_| a.is_none()).into_iter().chain(lacks_b);
            let runs: Vec<&Run> = lacking.flat_map(|arm| arm.tried(block)).collect();
            // The last block may have ended before these runs. The reason for that end does not depend
            // on the figures.
            if block + 1 < blocks || a.is_some() && b.is_some() || !runs.is_empty() {
                lost.of += 1;
                lost.blocks += 1;
                let is_latency = self.claim.metric.starts_with("latency_");
                let why = |run: &&Run| {
                    let doubt = run.raw.latency_doubt().filter(|_| is_latency);
                    run.reason.clone().or(doubt.map(str::to_owned))
                };
                lost.reason = runs.iter().rev().find_map(why).or(lost.reason);
            }
        }
        lost
    }
}

/// Blocks that lack a side although the experiment reached that side: the server crashed, or the
/// generator could not do its work. They are not lost by chance alone: the remaining blocks may be the
/// better ones.
#[derive(Debug, Default)]
pub(super) struct LostBlocks {
    pub(super) blocks: usize,
    of: usize,
    pub(super) reason: Option<String>,
}

impl LostBlocks {
    /// Returns whether so many blocks are lost that the remaining ones decide nothing.
    pub(super) fn are_too_many(&self) -> bool {
        self.blocks as f64 > MOST_LOST * self.of as f64
    }

    /// Returns the loss in words, if there is one.
    pub(super) fn note(&self) -> Option<String> {
        let why = self.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        (self.blocks > 0).then(|| format!("{} of {} blocks lack a side{why}", self.blocks, self.of))
    }
}

impl<'a> Arm<'a> {
    /// Returns the same side at these of its points.
    fn at_points(&self, points: Vec<Point>) -> Self {
        let is_there = |run: &&Run| points.contains(&run.cell.point);
        let runs = self.runs.iter().copied().filter(is_there).collect();
        Self { points, runs, ..self.clone() }
    }

    /// Returns the figure at `point` in each block. A run that was not valid may have been repeated.
    fn values_at(&self, metric: &str, point: &Point) -> Vec<Option<f64>> {
        let of = |variant: &str| {
            let mut values = vec![None; self.outcome.blocks() as usize];
            for run in self.runs_of(variant).filter(|run| run.cell.point == *point) {
                let value = &mut values[run.block as usize];
                *value = value.or_else(|| run.metric(metric));
            }
            values
        };
        let own = of(self.variant);
        let Some(minus) = &self.side.minus else { return own };
        own.into_iter().zip(of(minus)).map(|(own, taken_off)| Some(own? - taken_off?)).collect()
    }

    /// Returns one figure per block.
    fn values(&self) -> Vec<Option<f64>> {
        let read = self.read.unwrap_or(self.metric);
        let of_half = self.chosen().map(|point| Some(self.values_at(read, point?)));
        let blocks = self.outcome.blocks();
        (0..blocks).map(|block| of_half[half(blocks, block)].as_ref()?[block as usize]).collect()
    }

    /// Returns the runs of `block` at the point where the side is read, valid or not.
    fn tried(&self, block: u32) -> impl Iterator<Item = &'a Run> {
        let read = self.chosen()[half(self.outcome.blocks(), block)];
        self.outcome.runs.iter().filter(move |run| {
            let name = run.cell.variant.as_str();
            let is_read = read.is_none_or(|point| run.cell.point == *point);
            let is_named = name == self.variant || Some(name) == self.side.minus.as_deref();
            run.block == block && is_named && is_read
        })
    }

    /// Returns the points at which the side is read: one, or one for each half of the blocks.
    pub(super) fn read_points(&self) -> impl Iterator<Item = &Point> {
        self.chosen().into_iter().flatten()
    }

    /// Returns the point at which each half of the blocks is read: the best by the blocks that do not
    /// belong to the half; if there is one block, by that block. If the other side is the best of several points, too,
    /// both halves are read at the best point by all blocks.
    fn chosen(&self) -> [Option<&Point>; 2] {
        if let [only] = self.points.as_slice() {
            return [Some(only); 2];
        }
        if self.is_beside_best {
            return [self.best(); 2];
        }
        let blocks = self.outcome.blocks();
        let is_other = |block, left_out| blocks == 1 || half(blocks, block) != left_out;
        [0, 1].map(|left_out| self.best_by(|block| is_other(block, left_out)))
    }

    /// Returns the point at which the mean over all blocks is best.
    pub(super) fn best(&self) -> Option<&Point> {
        self.best_by(|_| true)
    }

    fn best_by(&self, is_used: impl Fn(u32) -> bool) -> Option<&Point> {
        let mean = |point: &Point| self.mean_over(point, &is_used);
        let known = self.points.iter().filter_map(|point| Some((point, mean(point)?)));
        known.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(point, _)| point)
    }

    /// Returns the arm divided into parts whose points differ only in the rate.
    pub(super) fn lines(&self) -> Vec<Self> {
        let without_rate = |point: &Point| {
            let mut point = point.clone();
            point.remove(RATE);
            point
        };
        let lines = grouped(self.points.iter().map(|point| (without_rate(point), point.clone())));
        lines.into_iter().map(|(_, points)| self.at_points(points)).collect()
    }

    /// Returns the mean of the arm's metric at `point`, over the blocks.
    pub(super) fn mean_at(&self, point: &Point) -> Option<f64> {
        self.mean_over(point, |_| true)
    }

    /// Returns the same mean over some of the blocks.
    fn mean_over(&self, point: &Point, is_used: impl Fn(u32) -> bool) -> Option<f64> {
        let values = (0..).zip(self.values_at(self.metric, point));
        let values: Vec<f64> =
            values.filter_map(|(block, it)| it.filter(|_| is_used(block))).collect();
        statistics::mean(&values)
    }

    fn runs_of(&self, variant: &str) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().copied().filter(move |run| run.cell.variant == variant)
    }

    /// The runs at any of the points, whether they count or not.
    pub(super) fn all_runs(&self) -> impl Iterator<Item = &'a Run> {
        self.runs_of(self.variant)
    }

    /// Returns the valid runs at any of the points.
    pub(super) fn runs(&self) -> impl Iterator<Item = &'a Run> {
        self.all_runs().filter(|run| run.metric(self.metric).is_some())
    }

    /// Returns the valid runs of `variant` at the points where this side is read.
    pub(super) fn read_runs_of(&self, variant: &str) -> impl Iterator<Item = &'a Run> {
        let (read, blocks) = (self.chosen(), self.outcome.blocks());
        self.runs_of(variant)
            .filter(|run| run.metric(self.metric).is_some())
            .filter(move |run| read[half(blocks, run.block)] == Some(&run.cell.point))
    }
}

/// Returns the half to which a block belongs.
fn half(blocks: u32, block: u32) -> usize {
    if blocks < 4 { block as usize % 2 } else { block as usize / 2 % 2 }
}

/// Returns the values of a dimension, without the rates that are not part of the side.
fn values_of_side(outcome: &Outcome, side: &Side, dimension: &Dimension) -> Vec<Value> {
    let papers = outcome.experiment.rate.as_ref().map_or(&[][..], |rate| &rate.paper_rps);
    let is_papers = |value: &&Value| value.number().is_some_and(|rate| papers.contains(&rate));
    let of_paper: Vec<Value> = dimension.values.iter().filter(is_papers).cloned().collect();
    let is_narrowed = side.paper_rates && dimension.name == RATE && !of_paper.is_empty();
    if is_narrowed { of_paper } else { dimension.values.clone() }
}

/// Returns the rate of this run that is `multiple` times the reference rate.
pub(crate) fn rate_of<'v>(
    outcome: &Outcome,
    multiple: f64,
    rates: &'v [Value],
) -> Option<&'v Value> {
    let reference = outcome.saturation.first()?.rps?;
    let wanted = (multiple * reference).round().max(1.0);
    rates.iter().find(|rate| rate.number() == Some(wanted))
}

/// Returns the value that `select` chooses among `values`, which may be rates.
fn selected<'v>(outcome: &Outcome, select: &Select, values: &'v [Value]) -> Option<&'v Value> {
    let multiple = select.multiple().and_then(|of| rate_of(outcome, of, values));
    multiple.or_else(|| select.among(values))
}

/// Whether this run has the rate that `select` chooses.
pub(crate) fn has_rate(outcome: &Outcome, select: &Select) -> bool {
    selected(outcome, select, outcome.values(RATE).unwrap_or_default()).is_some()
}

/// Returns the points of a side: one, or all along `over`.
pub(crate) fn points(outcome: &Outcome, side: &Side) -> Vec<Point> {
    let narrowed = outcome.dimensions.iter().map(|dimension| {
        let among = values_of_side(outcome, side, dimension);
        let one = match side.at.get(&dimension.name) {
            _ if side.over.contains(&dimension.name) => {
                return Dimension { values: among, ..dimension.clone() };
            }
            Some(select) => selected(outcome, select, &among),
            // Validation ensures that an axis which is not named has one value. The rate may have
            // several if they come from the paper; the last value is the highest.
            None => among.last(),
        };
        Dimension { values: one.into_iter().cloned().collect(), ..dimension.clone() }
    });
    plan::points(&narrowed.collect::<Vec<_>>())
}
