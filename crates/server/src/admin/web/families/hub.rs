//! Metrics of a hub.

use super::{Family, Snapshot, by, counter, gauge, single};
use crate::stats::Counter;

/// The reasons for refused updates: the counter, and the value of the label.
const REFUSED: [(Counter, &str); 5] = [
    (Counter::HubInvalid, "invalid"),
    (Counter::HubUnauthorized, "unauthorized"),
    (Counter::HubTooLarge, "too_large"),
    (Counter::HubTooMany, "rate"),
    (Counter::HubUnavailable, "unavailable"),
];

/// The reasons for which the hub ends streams.
const ENDED: [(Counter, &str); 3] = [
    (Counter::HubEndedSlow, "slow"),
    (Counter::HubEndedToken, "token_expired"),
    (Counter::HubEndedLifetime, "lifetime"),
];

/// Appends the metrics, if there is a hub.
pub(super) fn families(snapshot: &Snapshot, all: &mut Vec<Family>) {
    let Some(hub) = &snapshot.statistics.hub else { return };
    let counts = &snapshot.statistics.counts;
    let labelled = |counters: &'static [(Counter, &'static str)]| {
        counters.iter().map(|(counter, name)| (*name, counts[*counter]))
    };
    all.extend([
        gauge(
            "pollux_hub_subscribers",
            "Subscribers that are connected: streams, and long polls that wait.",
            by("kind", [("stream", counts[Counter::Streams]), ("poll", counts[Counter::HubPolls])]),
        ),
        gauge(
            "pollux_hub_topic_sets",
            "Distinct sets of topics that the subscribers of a worker read, of all workers.",
            single(counts[Counter::HubTopicSets]),
        ),
        counter(
            "pollux_hub_updates_accepted",
            "Updates that were accepted from publishers.",
            single(counts[Counter::HubAccepted]),
        ),
        counter(
            "pollux_hub_updates_refused",
            "Updates that were refused, by reason.",
            by("reason", labelled(&REFUSED)),
        ),
        counter(
            "pollux_hub_deliveries",
            "Updates that were sent to subscribers, one for each subscriber.",
            single(counts[Counter::HubDelivered]),
        ),
        counter(
            "pollux_hub_skips",
            "Times that a subscriber missed updates, because they had left the history.",
            single(counts[Counter::HubSkips]),
        ),
        counter(
            "pollux_hub_subscribers_disconnected",
            "Streams that the hub has ended, by reason.",
            by("reason", labelled(&ENDED)),
        ),
        gauge("pollux_hub_history_updates", "Updates in the history.", single(hub.history_updates)),
        gauge(
            "pollux_hub_history_bytes",
            "Bytes of the updates in the history.",
            single(hub.history_bytes),
        ),
    ]);
    let Some(store) = hub.store else { return };
    all.extend([
        gauge(
            "pollux_hub_store_connected",
            "1 while the hub is connected to its Redis, otherwise 0.",
            single(store.is_connected.into()),
        ),
        counter(
            "pollux_hub_store_reconnections",
            "Times that the hub was connected to its Redis again after a failure.",
            single(store.reconnections),
        ),
    ]);
}
