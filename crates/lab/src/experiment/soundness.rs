//! Faults of a design that decide a verdict before the measurement.
//!
//! A published experiment once broke each of these rules. `thresholds.toml` has the thresholds with their
//! dates; docs/decisions/0120-thresholds.md explains how they were derived.

use super::{Axis, Claim, Experiment, PHASE, RATE, Select, Side, Subject, Take, Threshold};
use crate::{
    metric::{Family, Metric},
    statistics::Compare,
};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Flags of the generator and the server that limit how many requests are open or queued. They decide how
/// many requests share a wait, and therefore what a wait costs each of them.
pub(crate) const CAPS: [&str; 2] = ["max-connections", BACKLOG];
/// Metrics of failures. Below the limit of a server there are none.
const FAILURES: [Metric; 3] = [Metric::ErrorShare, Metric::CompletedShare, Metric::ReplyRateMin];
/// Metrics that depend on how many requests share a wait, and therefore on the load.
const COSTS: [Metric; 3] = [Metric::ServerCpu, Metric::ServerInstructions, Metric::Waits];
const COST_FAMILIES: [Family; 3] =
    [Family::KernelCallsPerRequest, Family::CallTime, Family::CallShare];
/// The flag of the listen backlog, which the server limits even if no flag sets it.
pub(crate) const BACKLOG: &str = "backlog";

/// A threshold as it was recorded.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The date.
    pub date: String,
    /// The threshold.
    pub holds: Threshold,
    /// For an earlier entry: the comparison, if the claim then compared something else.
    #[serde(default)]
    pub form: Option<String>,
    /// Why it differs from the previous one; empty for the first.
    #[serde(default)]
    pub why: String,
}

/// The thresholds of every claim, oldest first.
pub type Register = BTreeMap<String, Vec<Entry>>;

/// Returns the built-in register.
pub fn register() -> Register {
    toml::from_str(include_str!("thresholds.toml")).expect("a test reads thresholds.toml")
}

impl Experiment {
    /// Returns the faults that decide verdicts before the run, one sentence each. It also checks the
    /// thresholds against `register`.
    pub fn faults(&self, register: &Register) -> Vec<String> {
        let moved = |claim: &Claim| Some(format!("{}: {}", claim.id, moved(claim, register)?));
        self.design_faults().into_iter().chain(self.claim.iter().filter_map(moved)).collect()
    }

    /// Returns the faults of the design alone.
    pub fn design_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for claim in &self.claim {
            let of_claim =
                self.cap(claim).into_iter().chain(self.certain(claim)).chain(self.load_of(claim));
            faults.extend(of_claim.map(|fault| format!("{}: {fault}", claim.id)));
        }
        faults
    }

    /// Returns the fault of a claim that depends on a cap, if the cap is a constant or the only value of an axis, or
    /// if the claim is not judged at each value of it. The reason in `constant-caps` excuses the caps that it names.
    fn cap(&self, claim: &Claim) -> Option<String> {
        let is_failure = is_one_of(&FAILURES, claim);
        if !is_failure && claim.metric != Metric::Throughput.name() {
            return None;
        }
        let reason = self.constant_caps.as_deref().unwrap_or_default();
        let is_excused = |cap: &str| reason.contains(cap);
        let of_variants = self.variant.iter().map(|variant| &variant.server);
        let of_requests = self.request.iter().map(|request| &request.load);
        let all = [&self.load, &self.server].into_iter();
        let all: Vec<_> = all.chain(of_variants).chain(of_requests).collect();
        let is_set = |cap: &str| all.iter().any(|flags| flags.contains_key(cap));
        if let Some(cap) = CAPS.iter().find(|cap| is_set(cap) && !is_excused(cap)) {
            return Some(format!("{cap} is a constant that may decide it: make it an axis"));
        }
        let is_axis = |cap: &str| {
            let flags = self.axis.iter().flat_map(|axis| [&axis.load_flag, &axis.server_flag]);
            flags.flatten().any(|flag| flag == cap)
        };
        let has_server = self.subject == Subject::Server;
        if is_failure && has_server && !is_set(BACKLOG) && !is_axis(BACKLOG) && !is_excused(BACKLOG)
        {
            return Some(
                "the server's own backlog is a constant that may decide it: make it an axis, or name it in \
                 constant-caps with the reason"
                    .into(),
            );
        }
        let is_cap = |flag: &Option<String>| {
            flag.as_deref().is_some_and(|it| CAPS.contains(&it) && !is_excused(it))
        };
        let has_cap = |axis: &&Axis| is_cap(&axis.load_flag) || is_cap(&axis.server_flag);
        let mut axes = self.axis.iter().filter(has_cap);
        let is_judged = |axis: &Axis| claim.operating_points.as_ref() == Some(&axis.name);
        axes.find_map(|axis| match axis.values.len() {
            0 | 1 => Some(format!("{} has one value, which may decide it", axis.name)),
            _ if is_judged(axis) => None,
            _ => Some(format!("expected operating-points = {:?}, which may decide it", axis.name)),
        })
    }

    /// Returns why the claim can have only one outcome, if so: all possible values of its comparison are on
    /// one side of the threshold; no request fails below the limit; or the claim is about failures, or about an
    /// equality or a rise of the latency under overload, and no control shows that it could have another outcome.
    fn certain(&self, claim: &Claim) -> Option<String> {
        if has_equal_sides(claim) {
            return Some("both sides are the same: it cannot come out otherwise".into());
        }
        let [least, most] = possible(claim);
        let holds = claim.holds;
        if holds.has(least) && holds.has(most) {
            let why = format!("no value that it can have is outside of {holds}");
            return Some(why + ": it cannot come out otherwise");
        }
        let of_failures = is_one_of(&FAILURES, claim);
        let is_at_lowest = claim.sides().all(|side| self.is_at_the_lowest_rate(claim, side));
        // A control shows that something happens at another point. Here nothing can happen.
        if of_failures && is_at_lowest && !claim.id.contains("control") {
            return Some("nothing fails at the lowest rate: it cannot come out otherwise".into());
        }
        if let Some(control) = claim.control.as_ref().and_then(|id| self.find_claim(id)) {
            let is_same = claim.compares_as(control);
            let same = || format!("its control {} compares the same data as the claim", control.id);
            return if is_same { Some(same()) } else { beside(claim, control) };
        }
        let is_equality = matches!(holds, Threshold::Within(_)) && self.is_overload(&claim.a);
        let is_of_all = of_failures && claim.a.take != Take::Each;
        let wants_control = claim.primary && (is_of_all || is_equality || self.is_rise(claim));
        wants_control
            .then(|| "expected control = ID, a claim which shows that it could fail".into())
    }

    /// Whether the side is read at the lowest rate, at which every server answers all requests.
    fn is_at_the_lowest_rate(&self, claim: &Claim, side: &Side) -> bool {
        let lowest = self.rate.as_ref().and_then(|rate| rate.fractions.first().copied());
        let is_lowest =
            |at: &Select| at.0.word() == Some("min") || lowest.is_some() && at.multiple() == lowest;
        let Some(at) = side.at.get(RATE) else { return false };
        // The operating rates take the place of a multiple.
        let is_replaced = at.multiple().is_some() && !claim.operating_rates.is_empty();
        if is_replaced { claim.operating_rates.iter().all(is_lowest) } else { is_lowest(at) }
    }

    /// Whether the claim is that the latency of a server is higher beyond the limit than below it. Beyond the
    /// limit the queue of every server grows.
    fn is_rise(&self, claim: &Claim) -> bool {
        let is_below = |b: &Side| b.variant == claim.a.variant && !self.is_overload(b);
        claim.metric.starts_with("latency_")
            && matches!(claim.holds, Threshold::Above(_))
            && self.is_overload(&claim.a)
            && claim.b.as_ref().is_some_and(is_below)
    }

    /// Whether the side is read at one rate beyond the saturation.
    fn is_overload(&self, side: &Side) -> bool {
        let phase = side.at.get(PHASE).and_then(|at| {
            let phase = self.phase.iter().find(|phase| at.0.word() == Some(phase.name.as_str()))?;
            Some(phase.fraction)
        });
        let rate = side.at.get(RATE).and_then(|at| {
            let fractions = &self.rate.as_ref()?.fractions;
            let last = fractions.last().copied().filter(|_| at.0.word() == Some("max"));
            at.multiple().or(last)
        });
        phase.or(rate).is_some_and(|share| share > 1.0)
    }

    /// Returns the fault of a claim about a cost per request, if the experiment has several loads and the claim
    /// is judged at one of them: the load decides how many requests share the cost of a wait.
    fn load_of(&self, claim: &Claim) -> Option<String> {
        let of_family = |family: &Family| claim.metric.starts_with(family.definition().name);
        let is_cost = is_one_of(&COSTS, claim) || COST_FAMILIES.iter().any(of_family);
        let rate = self.rate.as_ref()?;
        // Given rates take the place of the shares.
        let loads = if rate.rps.is_empty() { &rate.fractions } else { &rate.rps };
        let has_several = loads.len() > 1;
        let is_judged = claim.operating_points.as_deref() == Some(RATE)
            || !claim.operating_rates.is_empty()
            || claim.a.over.iter().any(|axis| axis == RATE);
        (claim.primary && is_cost && has_several && !is_judged).then(|| {
            format!("a cost per request depends on the load: expected operating-points = {RATE:?}")
        })
    }
}

fn is_one_of(metrics: &[Metric], claim: &Claim) -> bool {
    metrics.iter().any(|metric| metric.name() == claim.metric)
}

/// Returns why a claim along the rates cannot stand beside its control, which reads the same figure beyond the
/// limit: if the control holds, the claim cannot hold at every rate. Such a claim ends at the limit, and only there
/// it may have such a control.
fn beside(claim: &Claim, control: &Claim) -> Option<String> {
    let is_along_rates = claim.operating_points.as_deref() == Some(RATE);
    let is_highest = |side: &Side| side.at.get(RATE).is_some_and(|at| at.0.word() == Some("max"));
    let is_opposite = is_along_rates
        && claim.metric == control.metric
        && claim.each == control.each
        && is_highest(&control.a)
        && are_disjoint(claim.holds, control.holds);
    match (claim.up_to_limit, is_opposite) {
        (false, true) => Some(format!(
            "its control {} contradicts it at the highest rate: expected up-to-limit = true",
            control.id
        )),
        (true, false) => {
            Some(format!("its control {} does not show the opposite beyond the limit", control.id))
        }
        _ => None,
    }
}

/// Whether no value meets both conditions, one of which is an upper and the other a lower limit.
fn are_disjoint(one: Threshold, other: Threshold) -> bool {
    match (one, other) {
        (Threshold::Below(high), Threshold::Above(low))
        | (Threshold::Above(low), Threshold::Below(high)) => low >= high,
        _ => false,
    }
}

/// Whether both sides read the same figure of each variant of the claim.
fn has_equal_sides(claim: &Claim) -> bool {
    let Some(b) = &claim.b else { return false };
    let of = |side: &Side| Side { variant: None, metric: None, ..side.clone() };
    let metric = |side: &Side| side.metric.clone().unwrap_or_else(|| claim.metric.clone());
    let variant = |side: &Side, each: &String| side.variant.clone().unwrap_or_else(|| each.clone());
    let is_equal = |each: &String| variant(&claim.a, each) == variant(b, each);
    of(&claim.a) == of(b) && metric(&claim.a) == metric(b) && claim.each.iter().any(is_equal)
}

/// The least and the greatest possible value of the comparison: no metric is below zero, and no share is
/// above one.
fn possible(claim: &Claim) -> [f64; 2] {
    let most = if claim.metric.ends_with("_share") { 1.0 } else { f64::INFINITY };
    match claim.compare {
        Compare::Value if claim.a.minus.is_none() => [0.0, most],
        Compare::Ratio if claim.a.minus.is_none() => [f64::MIN_POSITIVE, f64::INFINITY],
        _ => [-most, most],
    }
}

/// Returns the fault of a claim whose threshold is not the last one in the register.
fn moved(claim: &Claim, register: &Register) -> Option<String> {
    match register.get(&claim.id).and_then(|entries| entries.last()) {
        None => Some("its threshold stands in no thresholds.toml".into()),
        Some(entry) if entry.holds != claim.holds => {
            Some(format!("its threshold moved: {} was written down on {}", entry.holds, entry.date))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Form, Machine, Value, find, ids};

    fn faults(experiment: &Experiment) -> Vec<String> {
        experiment.faults(&register())
    }

    /// Returns the identifiers that several experiments use, with these experiments.
    fn shared_ids(experiments: &[Experiment]) -> Vec<String> {
        let mut owners: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for experiment in experiments {
            for claim in &experiment.claim {
                owners.entry(&claim.id).or_default().push(&experiment.id);
            }
        }
        let shared = owners.into_iter().filter(|(_, owners)| owners.len() > 1);
        shared.map(|(id, owners)| format!("{id}: {}", owners.join(" and "))).collect()
    }

    #[test]
    fn no_built_in_experiment_has_a_fault() {
        let all: Vec<Experiment> = ids().map(|id| find(id).unwrap()).collect();
        for experiment in &all {
            for form in Form::ALL {
                let faults = faults(&experiment.form(form).unwrap());
                assert_eq!(faults, [""; 0], "{} {form}", experiment.id);
            }
        }
        assert_eq!(shared_ids(&all), [""; 0]);
    }

    #[test]
    fn a_share_that_decides_is_found() {
        let text = crate::experiment::text("provos-fig10").unwrap();
        let text = text.replace("place =", "deterministic-server-share = 0.28\nplace =");
        assert!(Experiment::parse(&text).unwrap_err().to_string().contains("decides verdicts"));
    }

    #[test]
    fn a_cap_that_decides_is_found() {
        let mut constant = find("gammo-fig5-6").unwrap();
        constant.axis.retain(|axis| axis.name == "idle");
        constant.load.insert("max-connections".into(), Value::Number(64.0));
        assert!(
            faults(&constant).iter().any(|it| it.starts_with("G3: ") && it.contains("constant"))
        );
        // An axis with one value, and a second axis at which the claim is not judged.
        let mut single = find("gammo-fig5-6").unwrap();
        let axis = single.axis.iter_mut().find(|axis| axis.name == "at-once").unwrap();
        axis.values = vec![Value::Number(64.0)];
        let expected = "G3: at-once has one value, which may decide it";
        assert!(faults(&single).iter().any(|it| it == expected));
        let mut second = find("batching").unwrap();
        second.constant_caps = None;
        let expected = "B1: expected operating-points = \"backlog\", which may decide it";
        assert!(faults(&second).iter().any(|it| it == expected));
        for overlay in ["variant.poll.server.backlog = 5", "load.backlog = 5"] {
            let mut hidden = find("gammo-fig1-2").unwrap();
            hidden.guest = overlay.parse().unwrap();
            let hidden = hidden.form(Form { machine: Machine::Guest, quick: false }).unwrap();
            let found = faults(&hidden).iter().any(|it| it.contains("backlog is a constant"));
            assert!(found, "{overlay}");
        }
    }

    /// Each row: an experiment, the start of the sentence about a fault, which begins with the claim, and the change
    /// to this claim.
    #[test]
    fn a_planted_fault_is_found() {
        type PlantedFault = (&'static str, &'static str, fn(&mut Claim));
        let planted: [PlantedFault; 24] = [
            ("gammo-fig5-6", "G3: expected operating-", |it| it.operating_points = None),
            // A threshold that moved.
            ("gammo-fig5-6", "G3: its threshold moved", |it| it.holds = Threshold::Below(0.9)),
            ("push", "PU1: its threshold moved", |it| it.holds = Threshold::Below(1.3)),
            // What cannot fail, and what nothing shows that it could.
            ("provos-fig10", "P4: nothing fails at the lowest rate", at_the_lowest_rate),
            ("provos-fig10", "P4: expected control", |it| it.control = None),
            ("provos-fig10", "P4: its control P4 compares the same data", |it| {
                it.control = Some("P4".into());
            }),
            // A control at another point does not help at the lowest rate.
            ("provos-overflow", "P11: nothing fails at the lowest", back_to_the_lowest_rate),
            ("provos-overflow", "P12: nothing fails at the lowest", back_to_the_lowest_rate),
            ("provos-overflow", "P12: expected control", |it| it.control = None),
            // Two servers that both answer every request, as the former claim P7-low had them, and the lowest rate
            // by its multiple.
            ("provos-fig11-13", "P7: nothing fails at the lowest rate", as_p7_low),
            ("provos-fig10", "P4: nothing fails at the lowest rate", at_the_lowest_multiple),
            // A claim and its control that cannot both hold, and a control that is not beyond the limit.
            ("provos-overflow", "P12: its control P12-fails", |it| it.up_to_limit = false),
            ("provos-overflow", "P12: its control P12-control does not show", |it| {
                it.control = Some("P12-control".into());
            }),
            // Under overload, any server that is driven there may reach the same rate.
            ("provos-hybrid", "P13-overload: expected control", |it| it.control = None),
            ("provos-hybrid", "P13-overload: expected control", |it| {
                it.control = Some("P99".into());
            }),
            // Beyond the limit the latency of every server rises.
            ("provos-fig14", "P10: expected control", |it| it.control = None),
            // A cost per request at one load of several.
            ("gammo-wan", "G12-least: a cost per request depends on the load", |it| {
                it.operating_points = None;
            }),
            ("gammo-wan", "G12-least: a cost per request", at_the_highest_rate),
            ("gammo-wan", "G12-least: a cost per request", |it| {
                it.operating_points = None;
                it.metric = "server_cpu_us_per_request".into();
            }),
            // No ratio is below zero, and no share above 1.
            ("gammo-fig5-6", "G3: no value that it", |it| it.holds = Threshold::Above(0.0)),
            ("push", "PU4: no value that it", |it| it.holds = Threshold::Above(0.0)),
            ("provos-fig10", "P4: no value that it", |it| it.holds = Threshold::Below(1.01)),
            ("gammo-fig5-6", "G3: both sides are the same", |it| it.b = Some(it.a.clone())),
            ("push", "PU2: both sides are the same", |it| it.b = Some(it.a.clone())),
        ];
        let faults_of = |id: &str, of: &str, change: fn(&mut Claim)| {
            let mut planted = find(id).unwrap();
            change(planted.claim.iter_mut().find(|claim| claim.id == of).unwrap());
            faults(&planted)
        };
        for (id, expected, change) in planted {
            let (of, _) = expected.split_once(": ").unwrap();
            let faults = faults_of(id, of, change);
            assert!(faults.iter().any(|it| it.starts_with(expected)), "{expected}: {faults:?}");
        }
        let unknown = faults_of("gammo-fig5-6", "G3", |it| it.id = "G99".into());
        assert!(unknown.iter().any(|it| it.starts_with("G99: its threshold stands in no")));
        let possible = faults_of("gammo-fig5-6", "G3", |it| it.holds = Threshold::Above(0.5));
        assert!(possible.iter().all(|it| !it.contains("no value")), "{possible:?}");
    }

    fn read_at(claim: &mut Claim, rate: &str) {
        for side in claim.sides_mut() {
            side.at.insert(RATE.into(), Select(Value::Word(rate.into())));
        }
    }

    fn at_the_lowest_rate(claim: &mut Claim) {
        claim.control = None;
        read_at(claim, "min");
    }

    /// Both servers are at the lowest rate, as they were in the former claim P7-low.
    fn as_p7_low(claim: &mut Claim) {
        claim.metric = Metric::CompletedShare.name().into();
        (claim.compare, claim.holds) = (Compare::Difference, Threshold::Above(0.05));
        claim.sides_mut().for_each(|side| side.over.clear());
        read_at(claim, "min");
    }

    /// The operating rates are one rate, which is the lowest of the experiment. The claim keeps its control.
    fn at_the_lowest_multiple(claim: &mut Claim) {
        claim.operating_rates = vec![Select(Value::Word("x0.5".into()))];
    }

    /// The claim keeps its control.
    fn back_to_the_lowest_rate(claim: &mut Claim) {
        claim.operating_points = None;
        read_at(claim, "min");
    }

    fn at_the_highest_rate(claim: &mut Claim) {
        claim.operating_points = None;
        read_at(claim, "max");
    }

    /// A reason excuses the caps that it names, and the server's own backlog is a cap, too.
    #[test]
    fn a_reason_excuses_only_what_it_names() {
        let with = |id: &str, reason: Option<&str>, flag: Option<&str>| {
            let mut planted = find(id).unwrap();
            planted.constant_caps = reason.map(str::to_owned);
            if let Some(flag) = flag {
                planted.load.insert(flag.into(), Value::Number(64.0));
            }
            faults(&planted)
        };
        let has =
            |faults: &[String], expected: &str| faults.iter().any(|it| it.starts_with(expected));
        let overflow = |reason| with("provos-overflow", reason, None);
        for claim in ["P11", "P12"] {
            let expected = format!("{claim}: the server's own backlog is a constant");
            assert!(has(&overflow(None), &expected));
            assert!(has(&overflow(Some("max-connections: few clients")), &expected));
            assert!(!has(&overflow(Some("backlog: bursts must fit")), &expected));
        }
        let capped = |reason| with("gammo-fig1-2", reason, Some("max-connections"));
        let expected = "G1: max-connections is a constant";
        assert!(
            has(&capped(None), expected) && has(&capped(Some("backlog: it is long")), expected)
        );
        assert!(!has(&capped(Some("max-connections: as in the paper")), expected));
    }

    #[test]
    fn a_threshold_that_changed_has_a_later_day_and_a_reason() {
        let register = register();
        for (id, entries) in &register {
            for pair in entries.windows(2) {
                assert!(pair[0].date < pair[1].date && !pair[1].why.is_empty(), "{id}: {pair:?}");
                assert!(pair[0].form.is_some() || pair[0].holds != pair[1].holds, "{id}: {pair:?}");
            }
            assert!(entries.last().is_some_and(|last| last.form.is_none()), "{id}: {entries:?}");
        }
        // The thresholds of 21 November, which were changed after the first runs.
        let first = |id: &str| (register[id][0].date.as_str(), register[id][0].holds);
        assert_eq!(first("P4"), ("2026-11-21", Threshold::Above(0.05)));
        assert_eq!(first("P13-overload"), ("2026-11-21", Threshold::Above(0.98)));
    }

    #[test]
    fn an_identifier_that_two_have_is_found() {
        let mut planted = find("gammo-fig5-6").unwrap();
        planted.claim[0].id = "P4".into();
        assert_eq!(shared_ids(&[planted, find("provos-fig10").unwrap()]).len(), 1);
    }
}
