//! RLIMIT_NOFILE: raised as far as it goes, and what follows from it.

use crate::{architecture::Assignment, config::Config};
use pollux_sys as sys;
use rustix::process::{Resource, getrlimit};

/// Descriptors of one file table that are no connections: standard ones, listeners, the
/// mechanism's own, files that are just being opened.
const RESERVED: usize = 64;
/// The share of a small limit that caches may hold open: one in so many.
const OPEN_FILES_SHARE: usize = 8;
/// Descriptors of a unit that serves one connection: the connection, and a file that it sends or a
/// link to a store or an origin.
const OF_ONE: usize = 2;
/// Those of a unit in a pool: it has an epoll set, too.
const OF_POOL: usize = 3;

/// Raises the soft limit of open files to the hard one. Returns the limit that holds now.
pub(crate) fn raise_open_files() -> usize {
    let limit = sys::raise_descriptor_limit().unwrap_or_else(|error| {
        let limit = getrlimit(Resource::Nofile).current;
        tracing::info!("the limit of open files stays at {limit:?}: {error}");
        limit.unwrap_or(u64::MAX)
    });
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// The connections of worker `index`.
pub(crate) fn connections_of_worker(config: &Config, open_files: usize, index: usize) -> usize {
    match config.max_connections {
        // What does not divide goes to the first ones, so that all together have as many as were
        // asked for and no more.
        Some(all) => all / config.workers + usize::from(index < all % config.workers),
        None => room(config, share(config, open_files)),
    }
}

/// The units that have room in one file table, where each serves one connection at a time.
pub(crate) fn units(config: &Config, open_files: usize, assignment: Assignment) -> usize {
    let each = match assignment {
        Assignment::Pool(_) => OF_POOL,
        Assignment::One => OF_ONE,
    };
    (room(config, open_files) / each).max(1)
}

/// The files that the cache of each worker may hold open.
pub(crate) fn cached_files(config: &Config, open_files: usize) -> u64 {
    let share = (share(config, open_files) / OPEN_FILES_SHARE).max(1);
    config.site.open_files.min(share as u64)
}

/// A worker's share of the limit.
fn share(config: &Config, open_files: usize) -> usize {
    let tables = if config.own_file_tables.is_some() { 1 } else { config.workers };
    open_files / tables
}

/// What is left of `mine` for connections.
fn room(config: &Config, mine: usize) -> usize {
    let cached = usize::try_from(config.site.open_files).unwrap_or(usize::MAX);
    let upstream = config.frontend.as_ref().map_or(0, |frontend| frontend.connections.get());
    let reserved = RESERVED.saturating_add(cached).saturating_add(upstream);
    // A small limit is shared out: better few files open in the cache than no connection.
    mine.saturating_sub(reserved).max(mine / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_left_for_the_files() {
        let mut config = Config::new(".");
        assert_eq!(connections_of_worker(&config, 20_000, 0), 20_000 - 320);
        assert_eq!(connections_of_worker(&config, 100, 0), 50);
        assert_eq!([20_000, 100, 4].map(|all| cached_files(&config, all)), [256, 12, 1]);
        config.workers = 3;
        assert_eq!(connections_of_worker(&config, 300, 2), 50, "three share one table");
    }

    /// Before, three workers had four each of ten.
    #[test]
    fn workers_together_have_as_many_connections_as_were_asked_for() {
        let mut config = Config::new(".");
        config.workers = 3;
        for all in 3..20 {
            config.max_connections = Some(all);
            let each = [0, 1, 2].map(|index| connections_of_worker(&config, 20_000, index));
            assert_eq!(each.iter().sum::<usize>(), all, "{each:?}");
            assert!(each.iter().all(|&one| one > 0), "{each:?}");
        }
    }

    /// Before, each was counted as one descriptor.
    #[test]
    fn units_leave_room_for_what_each_of_them_opens() {
        let config = Config::new(".");
        for (assignment, each) in [(Assignment::One, 2), (Assignment::Pool(9), 3)] {
            for all in [64, 1_024, 20_000] {
                let units = units(&config, all, assignment);
                assert!(units * each < all && units * each + each > all / 2, "{units} of {all}");
            }
        }
    }

    #[test]
    fn the_limit_is_the_hard_one_afterwards() {
        let raised = raise_open_files();
        assert_eq!(getrlimit(Resource::Nofile).current, Some(raised as u64));
        assert_eq!(getrlimit(Resource::Nofile).maximum, Some(raised as u64));
    }
}
