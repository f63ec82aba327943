//! Rates that are offered to only one server, around its limit, in addition to the rates that all
//! servers are offered.

use super::{
    ladder::{BESTS, at_rates},
    *,
};
use crate::result::Ladder;

/// The rates that are offered to all servers.
const COMMON: [f64; 3] = [500.0, 1100.0, 1450.0];

/// Returns five rates around a limit, in steps of a hundredth.
fn steps(limit: f64) -> Vec<f64> {
    (-1..4).map(|k| (limit * (1.0 + 0.01 * f64::from(k))).round()).collect()
}

/// Returns an outcome in which each line (a variant and idle connections) is measured at the common rates and
/// at rates of its own. `answered` returns the replies for a run, a rate and a noise of about a thousandth.
fn with_ladders(
    claim: &str,
    lines: &[(&str, f64, Vec<f64>)],
    answered: impl Fn(&Run, f64, f64) -> f64,
) -> Outcome {
    let mut outcome = outcome(claim, |_, _, rate, _| Some(rate));
    let own = lines.iter().flat_map(|(.., rates)| rates);
    let mut all: Vec<f64> = COMMON.iter().chain(own).copied().collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    at_rates(&mut outcome, &all, |run, rate| {
        let noise = 1.0 + alternating(0.001, run.block) + alternating(0.0005, run.block / 2);
        run.metrics.insert("throughput_rps".into(), answered(run, rate, noise));
    });
    outcome.ladders.extend(lines.iter().map(|(variant, idle, rates_rps)| {
        let point = Point::from([("idle".to_owned(), Value::Number(*idle))]);
        let line = Cell { variant: (*variant).into(), point };
        Ladder { line, limit_rps: None, rates_rps: rates_rps.clone(), probes: Vec::new() }
    }));
    let is_measured = |run: &&Run| outcome.measures(&run.cell.variant, &run.cell.point);
    let runs: Vec<Run> = outcome.runs.iter().filter(is_measured).cloned().collect();
    assert!(runs.len() < outcome.runs.len(), "each lacks the others' rates");
    Outcome { runs, ..outcome }
}

/// Returns the outcome of two servers with these limits, each with steps around its own limit.
fn measured(claim: &str, limits: [f64; 2]) -> Outcome {
    let [one, two] = limits.map(steps);
    let lines = [("one", &one), ("two", &two)].into_iter();
    let lines = lines.flat_map(|(name, own)| [0.0, 100.0].map(|idle| (name, idle, own.clone())));
    with_ladders(claim, &lines.collect::<Vec<_>>(), |run, rate, noise| {
        rate.min(limits[usize::from(run.cell.variant == "two")] * noise)
    })
}

/// Limits between two of the common rates are separated by steps that only one of the two variants has.
#[test]
fn limits_are_separated_by_each_variants_own_steps() {
    let (above, below) = ("{ above = 1.0 }", "{ below = 1.0 }");
    for (limits, if_above) in
        [([1250.0, 1200.0], Verdict::Holds), ([1200.0, 1250.0], Verdict::DoesNotHold)]
    {
        let claim = concluded(measured(&ratio_claim(above, BESTS), limits));
        assert_eq!(claim.verdict, if_above, "{claim:?}");
        let ratio = claim.value.unwrap();
        assert!((ratio / (limits[0] / limits[1]) - 1.0).abs() < 0.003, "{ratio}");
        let opposite = concluded(measured(&ratio_claim(below, BESTS), limits));
        assert_ne!(opposite.verdict, if_above);
    }
    // Two limits that are equal within a step: neither is above or below the other, and they are as good
    // as equal.
    for (holds, verdict) in [
        (above, Verdict::Undecided),
        (below, Verdict::Undecided),
        ("{ within = [0.95, 1.05] }", Verdict::Holds),
    ] {
        let claim = concluded(measured(&ratio_claim(holds, BESTS), [1225.0, 1222.0]));
        assert_eq!(claim.verdict, verdict, "{holds}: {claim:?}");
    }
}

/// The rates of another variant's steps do not count as missing: no measurement was planned there. Without
/// its ladders, such a run has missing runs, so that no limit can be found.
#[test]
fn an_unmeasured_rate_is_missing_only_where_it_was_planned() {
    let mut outcome = measured(&ratio_claim("{ above = 1.0 }", BESTS), [1250.0, 1200.0]);
    let claim = concluded(outcome.clone());
    let note = claim.parts[0].note.clone().unwrap_or_default();
    assert!(!note.contains("lack") && !note.contains("too few runs"), "{note}");
    outcome.ladders.clear();
    let claim = concluded(outcome);
    assert_ne!(claim.verdict, Verdict::DoesNotHold, "{claim:?}");
}

/// A claim about the rates of the paper does not include the rate above them that is surely too high.
#[test]
fn a_claim_of_the_papers_rates_leaves_out_those_beyond() {
    let judged = |side: &str| {
        let claim = format!(
            "compare = \"value\"\neach = [\"one\"]\nholds = {{ below = 0.1 }}\n\
             a = {{ at = {{ idle = \"max\", rate = \"max\" }}{side} }}"
        );
        let mut outcome = outcome_of(6, &claim, "error_share", |_, _, rate, block| {
            Some(if rate > 15.0 { 0.5 } else { 0.01 } + alternating(0.001, block))
        });
        outcome.experiment.rate.as_mut().unwrap().paper_rps = vec![10.0];
        concluded(outcome).verdict
    };
    assert_eq!(judged(""), Verdict::DoesNotHold, "the highest rate of all");
    assert_eq!(judged(", paper-rates = true"), Verdict::Holds, "the paper's highest");
}

/// If a claim takes the best over several lines, each line has its own limit: a rate that one line could
/// not answer may not be too high for another.
#[test]
fn the_limit_of_one_line_is_not_that_of_another() {
    let claim = "compare = \"ratio\"\neach = [\"one\"]\nholds = { below = 1.03 }\n\
        a = { over = [\"idle\", \"rate\"], take = \"max\" }\n\
        b = { variant = \"two\", over = [\"idle\", \"rate\"], take = \"max\" }";
    let judged = |better: &[f64]| {
        // Without idle connections `one` answers 1,100 requests per second, and with them 1,060.
        let worse = vec![1049.0, 1063.0, 1076.0, 1089.0];
        let lines = [
            ("one", 0.0, better.to_vec()),
            ("one", 100.0, worse),
            ("two", 0.0, steps(1085.0)),
            ("two", 100.0, steps(1085.0)),
        ];
        concluded(with_ladders(claim, &lines, |run, rate, noise| {
            let limit = match (&*run.cell.variant, run.cell.point["idle"].number()) {
                ("one", Some(0.0)) => 1100.0,
                ("one", _) => 1060.0,
                _ => 1085.0,
            };
            rate.min(limit) * noise
        }))
    };
    // The steps of `one` end below its limit, which may be anywhere up to the highest rate.
    let claim = judged(&[1051.0, 1061.0]);
    assert_eq!(claim.verdict, Verdict::Undecided, "{claim:?}");
    // If the steps go beyond the limit, it is known.
    let claim = judged(&[1061.0, 1090.0, 1101.0, 1112.0, 1123.0]);
    assert_eq!(claim.verdict, Verdict::Holds, "{claim:?}");
}

/// A slow server is offered less where clients wait for a reply before they send the next request. Its
/// possible rate is compared with the measured rate, not with a share of the nominal rate.
#[test]
fn a_slow_server_of_sessions_has_not_answered_what_it_was_not_offered() {
    let claim = ratio_claim("{ below = 0.95 }", BESTS);
    let judged = |has_sessions: bool| {
        let mut outcome = outcome(&claim, |_, _, rate, _| Some(rate));
        if has_sessions {
            outcome.experiment.load.insert("session-requests".into(), Value::Number(5.0));
        }
        at_rates(&mut outcome, &[80.0, 100.0], |run, rate| {
            let (answered, offered) = match (&*run.cell.variant, rate) {
                ("one", 80.0) => (70.0, 73.0),
                ("one", _) => (69.0, 85.0),
                (_, 80.0) => (80.0, 80.0),
                _ => (78.0, 95.0),
            };
            let noise = 1.0 + alternating(0.002, run.block) + alternating(0.001, run.block / 2);
            run.metrics.insert("throughput_rps".into(), answered * noise);
            run.metrics.insert("offered_rps".into(), offered);
        });
        concluded(outcome)
    };
    // The measured ratio is 70 to 80; the true ratio may be 80 to 80.
    assert_eq!(judged(true).verdict, Verdict::Undecided);
    assert_eq!(judged(false).verdict, Verdict::Undecided);
}
