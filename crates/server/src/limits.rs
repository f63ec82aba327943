//! RLIMIT_NOFILE: raised as far as it goes, and what follows from it.

use crate::{application::site::OPEN_FILES_MAX, config::Config};
use pollux_sys as sys;
use rustix::process::{Resource, getrlimit};

/// Descriptors of a worker that are no connections: standard ones, listeners, the mechanism's
/// own, files that are just being opened; and the files that its cache holds open.
const RESERVED: usize = 64 + OPEN_FILES_MAX as usize;

/// Raises the soft limit of open files to the hard one. Returns the limit that holds now.
pub(crate) fn raise_open_files() -> usize {
    let limit = sys::raise_descriptor_limit().unwrap_or_else(|error| {
        let limit = getrlimit(Resource::Nofile).current;
        tracing::info!("the limit of open files stays at {limit:?}: {error}");
        limit.unwrap_or(u64::MAX)
    });
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// The connections of each worker.
pub(crate) fn connections_per_worker(config: &Config, open_files: usize) -> usize {
    match config.max_connections {
        Some(all) => all.div_ceil(config.workers),
        // A small limit is shared out: better few files open in the cache than no connection.
        None => {
            let tables = if config.own_file_tables.is_some() { 1 } else { config.workers };
            let mine = open_files / tables;
            let upstream = config.frontend.as_ref().map_or(0, |f| f.connections.get());
            mine.saturating_sub(RESERVED + upstream).max(mine / 2).max(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_left_for_the_files() {
        let mut config = Config::new(".");
        assert_eq!(connections_per_worker(&config, 20_000), 20_000 - RESERVED);
        assert_eq!(connections_per_worker(&config, 100), 50);
        config.workers = 3;
        assert_eq!(connections_per_worker(&config, 300), 50, "three share one table");
        config.max_connections = Some(10);
        assert_eq!(connections_per_worker(&config, 20_000), 4);
    }

    #[test]
    fn the_limit_is_the_hard_one_afterwards() {
        let raised = raise_open_files();
        assert_eq!(getrlimit(Resource::Nofile).current, Some(raised as u64));
        assert_eq!(getrlimit(Resource::Nofile).maximum, Some(raised as u64));
    }
}
