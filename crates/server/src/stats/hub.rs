//! The statistics of a hub that its workers share.

/// The state of a hub's history and store at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubStatistics {
    /// The number of updates in the history.
    pub history_updates: u64,
    /// The size of these updates in bytes.
    pub history_bytes: u64,
    /// The state of the connection to Redis, if the history is kept there.
    pub store: Option<HubStoreStatistics>,
}

/// The state of a hub's connection to Redis at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubStoreStatistics {
    /// Whether the hub receives updates that are published at other hubs.
    pub is_connected: bool,
    /// The number of times that it was connected again after a failure.
    pub reconnections: u64,
}

impl HubStatistics {
    /// Returns each value with its key in the statistics.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let store = self.store.map(|store| {
            [
                ("store_connected", store.is_connected.into()),
                ("store_reconnections", store.reconnections),
            ]
        });
        [("history_updates", self.history_updates), ("history_bytes", self.history_bytes)]
            .into_iter()
            .chain(store.into_iter().flatten())
    }
}
