//! The parts of an experiment around the server under test: a store, an origin, and requests of several
//! kinds.

use super::{Experiment, Flags, Subject, Value, Variant, Workload};
use crate::{experiment::Point, memory::LEAST_OBJECTS};
use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The axis of [`Request`].
pub const REQUEST: &str = "request";

/// The most remarks in a store.
const MAX_REMARKS: u32 = 10_000;
/// The most documents of a request.
const MAX_DISTINCT: u32 = 1_000_000;

/// A real Redis, which the laboratory starts, fills and ends. None of its data is written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Redis {
    /// The number of guestbook remarks in it.
    pub remarks: u32,
    /// The process with which Redis shares a CPU if there are only two. With more CPUs, Redis has its own.
    pub core: Core,
}

/// Redis' own benchmark in place of a server: what the commands of a page cost Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RedisBenchmark {
    /// Connections to Redis.
    pub connections: u32,
    /// The commands that may be outstanding on each connection.
    pub pipeline: u32,
    /// The number of commands of each kind.
    pub requests: u32,
}

/// Which processes share a CPU if there are only two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Core {
    /// Redis and the server: one CPU does all of a request's work, and the generator has the other CPU.
    Server,
    /// Redis and the generator: the server has the other CPU.
    Generator,
}

/// The server behind a front end: a `pollux serve` of the same files on the generator's CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Origin {
    /// The flags of the origin.
    #[serde(default)]
    pub server: Flags,
}

/// A kind of request, and the origin's response to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Request {
    /// The name of this request: a value of the axis.
    pub name: String,
    /// The number of documents among which the generator chooses. Their URLs differ in the query, which the
    /// origin ignores. With 1, the URL has no query.
    #[serde(default = "one")]
    pub distinct: u32,
    /// Whether the resource is requested once before the measurement.
    #[serde(default)]
    pub prepared: bool,
    /// Whether each document is requested once before the measurement, so that the server stores all of
    /// them. The growth of its memory during these requests is measured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stored: bool,
    /// Flags of the origin that override the experiment's.
    #[serde(default)]
    pub origin: Flags,
    /// Flags of `pollux load` that override the experiment's.
    #[serde(default)]
    pub load: Flags,
    /// The time in seconds for which the origin is stopped from the start of the load.
    pub origin_held_seconds: Option<f64>,
    /// Another load on the same server at the same time.
    pub storm: Option<Storm>,
}

fn one() -> u32 {
    1
}

/// Points at which nothing is measured: those with one of the given values on each named axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Exclusion {
    /// The values, by the name of the axis.
    pub at: BTreeMap<String, Vec<Value>>,
    /// The reason.
    pub because: String,
}

/// Requests beside the measured ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Storm {
    /// The rate in requests per second.
    pub rps: f64,
    /// The number of documents among which they choose.
    pub distinct: u32,
}

/// Replaces the names in braces in the words of flags, as in `pool = "{concurrency}"`, by their values.
///
/// # Errors
/// When a name in braces is not in `known`.
pub fn filled_in(flags: &Flags, known: &BTreeMap<String, String>) -> anyhow::Result<Flags> {
    let fill = |word: &str| -> anyhow::Result<String> {
        let mut text = String::new();
        let mut rest = word;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').with_context(|| format!("{word}: no }}"))?;
            let value = known.get(name).with_context(|| format!("{word}: what is {name:?}?"))?;
            text.push_str(before);
            text.push_str(value);
            rest = after;
        }
        text.push_str(rest);
        Ok(text)
    };
    flags
        .iter()
        .map(|(name, value)| {
            let word = value.word().map(fill).transpose()?.map(Value::Word);
            Ok((name.clone(), word.unwrap_or_else(|| value.clone())))
        })
        .collect()
}

impl Request {
    fn check(&self, has_origin: bool) -> anyhow::Result<()> {
        let storm = self.storm.map_or(1, |storm| storm.distinct);
        let fits = |distinct: u32| (1..=MAX_DISTINCT).contains(&distinct);
        ensure!(fits(self.distinct) && fits(storm), "distinct: 1 to {MAX_DISTINCT}");
        let fits = |storm: Storm| (0.1..=1e6).contains(&storm.rps);
        ensure!(self.storm.is_none_or(fits), "storm: rps");
        let fits = |seconds: f64| (0.01..=60.0).contains(&seconds);
        ensure!(self.origin_held_seconds.is_none_or(fits), "origin-held-seconds: 0.01 to 60");
        ensure!(
            !self.stored || u64::from(self.distinct) >= LEAST_OBJECTS,
            "stored: at least {LEAST_OBJECTS} distinct ones, or their memory is lost in the rest"
        );
        let wants_origin =
            self.origin_held_seconds.is_some() || !self.origin.is_empty() || self.stored;
        ensure!(!wants_origin || has_origin, "there is no [origin]");
        Ok(())
    }
}

impl Experiment {
    /// Returns the request of this name.
    pub fn request(&self, name: &Value) -> Option<&Request> {
        let name = name.word()?;
        self.request.iter().find(|request| request.name == name)
    }

    /// Returns why `variant` is not measured at `point`, if so.
    pub fn left_out(&self, variant: &Variant, point: &Point) -> Option<String> {
        let is_in = |left: &&Exclusion| {
            left.at
                .iter()
                .all(|(axis, values)| point.get(axis).is_some_and(|value| values.contains(value)))
        };
        let general = self.left_out.iter().find(is_in).map(|left| left.because.clone());
        general.or_else(|| variant.left_out(point))
    }

    /// Checks the store, the origin and the requests.
    ///
    /// # Errors
    /// When they do not match the rest of the experiment.
    pub(super) fn check_around(&self) -> anyhow::Result<()> {
        if let Some(redis) = &self.redis {
            ensure!(redis.remarks <= MAX_REMARKS, "[redis] remarks: at most {MAX_REMARKS}");
        }
        self.check_requests()?;
        for name in self.left_out.iter().flat_map(|left| left.at.keys()) {
            ensure!(self.find_axis(name).is_some(), "[[left-out]] at: no axis {name:?}");
        }
        if let Some(name) = &self.memory_per {
            ensure!(self.find_axis(name).is_some(), "memory-per: no axis {name:?}");
        }
        self.variant.iter().try_for_each(|variant| {
            self.check_variant(variant).with_context(|| format!("[[variant]] {:?}", variant.name))
        })
    }

    fn check_requests(&self) -> anyhow::Result<()> {
        let axis = self.find_axis(REQUEST);
        ensure!(
            axis.is_some() != self.request.is_empty(),
            "[[request]] and an axis called {REQUEST:?} belong together"
        );
        let mut names = BTreeSet::new();
        for request in &self.request {
            let place = || format!("[[request]] {:?}", request.name);
            ensure!(names.insert(request.name.as_str()), "{} is there twice", place());
            request.check(self.origin.is_some()).with_context(place)?;
        }
        for value in axis.iter().flat_map(|axis| &axis.values) {
            ensure!(self.request(value).is_some(), "[[axis]] {REQUEST:?}: no [[request]] {value}");
        }
        Ok(())
    }

    fn check_variant(&self, variant: &Variant) -> anyhow::Result<()> {
        let kinds = [
            variant.peer.is_some(),
            variant.architecture.is_some(),
            variant.redis_benchmark.is_some(),
            variant.floor_of.is_some(),
            !variant.mechanism.is_empty(),
        ];
        ensure!(
            kinds.into_iter().filter(|&is| is).count() == 1,
            "expected one of mechanism, architecture, peer, redis-benchmark and floor-of"
        );
        let benchmark = variant.redis_benchmark.is_some();
        ensure!(!benchmark || self.redis.is_some(), "there is no [redis]");
        if let Some(name) = &variant.floor_of {
            let of = self.variant.iter().find(|other| other.name == *name);
            let is_ours = of.is_some_and(|of| !of.mechanism.is_empty());
            ensure!(is_ours, "floor-of: no variant {name:?} with a mechanism");
            ensure!(self.subject == Subject::Server, "floor-of: of a server");
        }
        let floor = variant.floor_of.is_some();
        ensure!(floor || variant.floor.is_empty(), "floor is for floor-of");
        if variant.peer.is_some() || variant.floor_of.is_some() || benchmark {
            ensure!(
                self.budget.warmup_seconds == 0.0,
                "it does not report its responses at the end of a warm-up: \
                 warmup-seconds = 0"
            );
            ensure!(variant.server.is_empty(), "server is for Pollux");
            ensure!(
                self.kernel_calls.is_empty() && self.phase.is_empty() && self.rate.is_none(),
                "no calls of it are counted, and it has no [rate] and no phases"
            );
            let guestbook = self.workload == Some(Workload::Guestbook);
            ensure!(benchmark || !guestbook, "a peer has no guestbook");
        }
        let limited = variant.only.keys().chain(variant.at_most.keys());
        for name in limited.clone() {
            ensure!(self.find_axis(name).is_some(), "no axis {name:?}");
        }
        ensure!(
            variant.because.is_some() == (limited.count() > 0),
            "only, at-most and because belong together"
        );
        Ok(())
    }
}
