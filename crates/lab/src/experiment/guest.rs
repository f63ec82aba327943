//! The form that an experiment takes in a guest.

use super::{
    Budget, Clients, Experiment, Flags, Machine, ReceiveOn, RelativeTo, Subject, Value, Variant,
};
use pollux_event::registry;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What is different in the guest of `pollux vm`, whose CPU is emulated: a generator there cannot
/// keep to milliseconds, and the time is enough for few variants. What is not named stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Guest {
    /// The variants, by name; empty for all. Claims about others are not judged there.
    #[serde(default)]
    pub variants: Vec<String>,
    /// Flags of `pollux load` that take the place of the experiment's.
    #[serde(default)]
    pub load: Flags,
    /// How far away clients are.
    pub clients: Option<Clients>,
    /// The values of axes, by the axis' name, in the full form and under `--quick`.
    #[serde(default)]
    pub values: BTreeMap<String, Vec<Value>>,
    /// Whose saturation the rates are shares of: an emulated generator cannot always drive the
    /// fastest into overload.
    pub relative_to: Option<RelativeTo>,
    /// The shares of the saturation.
    pub fractions: Option<Vec<f64>>,
    /// The same under `--quick`.
    pub quick_fractions: Option<Vec<f64>>,
    /// The budget of a full run, in the guest's own time: its boot is not in it.
    pub full: Option<Budget>,
    /// The budget under `--quick`.
    pub quick: Option<Budget>,
}

/// Blocks in a guest whose clock counts instructions: a look at the data after the sixth and the tenth.
const DETERMINISTIC_BLOCKS: u32 = 10;
/// The fewest of which a verdict may be made.
const QUICK_DETERMINISTIC_BLOCKS: u32 = 6;
/// The most patience of clients that windows are made for there, in seconds: with more of it a run would take
/// hours.
const MOST_PATIENCE_S: f64 = 2.0;
/// A phase is steady after its clients' patience times this factor.
const SETTLED: f64 = 1.2;

impl Experiment {
    /// The experiment as it runs in a guest: what [`Guest`] says is in its place, and there is no
    /// [`Experiment::guest`] any more.
    #[must_use]
    pub fn in_guest(mut self) -> Self {
        let Some(guest) = self.guest.take() else { return self };
        self.load.extend(guest.load);
        let patience_s = self.patience_s();
        for settle_s in self.phase.iter_mut().filter_map(|phase| phase.settle_seconds.as_mut()) {
            // The requests of the previous phase are over when its last clients have given up.
            *settle_s = settle_s.max(SETTLED * patience_s);
        }
        self.quick_variants.clear();
        self.full = guest.full.unwrap_or(self.full);
        self.quick = guest.quick.unwrap_or(self.quick);
        self.clients = guest.clients.or(self.clients);
        for axis in &mut self.axis {
            if let Some(values) = guest.values.get(&axis.name) {
                axis.values.clone_from(values);
                axis.quick_values = None;
            }
        }
        if let Some(rate) = &mut self.rate {
            if guest.fractions.is_some() {
                rate.rps.clear();
                rate.quick_rps = None;
            }
            rate.relative_to = guest.relative_to.unwrap_or(rate.relative_to);
            rate.fractions = guest.fractions.unwrap_or_else(|| rate.fractions.clone());
            rate.quick_fractions = guest.quick_fractions.or(rate.quick_fractions.take());
        }
        if !guest.variants.is_empty() {
            self.keep_variants(&guest.variants);
        }
        self
    }

    /// The experiment as it runs in a guest whose clock counts instructions, for a server under load: at
    /// the papers' own rates where they give any and at those beyond them, in windows of one length.
    ///
    /// Requests come at random instants there, for blocks then differ by the seed of these alone, and
    /// nothing else would make a block differ from another.
    ///
    /// A window lasts as long as its clients' patience, twice as long in the full form. It begins when the
    /// first clients may have given up; in the full form earlier, where a pilot of three times that
    /// patience was steady earlier. So a queue is full by then, and the figures include the clients that
    /// give up and the responses that arrive too late. In half a second at the paper's rates no client ever
    /// gives up. A window is longer where the experiment sets it
    /// ([`Experiment::deterministic_window_seconds`]), and so is the time before it.
    #[must_use]
    pub fn in_deterministic_guest(mut self) -> Self {
        self.place = Machine::DeterministicGuest;
        if self.subject != Subject::Server {
            return self;
        }
        // There is one CPU.
        self.receive_on = ReceiveOn::Sender;
        // More threads are for more tables of descriptors, which so few requests a second do not need.
        self.load.remove("threads");
        self.load.entry("arrivals".into()).or_insert_with(|| Value::Word("poisson".into()));
        if let Some(rate) = &mut self.rate {
            if !rate.paper_rps.is_empty() && rate.reference.is_none() {
                rate.rps = [&rate.paper_rps[..], &rate.beyond_rps].concat();
            }
            rate.limit_step = self.deterministic_limit_step;
            if rate.limit_step.is_some() {
                // Of two windows, one has by chance 2% more requests than the other, which is more than the
                // difference between limits.
                self.load.insert("arrivals".into(), Value::Word("binomial".into()));
            }
        }
        let patience_s = self.patience_s();
        let least_s = self.deterministic_window_seconds.unwrap_or_default();
        let least_warmup_s = self.deterministic_warmup_seconds.unwrap_or_default();
        let budget = |old: &Budget, blocks, window_s: f64, warmup_s: f64| Budget {
            blocks,
            min_window_seconds: window_s.max(least_s),
            max_window_seconds: window_s.max(least_s),
            warmup_seconds: if old.warmup_seconds > 0.0 {
                warmup_s.max(least_warmup_s)
            } else {
                0.0
            },
            saturation_seconds: window_s,
            ..*old
        };
        let full_s = 2.0 * patience_s;
        self.full = budget(&self.full, DETERMINISTIC_BLOCKS, full_s, 1.5 * patience_s);
        self.quick = budget(&self.quick, QUICK_DETERMINISTIC_BLOCKS, patience_s, 1.25 * patience_s);
        self
    }

    /// How many seconds its clients wait for a reply, [`MOST_PATIENCE_S`] at most.
    fn patience_s(&self) -> f64 {
        let seconds = match self.load.get("timeout") {
            Some(Value::Word(text)) => match text.strip_suffix("ms") {
                Some(milliseconds) => milliseconds.parse().ok().map(|value: f64| value / 1000.0),
                None => text.strip_suffix('s').and_then(|seconds| seconds.parse().ok()),
            },
            _ => None,
        };
        seconds.unwrap_or(MOST_PATIENCE_S).min(MOST_PATIENCE_S)
    }

    /// The quick form there: of many rates every second of the paper's, the first and the last among them, and
    /// those beyond the paper's.
    #[must_use]
    pub fn with_fewer_rates(mut self) -> Self {
        if let Some(rate) = &mut self.rate {
            let of_paper = rate.rps.len().saturating_sub(rate.beyond_rps.len());
            let beyond = rate.rps.split_off(of_paper);
            if let Some(last) = rate.rps.pop() {
                rate.rps = rate.rps.iter().copied().step_by(2).chain([last]).collect();
            }
            rate.rps.extend(beyond);
        }
        self
    }

    /// The experiment with the variants and the claims of its quick form alone.
    #[must_use]
    pub fn in_quick_form(mut self) -> Self {
        self.claim.retain(|claim| !claim.full_form_only);
        let names = std::mem::take(&mut self.quick_variants);
        if !names.is_empty() {
            self.keep_variants(&names);
        }
        self
    }

    fn keep_variants(&mut self, names: &[String]) {
        if self.variant.is_empty() {
            let named = |name: &&str| names.iter().any(|kept| kept == name);
            let all = registry::ALL.iter().map(|entry| entry.name).filter(named);
            self.variant = all.map(Variant::of_mechanism).collect();
        } else {
            self.variant.retain(|variant| names.contains(&variant.name));
        }
        for claim in &mut self.claim {
            claim.each.retain(|name| names.contains(name));
        }
        let is_there =
            |name: &Option<String>| name.as_ref().is_none_or(|name| names.contains(name));
        self.claim.retain(|claim| {
            let mut sides = std::iter::once(&claim.a).chain(&claim.b);
            let all = sides.all(|side| is_there(&side.variant) && is_there(&side.minus));
            !claim.each.is_empty() && all
        });
        let ids: BTreeSet<String> = self.claim.iter().map(|claim| claim.id.clone()).collect();
        for claim in &mut self.claim {
            claim.control.take_if(|control| !ids.contains(control));
        }
    }
}
