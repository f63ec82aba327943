//! The figures that the workers of a hub share.

/// A hub's history and store at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubStatistics {
    /// Updates in the history.
    pub history_updates: u64,
    /// Their bytes.
    pub history_bytes: u64,
    /// The connection to Redis, if the history is kept there.
    pub store: Option<HubStoreStatistics>,
}

/// A hub's connection to Redis at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubStoreStatistics {
    /// Whether the hub receives what is published at other hubs.
    pub is_connected: bool,
    /// Times that it was connected again after a failure.
    pub reconnections: u64,
}

impl HubStatistics {
    /// Each figure with its key in the statistics.
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
