//! The caches of all sites, as the control socket and the statistics see them.

use pollux_cache::{Statistics, Store};
use std::sync::{Arc, Mutex};

/// The caches of all sites. A change of the configuration may replace them.
pub(crate) type SharedStores = Arc<Mutex<Stores>>;

/// The caches in use, and what those before them have counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stores {
    present: Vec<Store>,
    /// The counters of caches that are no longer in use. A counter that decreased would be taken for one of a new
    /// process, and its whole value would be counted once more.
    former: Statistics,
}

impl Stores {
    /// Returns the caches of a server that starts.
    pub(crate) fn shared(present: Vec<Store>) -> SharedStores {
        Arc::new(Mutex::new(Self { present, former: Statistics::default() }))
    }

    /// Returns the caches in use.
    pub(crate) fn present(&self) -> &[Store] {
        &self.present
    }

    /// Replaces the caches by `stores`, which may contain some of them.
    pub(crate) fn replace(&mut self, stores: Vec<Store>) {
        let is_former = |store: &&Store| !stores.iter().any(|other| other.is_same(store));
        for store in self.present.iter().filter(is_former) {
            self.former += store.statistics().without_present();
        }
        self.present = stores;
    }

    /// Returns the counters of all caches since the start of the server, added up; `None` if there is no cache now.
    pub(crate) fn statistics(&self) -> Option<Statistics> {
        let add = |mut sum: Statistics, one: Statistics| {
            sum += one;
            sum
        };
        let present = self.present.iter().map(Store::statistics).reduce(add)?;
        Some(add(present, self.former))
    }
}
