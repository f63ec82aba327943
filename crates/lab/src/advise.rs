//! The share of its rate that each mechanism keeps on this machine, for a given number of idle and open
//! connections.
//!
//! A short experiment measures each mechanism with and without the idle connections, with one open request
//! and with the requested number of them. The batching law ([`crate::law`]) is then fitted to the results.

use crate::{
    experiment::{Experiment, IDLE, Value},
    format,
    law::{Law, Open, Point},
    metric::Metric,
    plan,
    result::{Outcome, Run, VariantOutcome},
    statistics::{Compare, Estimate, MIN_BLOCKS, estimate, paired},
};
use anyhow::ensure;
use std::fmt::Write as _;

/// The most idle connections, which fit into one descriptor table.
pub const MAX_IDLE: u32 = 15_000;
/// The most requests open at once.
pub const MAX_OPEN: u32 = 4_000;
/// The axis of the number of open requests.
const OPEN: &str = "open";
const THROUGHPUT: &str = Metric::Throughput.name();
/// The number of pairs of blocks without and with the idle connections.
const BLOCKS: u32 = 6;

/// The user's question.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The number of idle connections.
    pub idle: u32,
    /// The number of requests that may be open at once.
    pub open: u32,
    /// The requests per second that the server has to answer.
    pub rate_rps: f64,
    /// The time of the measurement, in seconds.
    pub seconds: f64,
}

/// The result for one mechanism.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The mechanism.
    pub variant: String,
    /// The measured figures, or why there are none.
    pub measured: Result<MeasuredFigures, String>,
}

/// The measured figures of a mechanism.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredFigures {
    /// The best rate with the idle connections, in requests per second.
    pub best_rps: f64,
    /// The ratio of that rate to the best rate without idle connections.
    pub rate_ratio: Estimate,
    /// The CPU time per request at the requested rate, in microseconds, according to the law; none if the
    /// law could not be fitted. The law is fitted to each block.
    pub cpu_us: Option<Estimate>,
}

impl Question {
    /// Returns the experiment that answers the question.
    ///
    /// # Errors
    /// When a number is out of bounds; the message names the flag.
    pub fn experiment(&self) -> anyhow::Result<Experiment> {
        let Self { idle, open, rate_rps, seconds } = *self;
        ensure!((1..=MAX_IDLE).contains(&idle), "--idle {idle}: 1 to {MAX_IDLE}");
        ensure!((2..=MAX_OPEN).contains(&open), "--open {open}: 2 to {MAX_OPEN}");
        ensure!(rate_rps > 0.0 && rate_rps < 1e8, "--rate {rate_rps}: above 0");
        ensure!((1.0..=86_400.0).contains(&seconds), "--time {seconds}s: 1s to 24h");
        Experiment::parse(&format!(
            r#"
id = "advise"
title = "What idle connections cost here"
source = "this machine"
summary = "Each mechanism with and without idle connections."
workload = "one-byte"
receive-on = "server"
server = {{ interest = "eager", accept-limit = "inf", header-timeout = "1h" }}
load.requests-per-connection = 1
axis = [
  {{ name = "idle", label = "idle connections", values = [0, {idle}] }},
  {{ name = "open", label = "requests open at once", values = [1, {open}], load-flag = "connections" }},
]
left-out = [{{ at = {{ idle = [0], open = [1] }}, because = "it adds no information" }}]
variants = ["select", "poll", "epoll2", "devpoll", "epoll", "epoll-et", "uring-poll"]
[[variant]]
name = "select"
at-most = {{ idle = 900 }}
because = "select refuses descriptors of FD_SETSIZE (1,024) and above"
[budget]
seconds = {seconds}
blocks = {BLOCKS}
min-window-seconds = 0.15
max-window-seconds = 1
saturation-seconds = 0.2
"#
        ))
    }

    /// Returns the results, best mechanism first.
    pub fn advice(&self, outcome: &Outcome) -> Vec<Advice> {
        let advice = |variant: &VariantOutcome| Advice {
            variant: variant.name.clone(),
            measured: self
                .measured(outcome, &variant.name)
                .ok_or_else(|| why_not(outcome, variant)),
        };
        let mut all: Vec<Advice> = outcome.variants.iter().map(advice).collect();
        all.sort_by(|a, b| b.best_rps().total_cmp(&a.best_rps()));
        all
    }

    fn measured(&self, outcome: &Outcome, variant: &str) -> Option<MeasuredFigures> {
        let number = |value: u32| Value::Number(f64::from(value));
        let at = |idle: u32, open: u32| {
            plan::Point::from([(IDLE.to_owned(), number(idle)), (OPEN.to_owned(), number(open))])
        };
        let (with, without) = (at(self.idle, self.open), at(0, self.open));
        let rate = |point: &plan::Point, block| {
            let mut runs = outcome.runs_at(variant, point).filter(|run| run.block == block);
            runs.find_map(|run| run.metric(THROUGHPUT))
        };
        let pairs = (0..outcome.blocks()).map(|block| (rate(&with, block), rate(&without, block)));
        let cpu_us = |block| self.cpu_us(outcome, variant, [&at(self.idle, 1), &with], block);
        let cpu_us: Vec<f64> = (0..outcome.blocks()).filter_map(cpu_us).collect();
        Some(MeasuredFigures {
            best_rps: outcome.cell(variant, &with)?.metrics.get(THROUGHPUT)?.value,
            rate_ratio: paired(pairs, Compare::Ratio)?,
            cpu_us: estimate(&cpu_us),
        })
    }

    /// Returns the CPU time per request at the requested rate, by the figures of one block. A single open
    /// request pays for its own waits; many open requests share them.
    fn cpu_us(
        &self,
        outcome: &Outcome,
        variant: &str,
        points: [&plan::Point; 2],
        block: u32,
    ) -> Option<f64> {
        let point = |point: &plan::Point| {
            let run = outcome.runs_at(variant, point).find(|run| run.block == block)?;
            let value = |metric: Metric| run.metric(metric.name());
            let (waits, cpu_us) = (value(Metric::Waits)?, value(Metric::ServerCpu)?);
            Some(Point { idle: f64::from(self.idle), waits, cpu_us })
        };
        let points = [point(points[0])?, point(points[1])?];
        let law = Law::fit(&points)?;
        let open = Open::AtMost(f64::from(self.open));
        let at = law.at(f64::from(self.idle), points[0].waits, open, self.rate_rps);
        Some(at.cpu_us)
    }

    /// Formats the results as a table, with a summary.
    pub fn text(&self, advice: &[Advice]) -> String {
        let rate = format::number(self.rate_rps);
        let mut text = format!(
            "{} idle connections, at most {} requests open, {rate} requests a second, one worker:\n\n\
             {:<12} {:>14} {:>26} {:>18}\n",
            self.idle, self.open, "mechanism", "best rate", "keeps of its rate", "busy at yours"
        );
        for Advice { variant, measured } in advice {
            let it = match measured {
                Ok(it) => it,
                Err(reason) => {
                    let _ = writeln!(text, "{variant:<12} not measured: {reason}");
                    continue;
                }
            };
            let ends = format::ends(it.rate_ratio.low, it.rate_ratio.high);
            let rate_ratio = format!("{} {ends}", format::number(it.rate_ratio.value));
            let busy = self.busy(it.cpu_us);
            let best = format!("{} /s", format::number(it.best_rps));
            let _ = writeln!(text, "{variant:<12} {best:>14} {rate_ratio:>26} {busy:>18}");
        }
        if advice.iter().all(|it| it.measured.is_err()) {
            text.push_str(
                "\nNothing could be measured. Try again when the machine is quiet, or with more --time.\n",
            );
            return text;
        }
        let enough = advice.iter().filter(|it| it.best_rps() > self.rate_rps);
        let names: Vec<&str> = enough.map(|it| it.variant.as_str()).collect();
        let _ = match names.as_slice() {
            [] => write!(text, "\nNone of the measured mechanisms answers {rate} a second.\n"),
            names => write!(text, "\nThese answer {rate} a second: {}.\n", names.join(", ")),
        };
        let measured = || advice.iter().filter_map(|it| it.measured.as_ref().ok());
        if measured().any(|it| it.rate_ratio.low.is_none()) {
            let _ = writeln!(
                text,
                "A figure without an interval has fewer than {MIN_BLOCKS} blocks: more --time gives it one."
            );
        }
        text.push_str(
            "Brackets have 95 % intervals over the blocks. \"Keeps\" is the best rate with the idle connections to that \
             without.\n\"Busy\" is what the batching law predicts: CPU a request = c + S(idle) x waits a request; a \
             mechanism\nthat scans is at 100 % long before its best rate, since it scans for as long as it has CPU.\n",
        );
        text
    }

    /// Formats the share of the CPU that the requested rate takes.
    fn busy(&self, cpu_us: Option<Estimate>) -> String {
        let share = |us: f64| us * self.rate_rps / 1e4;
        match cpu_us {
            None => "–".to_owned(),
            Some(it) if share(it.value) > 100.0 => "too much".to_owned(),
            Some(it) => match it.low.zip(it.high) {
                Some((low, high)) => {
                    format!("{:.0} % [{:.0}, {:.0}]", share(it.value), share(low), share(high))
                }
                None => format!("{:.0} %", share(it.value)),
            },
        }
    }
}

impl Advice {
    /// Returns the best rate; zero if it is not known.
    fn best_rps(&self) -> f64 {
        self.measured.as_ref().map_or(0.0, |it| it.best_rps)
    }
}

/// Returns why there is no figure: this kernel does not have the mechanism, or no run counts.
fn why_not(outcome: &Outcome, variant: &VariantOutcome) -> String {
    let is_at = |run: &Run, axis: &str, value| {
        run.cell.point.get(axis).and_then(Value::number) == Some(value)
    };
    // The cell that the experiment leaves out is no reason.
    let is_left_out = |run: &Run| is_at(run, IDLE, 0.0) && is_at(run, OPEN, 1.0);
    let is_of_variant = |run: &&Run| run.cell.variant == variant.name && !is_left_out(run);
    let runs = outcome.runs.iter().rev().filter(is_of_variant);
    let reason = variant.unavailable.clone();
    let early = if outcome.interrupted { "interrupted" } else { "the time was over" };
    reason
        .or_else(|| runs.filter_map(|run| run.reason.clone()).next())
        .unwrap_or_else(|| format!("{early} before it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{claims::made, result::Status};

    const QUESTION: Question = Question { idle: 1_000, open: 64, rate_rps: 5_000.0, seconds: 50.0 };

    #[test]
    fn every_question_has_an_experiment() {
        let experiment = QUESTION.experiment().unwrap();
        assert_eq!(experiment.axis[0].values[1], Value::Number(1_000.0));
        for (wrong, expected) in [
            (Question { idle: 0, ..QUESTION }, "--idle 0: 1 to"),
            (Question { open: 1, ..QUESTION }, "--open 1: 2 to"),
            (Question { rate_rps: 0.0, ..QUESTION }, "--rate 0: above 0"),
            (Question { seconds: 0.0, ..QUESTION }, "--time 0s: 1s to 24h"),
        ] {
            let message = format!("{:#}", wrong.experiment().unwrap_err());
            assert!(message.contains(expected), "{message}");
        }
    }

    /// Returns runs of `variant` that follow a law with these constants, at every cell of the experiment.
    fn runs(variant: &str, law: &Law, blocks: u32) -> Vec<Run> {
        let experiment = QUESTION.experiment().unwrap();
        let points = plan::points(&experiment.dimensions());
        let number = |point: &plan::Point, axis| point[axis].number().unwrap();
        let one = |point: &plan::Point, block: u32| {
            let (idle, open) = (number(point, IDLE), number(point, OPEN));
            let (waits, noise) = (2.0 / open, 1.0 + 0.01 * f64::from(block % 3));
            let cpu_us = law.cpu_us(idle, waits) * noise;
            let metrics = [
                (Metric::Throughput, 1e6 / cpu_us),
                (Metric::Waits, waits),
                (Metric::ServerCpu, cpu_us),
            ];
            let metrics = metrics.map(|(metric, value)| (metric.name().to_owned(), value));
            let cell = plan::Cell { variant: variant.to_owned(), point: point.clone() };
            made::run(cell, block, metrics.into())
        };
        (0..blocks)
            .flat_map(|block| points.iter().map(move |point| (block, point)))
            .map(|(block, point)| one(point, block))
            .collect()
    }

    fn outcome(runs: Vec<Run>) -> Outcome {
        let experiment = QUESTION.experiment().unwrap();
        let names = ["poll", "epoll", "epoll2", "devpoll"].map(str::to_owned);
        let dimensions = experiment.dimensions();
        let mut outcome = made::outcome(experiment, false, dimensions, &names, runs);
        outcome.conclude();
        outcome
    }

    #[test]
    fn what_follows_the_law_is_read_from_the_runs() {
        let [poll, epoll] =
            [3_200.0, 1.0].map(|most| Law::made(40.0, &[(0.0, 1.0), (1_000.0, most)]));
        let mut runs = runs("poll", &poll, 6);
        runs.extend(self::runs("epoll", &epoll, 6));
        runs.extend(self::runs("epoll2", &epoll, 6));
        let mut outcome = outcome(runs);
        outcome.variants[3].unavailable = Some("this kernel has no /dev/poll".into());
        let advice = QUESTION.advice(&outcome);
        assert_eq!(advice[0].variant, "epoll", "the best first");
        let measured = |name: &str| {
            advice.iter().find(|it| it.variant == name).unwrap().measured.as_ref().unwrap()
        };
        // 40 µs plus a 32nd of 3,200 µs, compared with 40 µs plus a 32nd of 1 µs.
        assert!((measured("poll").rate_ratio.value - 40.03 / 140.0).abs() < 1e-3, "{advice:?}");
        assert!(measured("poll").rate_ratio.low.is_some());
        let epoll2 = measured("epoll2");
        assert!(epoll2.rate_ratio.low.is_some(), "it has an interval");
        let cpu_us = epoll2.cpu_us.unwrap();
        assert!((cpu_us.value - 42.0).abs() < 2.0, "{advice:?}");
        assert!(cpu_us.low.is_some_and(|low| low < cpu_us.value), "{advice:?}");
        let text = QUESTION.text(&advice);
        assert!(text.contains("These answer 5,000 a second: epoll, epoll2, poll."), "{text}");
        assert!(text.contains("devpoll      not measured: this kernel has no /dev/poll"), "{text}");
        assert!(text.contains("21 % [21, 21]"), "{text}");
        assert!(!text.contains("without an interval"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_no_answer() {
        let law = Law::made(40.0, &[(0.0, 1.0), (1_000.0, 1.0)]);
        let mut lost = runs("poll", &law, 1);
        for run in &mut lost {
            (run.status, run.reason) = (Status::Invalid, Some("no CPU".to_owned()));
        }
        let text = QUESTION.text(&QUESTION.advice(&outcome(lost.clone())));
        assert!(text.contains("poll         not measured: no CPU"), "{text}");
        assert!(text.contains("epoll        not measured: the time was over before it"), "{text}");
        assert!(text.contains("Nothing could be measured.") && !text.contains("answers"), "{text}");
        let mut left_out = runs("epoll", &law, 1).remove(0);
        left_out.cell.point = plan::Point::from([
            (IDLE.to_owned(), Value::Number(0.0)),
            (OPEN.to_owned(), Value::Number(1.0)),
        ]);
        left_out.status = Status::Failed;
        left_out.reason = Some("it adds no information".to_owned());
        let with_left_out = lost.iter().cloned().chain([left_out]).collect();
        let text = QUESTION.text(&QUESTION.advice(&outcome(with_left_out)));
        assert!(text.contains("epoll        not measured: the time was over before it"), "{text}");
        let mut stopped = outcome(lost.clone());
        stopped.interrupted = true;
        let text = QUESTION.text(&QUESTION.advice(&stopped));
        assert!(text.contains("epoll        not measured: interrupted before it"), "{text}");
        lost.extend(runs("epoll", &law, 1));
        let text = QUESTION.text(&QUESTION.advice(&outcome(lost)));
        assert!(text.contains("These answer 5,000 a second: epoll."), "{text}");
        assert!(text.contains("fewer than 6 blocks"), "{text}");
    }
}
