//! What each mechanism keeps of its rate on this machine, for a given number of idle and of open connections.
//!
//! A short experiment measures each mechanism with and without the idle connections, with one open request
//! and with the requested number of them. The batching law ([`crate::law`]) is then fitted to the results.

use crate::{
    experiment::{Experiment, IDLE, Value},
    format,
    law::{Law, Open, Point},
    plan,
    result::Outcome,
    statistics::{Compare, Estimate, paired},
};
use anyhow::ensure;
use std::fmt::Write as _;

/// The most idle connections, which one table of descriptors holds.
pub const MAX_IDLE: u32 = 15_000;
/// The most requests open at once.
pub const MAX_OPEN: u32 = 4_000;
/// The axis with the number of requests that are open.
const OPEN: &str = "open";
/// Pairs of blocks without and with the idle connections.
const BLOCKS: u32 = 6;

/// The user's question.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// Idle connections.
    pub idle: u32,
    /// Requests that may be open at once.
    pub open: u32,
    /// Requests a second that the server is to answer.
    pub rate_rps: f64,
    /// How long it may take, in seconds.
    pub seconds: f64,
}

/// What one mechanism does.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The mechanism.
    pub variant: String,
    /// The best rate with the idle connections, in requests a second.
    pub best_rps: f64,
    /// What that is of the best rate without them.
    pub kept: Estimate,
    /// CPU time per request at the requested rate, in microseconds, by the law; none where the law could
    /// not be fitted.
    pub cpu_us: Option<f64>,
    /// Why there is nothing, where there is nothing.
    pub missing: Option<String>,
}

impl Question {
    /// The experiment that answers it.
    ///
    /// # Errors
    /// When a number is out of bounds; the message names the flag.
    pub fn experiment(&self) -> anyhow::Result<Experiment> {
        let Self { idle, open, rate_rps, seconds } = *self;
        ensure!((1..=MAX_IDLE).contains(&idle), "--idle {idle}: 1 to {MAX_IDLE}");
        ensure!((2..=MAX_OPEN).contains(&open), "--open {open}: 2 to {MAX_OPEN}");
        ensure!(rate_rps > 0.0 && rate_rps < 1e8, "--rate {rate_rps}: above 0");
        Experiment::parse(&format!(
            r#"
id = "advise"
title = "What idle connections cost here"
source = "this machine"
summary = "Each mechanism with and without idle connections."
workload = "one-byte"
server = {{ interest = "eager", accept-limit = "inf", header-timeout = "1h" }}
load = {{ source = "127.0.1.0/24" }}
idle = {{ source = "127.0.2.0/24" }}
variant = [
  {{ name = "select", mechanism = "select" }}, {{ name = "poll", mechanism = "poll" }},
  {{ name = "epoll", mechanism = "epoll" }}, {{ name = "epoll-et", mechanism = "epoll-et" }},
  {{ name = "uring-poll", mechanism = "uring-poll" }},
]
axis = [
  {{ name = "idle", label = "idle connections", values = [0, {idle}] }},
  {{ name = "open", label = "requests open at once", values = [1, {open}], load-flag = "connections" }},
]
left-out = [{{ at = {{ idle = [0], open = [1] }}, because = "it adds no information" }}]
full = {{ seconds = {seconds}, blocks = {BLOCKS}, min-window-seconds = 0.15, max-window-seconds = 1, warmup-seconds = 0,
  saturation-seconds = 0.2, saturation-of = "all" }}
quick = {{ seconds = {seconds}, blocks = {BLOCKS}, min-window-seconds = 0.15, max-window-seconds = 1, warmup-seconds = 0,
  saturation-seconds = 0.2, saturation-of = "all" }}
"#
        ))
    }

    /// The answers, best first.
    pub fn advice(&self, outcome: &Outcome) -> Vec<Advice> {
        let mut all: Vec<Advice> = outcome
            .variants
            .iter()
            .map(|variant| self.of_variant(outcome, &variant.name))
            .collect();
        all.sort_by(|a, b| b.best_rps.total_cmp(&a.best_rps));
        all
    }

    fn of_variant(&self, outcome: &Outcome, variant: &str) -> Advice {
        let number = |value: u32| Value::Number(f64::from(value));
        let at = |idle: u32, open: u32| {
            plan::Point::from([(IDLE.to_owned(), number(idle)), (OPEN.to_owned(), number(open))])
        };
        let (with, without) = (at(self.idle, self.open), at(0, self.open));
        let read = |point: &plan::Point, block: u32, metric: &str| {
            let is_it = |run: &&crate::result::Run| {
                run.block == block && run.cell.variant == variant && run.cell.point == *point
            };
            outcome.runs.iter().filter(is_it).find_map(|run| run.metric(metric))
        };
        let rate = |point: &plan::Point, block| read(point, block, "throughput_rps");
        let pairs = (0..outcome.blocks()).map(|block| (rate(&with, block), rate(&without, block)));
        let best = outcome.cell(variant, &with).and_then(|cell| cell.metrics.get("throughput_rps"));
        let missing = || {
            let runs = outcome.runs.iter().filter(|run| run.cell.variant == variant);
            let unavailable = outcome.variants.iter().find(|it| it.name == variant);
            let reason = unavailable.and_then(|it| it.unavailable.clone());
            reason.or_else(|| runs.filter_map(|run| run.reason.clone()).next_back())
        };
        let none = Estimate {
            value: 0.0,
            low: None,
            high: None,
            range: None,
            blocks: 0,
            rank_value: None,
            rank: None,
        };
        match (paired(pairs, Compare::Ratio), best) {
            (Some(kept), Some(best)) => Advice {
                variant: variant.to_owned(),
                best_rps: best.value,
                kept,
                cpu_us: self.cpu_us(outcome, variant, [&at(self.idle, 1), &with]),
                missing: None,
            },
            _ => Advice {
                variant: variant.to_owned(),
                best_rps: 0.0,
                kept: none,
                cpu_us: None,
                missing: missing().or_else(|| Some("no run counts".to_owned())),
            },
        }
    }

    /// CPU time per request at the requested rate: a single open request pays for its own waits, many share
    /// them.
    fn cpu_us(&self, outcome: &Outcome, variant: &str, points: [&plan::Point; 2]) -> Option<f64> {
        let point = |point: &plan::Point| {
            let cell = outcome.cell(variant, point)?;
            let value = |metric: &str| cell.metrics.get(metric).map(|it| it.value);
            let (waits, cpu_us) =
                (value("waits_per_request")?, value("server_cpu_us_per_request")?);
            Some(Point { idle: f64::from(self.idle), waits, cpu_us })
        };
        let points = [point(points[0])?, point(points[1])?];
        let law = Law::fit(&points)?;
        let open = Open::AtMost(f64::from(self.open));
        let at = law.at(f64::from(self.idle), points[0].waits, open, self.rate_rps);
        Some(at.cpu_us)
    }

    /// The answers as a table, and what to make of them.
    pub fn text(&self, advice: &[Advice]) -> String {
        let rate = format::number(self.rate_rps);
        let mut text = format!(
            "{} idle connections, at most {} requests open, {rate} requests a second, one worker:\n\n\
             {:<12} {:>14} {:>26} {:>16}\n",
            self.idle, self.open, "mechanism", "best rate", "keeps of its rate", "busy at yours"
        );
        for it in advice {
            if let Some(reason) = &it.missing {
                let _ = writeln!(text, "{:<12} not measured: {reason}", it.variant);
                continue;
            }
            let kept = format!(
                "{} {}",
                format::number(it.kept.value),
                format::ends(it.kept.low, it.kept.high)
            );
            let busy = it.cpu_us.map(|us| 100.0 * us * self.rate_rps / 1e6);
            let busy = busy.map_or_else(
                || "–".to_owned(),
                |share| if share > 100.0 { "too much".into() } else { format!("{share:.0} %") },
            );
            let best = format!("{} /s", format::number(it.best_rps));
            let _ = writeln!(text, "{:<12} {best:>14} {kept:>26} {busy:>16}", it.variant);
        }
        let enough = advice.iter().filter(|it| it.best_rps > self.rate_rps);
        let names: Vec<&str> = enough.map(|it| it.variant.as_str()).collect();
        let _ = match names.as_slice() {
            [] => write!(text, "\nNo mechanism here answers {rate} a second.\n"),
            names => write!(text, "\nThese answer {rate} a second: {}.\n", names.join(", ")),
        };
        text.push_str(
            "\"Keeps\" is the best rate with the idle connections to that without, with a 95 % interval over six \
             blocks.\n\"Busy\" is what the batching law foretells: CPU a request = c + S(idle) x waits a request.\n",
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_has_an_experiment() {
        let question = Question { idle: 1_000, open: 64, rate_rps: 5_000.0, seconds: 50.0 };
        let experiment = question.experiment().unwrap();
        assert_eq!(experiment.axis[0].values[1], Value::Number(1_000.0));
        for (wrong, expected) in [
            (Question { idle: 0, ..question }, "--idle 0: 1 to"),
            (Question { open: 1, ..question }, "--open 1: 2 to"),
            (Question { rate_rps: 0.0, ..question }, "--rate 0: above 0"),
        ] {
            let message = format!("{:#}", wrong.experiment().unwrap_err());
            assert!(message.contains(expected), "{message}");
        }
    }
}
