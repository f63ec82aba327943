//! Subscribers of a push server, and the updates that are published to them.

use super::{Experiment, Flags, IDLE, Point, REQUEST, Subject, Value};
use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

/// The axis of the number of subscribers.
pub const SUBSCRIBERS: &str = "subscribers";

/// The axis of [`UpdatesTo`].
pub const UPDATES_TO: &str = "updates-to";

/// The fewest updates in a window: the first one meets cold caches.
const LEAST_UPDATES: f64 = 2.0;
/// The longest [`Push::quiet_seconds`].
const MAX_QUIET_S: f64 = 60.0;
/// Flags that a run of a push server sets itself.
const OWN_FLAGS: [&str; 6] =
    ["subscribe", "topic", "rate", "connections", "quiet-time", "reconnect-at"];

/// The rate of published updates. A window has as many updates per second as the lowest of the three limits
/// allows, and at least two: the more an update costs, the fewer there are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Push {
    /// The most updates per second.
    pub updates_per_second: f64,
    /// The most deliveries per second, because the generator checks each of them.
    pub deliveries_per_second: f64,
    /// The most updates times subscribers per second, because a mechanism that scans looks at all
    /// subscribers for each update.
    pub scanned_per_second: f64,
    /// The most subscribers with which a mechanism that scans is measured. With more of them, `scanned_per_second` is no
    /// limit. Without this value it always is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scanned_at_most: Option<f64>,
    /// How long nothing is published before the first update and after the last delivery, in seconds. The
    /// server's figures are read in these times.
    pub quiet_seconds: f64,
}

/// The subscribers that an update reaches: a value of the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdatesTo {
    /// One subscriber. The others have another topic.
    One,
    /// One subscriber in a hundred, or one if there are fewer than two hundred.
    OneInAHundred,
    /// Every subscriber.
    All,
}

impl UpdatesTo {
    /// Returns how many of `subscribers` an update reaches.
    pub fn recipients(self, subscribers: u64) -> u64 {
        match self {
            Self::One => 1,
            Self::OneInAHundred => (subscribers / 100).max(1),
            Self::All => subscribers,
        }
    }
}

/// The load of a push server at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PushLoad {
    /// The subscribers of all topics.
    pub subscribers: u64,
    /// The subscribers that every update reaches.
    pub recipients: u64,
    /// Updates per second.
    pub rate_rps: f64,
}

impl Push {
    /// Returns the load at `point` in a window of `window_s` seconds.
    ///
    /// # Errors
    /// When the point lacks one of the axes.
    pub fn load_at(&self, point: &Point, window_s: f64) -> anyhow::Result<PushLoad> {
        let subscribers = point.get(SUBSCRIBERS).and_then(Value::number);
        let subscribers = subscribers.context("the axis \"subscribers\" is missing")?;
        let updates_to = point.get(UPDATES_TO).and_then(Value::named::<UpdatesTo>);
        let updates_to = updates_to.context("the axis \"updates-to\" is missing")?;
        let recipients = updates_to.recipients(subscribers as u64);
        let scans = self.scanned_at_most.is_none_or(|most| subscribers <= most);
        let scanned = if scans { self.scanned_per_second } else { f64::INFINITY };
        let rate_rps = self
            .updates_per_second
            .min(self.deliveries_per_second / recipients as f64)
            .min(scanned / subscribers)
            .max(LEAST_UPDATES / window_s);
        Ok(PushLoad { subscribers: subscribers as u64, recipients, rate_rps })
    }
}

impl Experiment {
    /// Checks the axes of a push experiment.
    ///
    /// # Errors
    /// When the axes and the table do not match.
    pub(super) fn check_push(&self) -> anyhow::Result<()> {
        let axes = [SUBSCRIBERS, UPDATES_TO].map(|name| self.find_axis(name));
        let Some(push) = &self.push else {
            ensure!(
                axes.iter().all(Option::is_none),
                "the axes {SUBSCRIBERS:?} and {UPDATES_TO:?} are for [push]"
            );
            return Ok(());
        };
        let [Some(subscribers), Some(updates_to)] = axes else {
            anyhow::bail!("[push] needs the axes {SUBSCRIBERS:?} and {UPDATES_TO:?}");
        };
        for value in &subscribers.values {
            let fits = value.number().is_some_and(|n| (1.0..=1e8).contains(&n) && n.fract() == 0.0);
            ensure!(fits, "[[axis]] {SUBSCRIBERS:?}: {value}: expected whole numbers from 1");
        }
        for value in &updates_to.values {
            ensure!(
                value.named::<UpdatesTo>().is_some(),
                "[[axis]] {UPDATES_TO:?}: {value}: expected one, one-in-a-hundred or all"
            );
        }
        for (name, value) in [
            ("updates-per-second", push.updates_per_second),
            ("deliveries-per-second", push.deliveries_per_second),
            ("scanned-per-second", push.scanned_per_second),
        ] {
            ensure!((0.01..=1e8).contains(&value), "[push] {name}: 0.01 to 100,000,000");
        }
        let fits = (0.05..=MAX_QUIET_S).contains(&push.quiet_seconds);
        ensure!(fits, "[push] quiet-seconds: 0.05 to {MAX_QUIET_S}");
        ensure!(self.subject == Subject::Server, "[push] is for subject = \"server\"");
        ensure!(
            self.rate.is_none() && self.phase.is_empty() && self.find_axis(IDLE).is_none(),
            "[push] says what is sent and held: no [rate], no phases, no axis {IDLE:?} beside it"
        );
        ensure!(
            self.clients.is_none()
                && self.origin.is_none()
                && self.redis.is_none()
                && self.find_axis(REQUEST).is_none(),
            "[push] is of one server: no [clients], [origin], [redis] and [[request]]"
        );
        ensure!(self.budget.warmup_seconds == 0.0, "[push] has no warm-up: warmup-seconds = 0");
        let own = |flags: &Flags| OWN_FLAGS.iter().find(|flag| flags.contains_key(**flag)).copied();
        if let Some(flag) = own(&self.load) {
            anyhow::bail!("[load] {flag}: [push] and its axes say it");
        }
        ensure!(
            self.server.contains_key("hub"),
            "[server] hub is missing: which hub do subscribers connect to?"
        );
        for variant in &self.variant {
            let place = || format!("[[variant]] {:?}", variant.name);
            ensure!(
                variant.peer.is_none() && variant.tls.is_none(),
                "{}: [push] is for Pollux and for the floor, without TLS",
                place()
            );
            let to_all = [Value::Word("all".into())];
            let only_all = variant.only.get(UPDATES_TO).is_some_and(|only| only[..] == to_all);
            ensure!(
                variant.floor_of.is_none() || only_all,
                "{}: the floor has no topics: only = {{ updates-to = [\"all\"] }}",
                place()
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{find, tests::assert_mistakes};

    fn load(subscribers: f64, updates_to: &str) -> PushLoad {
        let push = Push {
            updates_per_second: 100.0,
            deliveries_per_second: 20_000.0,
            scanned_per_second: 2e6,
            scanned_at_most: Some(1e5),
            quiet_seconds: 0.3,
        };
        let point = Point::from([
            (SUBSCRIBERS.to_owned(), Value::Number(subscribers)),
            (UPDATES_TO.to_owned(), Value::Word(updates_to.into())),
        ]);
        push.load_at(&point, 1.0).unwrap()
    }

    #[test]
    fn the_dearer_an_update_is_the_fewer_there_are() {
        for (subscribers, updates_to, recipients, rate_rps) in [
            (1e3, "one", 1, 100.0),
            (1e5, "one", 1, 20.0),
            // Nothing scans so many.
            (1e6, "one", 1, 100.0),
            (50.0, "one-in-a-hundred", 1, 100.0),
            (1e4, "one-in-a-hundred", 100, 100.0),
            (1e3, "all", 1_000, 20.0),
            // Two updates in a window of one second.
            (1e5, "all", 100_000, 2.0),
        ] {
            let found = load(subscribers, updates_to);
            let expected = PushLoad { subscribers: subscribers as u64, recipients, rate_rps };
            assert_eq!(found, expected, "{subscribers} {updates_to}");
        }
        assert!(find("idle").unwrap().push.is_none());
    }

    #[test]
    fn mistakes_name_the_field() {
        let mistakes = [
            ("quiet-seconds = 0.3", "quiet-seconds = 0", "[push] quiet-seconds: 0.05 to 60"),
            ("updates-per-second = 100", "updates-per-second = 0", "[push] updates-per-second"),
            ("updates-per-second = 100", "updates-pre-second = 1", "unknown field `updates-pre-"),
            ("deliveries-per-second = 20000", "deliveries-per-second = -1", "[push] deliveries-"),
            ("scanned-per-second = 2000000", "scanned-per-second = 1e9", "[push] scanned-per-"),
            ("\"one-in-a-hundred\", ", "\"ten\", ", "\"updates-to\": ten: expected one, one-in"),
            (
                "values = [100, 1000,",
                "values = [0.5, 1000,",
                "\"subscribers\": 0.5: expected whole",
            ),
            ("name = \"updates-to\"", "name = \"updates\"", "needs the axes \"subscribers\" and"),
            ("\nhub = true", "\n", "[server] hub is missing"),
            ("[load]\n", "[load]\nrate = 5\n", "[load] rate: [push] and its axes say it"),
            ("only = { updates-to = [\"all\"] }", "only = { updates-to = [\"one\"] }", "no topics"),
            (
                "name = \"poll\"",
                "name = \"poll\"\npeer = \"nginx\"",
                "[push] is for Pollux and for the floor",
            ),
        ];
        assert_mistakes("push", &mistakes);
        let axis = ("name = \"idle\"", "name = \"subscribers\"", "are for [push]");
        assert_mistakes("idle", &[axis]);
    }
}
