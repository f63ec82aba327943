//! RLIMIT_NOFILE: raises the limit as far as possible, and derives other limits from it.

use crate::{
    architecture::Assignment,
    config::{Store, StoreConnections},
    settings::Settings,
};
use pollux_guestbook::redis::Address;
use pollux_sys as sys;
use rustix::process::{Resource, getrlimit};
use std::net::IpAddr;

/// Descriptors of one file table that are not connections: the standard ones, the listeners, those
/// of the mechanism, and files that are being opened.
const RESERVED: usize = 64;
/// The cache of files may hold 1 / `OPEN_FILES_SHARE` of a small limit open.
const OPEN_FILES_SHARE: usize = 8;
/// Descriptors of a worker that serves one connection: the connection, and a file that it sends or
/// an upstream connection to a store or an origin.
const OF_ONE: usize = 2;
/// The maximum number of bytes of files that a worker of one connection caches for later requests.
pub(crate) const CACHE_OF_ONE: u64 = 1 << 20;
/// The maximum number of threads that a system can have (PID_MAX_LIMIT of Linux), and so of workers that serve one
/// connection each.
pub(crate) const TASKS_MAX: usize = 1 << 22;
/// Descriptors of a worker in a pool: it also has an epoll set.
const OF_POOL: usize = 3;

/// Raises the soft limit of open files to the hard limit. Returns the limit that is now in effect.
pub(crate) fn raise_open_files() -> usize {
    let limit = sys::raise_descriptor_limit().unwrap_or_else(|error| {
        let limit = getrlimit(Resource::Nofile).current;
        tracing::info!("the limit of open files stays at {limit:?}: {error}");
        limit.unwrap_or(u64::MAX)
    });
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Returns the maximum number of connections of worker `index`.
pub(crate) fn connections_of_worker(config: &Settings, open_files: usize, index: usize) -> usize {
    match config.max_connections {
        // The first workers get one connection more each until the remainder is used up, so that
        // the sum is exactly the configured number.
        Some(all) => all / config.workers + usize::from(index < all % config.workers),
        None => {
            let (pool, of_client) = links_to_store(config);
            let more = pool.saturating_add(other_directories(config));
            (room(config, share(config, open_files), more) / of_client).max(1)
        }
    }
}

/// Returns two numbers: the connections that a worker keeps to the store of a guestbook, and the
/// descriptors for each client, which may need its own connection to the store. One site at most has a guestbook.
fn links_to_store(config: &Settings) -> (usize, usize) {
    let guestbook = config.guestbooks().next();
    match guestbook.map(|guestbook| (&guestbook.store, guestbook.connections)) {
        Some((Store::Redis(_), StoreConnections::Pooled(most))) => (most.get(), 1),
        Some((Store::Redis(_), StoreConnections::PerRequest)) => (0, 2),
        Some((Store::File(_), _)) | None => (0, 1),
    }
}

/// Returns how many descriptors a worker may open for its store besides an upstream connection: the
/// other end of a file's notifier, or both ends of the notifier that reports a resolved name.
fn more_for_store(config: &Settings) -> usize {
    match config.guestbooks().next().map(|guestbook| &guestbook.store) {
        Some(Store::File(_)) => 1,
        Some(Store::Redis(url)) => match &url.address {
            Address::Tcp(host, _) if host.parse::<IpAddr>().is_err() => 2,
            Address::Tcp(..) | Address::Unix(_) => 0,
        },
        None => 0,
    }
}

/// Returns how many directories a worker holds open besides that of the default site. Threads share that one, and
/// for other workers it is in the reserve.
fn other_directories(config: &Settings) -> usize {
    config.hosts.iter().filter(|host| host.site.directory.is_some()).count()
}

/// Returns how many workers that serve one connection at a time have enough descriptors in one
/// table.
pub(crate) fn workers(config: &Settings, open_files: usize, assignment: Assignment) -> usize {
    let each = match assignment {
        Assignment::Pool(_) => OF_POOL,
        Assignment::One => OF_ONE,
    };
    (room(config, open_files, 0) / (each + more_for_store(config) + other_directories(config)))
        .max(1)
}

/// Returns how many files the cache of each worker may hold open.
pub(crate) fn cached_files(config: &Settings, open_files: usize) -> u64 {
    let share = (share(config, open_files) / OPEN_FILES_SHARE).max(1);
    config.site.open_files.min(share as u64)
}

/// Returns a worker's share of the limit.
fn share(config: &Settings, open_files: usize) -> usize {
    let tables = if config.own_tables_of_workers().is_some() { 1 } else { config.workers };
    open_files / tables
}

/// Returns how many of `mine` descriptors are left for connections after the reserve, the cached
/// files, the upstream connections, and `more` others.
fn room(config: &Settings, mine: usize, more: usize) -> usize {
    // The default site may hold all of its files open, and the others hold theirs in addition.
    let of_others = config.open_files_of_host().saturating_mul(config.hosts.len() as u64);
    let cached = config.site.open_files.saturating_add(of_others);
    let cached = usize::try_from(cached).unwrap_or(usize::MAX);
    // Each site has its own connections to its origins.
    let upstream = config
        .frontends()
        .flatten()
        .fold(0_usize, |sum, frontend| sum.saturating_add(frontend.connections.get()));
    let reserved = RESERVED.saturating_add(cached).saturating_add(upstream).saturating_add(more);
    // A small limit is divided: it is better to cache fewer open files than to serve no connection.
    mine.saturating_sub(reserved).max(mine / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{FrontendConfig, GuestbookConfig, VirtualHost};
    use std::{num::NonZeroUsize, sync::Arc};

    #[test]
    fn something_is_left_for_the_files() {
        let mut config = Settings::new(".");
        assert_eq!(connections_of_worker(&config, 20_000, 0), 20_000 - 320);
        assert_eq!(connections_of_worker(&config, 100, 0), 50);
        assert_eq!([20_000, 100, 4].map(|all| cached_files(&config, all)), [256, 12, 1]);
        config.workers = 3;
        assert_eq!(connections_of_worker(&config, 300, 2), 50, "three share one table");
    }

    /// Regression: three workers had four connections each when ten were configured.
    #[test]
    fn workers_together_have_as_many_connections_as_configured() {
        let mut config = Settings::new(".");
        config.workers = 3;
        for all in 3..20 {
            config.max_connections = Some(all);
            let each = [0, 1, 2].map(|index| connections_of_worker(&config, 20_000, index));
            assert_eq!(each.iter().sum::<usize>(), all, "{each:?}");
            assert!(each.iter().all(|&one| one > 0), "{each:?}");
        }
    }

    /// Regression: each worker was counted as one descriptor.
    #[test]
    fn workers_leave_room_for_what_each_of_them_opens() {
        let config = Settings::new(".");
        for (assignment, each) in [(Assignment::One, 2), (Assignment::Pool(9), 3)] {
            for all in [64, 1_024, 20_000] {
                let workers = workers(&config, all, assignment);
                assert!(
                    workers * each < all && workers * each + each > all / 2,
                    "{workers} of {all}"
                );
            }
        }
    }

    #[test]
    fn connections_to_a_store_have_descriptors() {
        let with = |store: &str, connections: &str| {
            let mut config = Settings::new(".");
            let mut guestbook = GuestbookConfig::new("/g", store.parse().unwrap());
            guestbook.connections = connections.parse().unwrap();
            config.guestbook = Some(Arc::new(guestbook));
            config
        };
        let pooled = with("redis://a", "pooled:1000");
        assert_eq!(connections_of_worker(&pooled, 20_000, 0), 20_000 - 320 - 1000);
        let per_request = with("redis://a", "per-request");
        assert_eq!(connections_of_worker(&per_request, 20_000, 0), (20_000 - 320) / 2);
        assert_eq!(connections_of_worker(&per_request, 100, 0), 25);
        for (store, each) in [("redis://127.0.0.1", 2), ("redis://a", 4), ("file:x", 3)] {
            let config = with(store, "one");
            assert_eq!(workers(&config, 20_000, Assignment::One), (20_000 - 320) / each, "{store}");
        }
    }

    /// Regression: the origins, the guestbook, the open files and the directory of the default site alone had
    /// descriptors.
    #[test]
    fn what_every_site_opens_has_descriptors() {
        let mut config = Settings::new(".");
        let origins = |connections| {
            let mut frontend = FrontendConfig::new(vec!["http://a".parse().unwrap()]);
            frontend.connections = NonZeroUsize::new(connections).unwrap();
            Some(Arc::new(frontend))
        };
        let host = |frontend, guestbook| VirtualHost {
            frontend,
            guestbook,
            ..VirtualHost::new(&["a.example"], config.site.clone())
        };
        let mut guestbook = GuestbookConfig::new("/g", "redis://127.0.0.1".parse().unwrap());
        guestbook.connections = "pooled:100".parse().unwrap();
        let hosts = vec![host(origins(1000), None), host(None, Some(Arc::new(guestbook)))];
        config.hosts = hosts;
        // Two of three sites hold a third of 256 files open each, besides the default one, and a directory.
        let left = 20_000 - 320 - 2 * (256 / 3 + 1);
        assert_eq!(connections_of_worker(&config, 20_000, 0), left - 1000 - 100);
        config.frontend = origins(2000);
        assert_eq!(connections_of_worker(&config, 20_000, 0), left - 3000 - 100);
        config.hosts[1].site.directory = None;
        assert_eq!(connections_of_worker(&config, 20_000, 0), left - 3000 - 100 + 1);
    }

    /// Regression: threads had too few descriptors for the directories that each of them opens, and connections were
    /// closed unserved in place of waiting.
    #[test]
    fn the_directories_of_all_sites_have_descriptors_in_every_thread() {
        let mut config = Settings::new(".");
        config.hosts = vec![VirtualHost::new(&[], config.site.clone()); 8];
        let left = 20_000 - 320 - 8 * (256 / 9);
        assert_eq!(workers(&config, 20_000, Assignment::One), left / (2 + 8));
        assert_eq!(workers(&config, 20_000, Assignment::Pool(64)), left / (3 + 8));
    }

    #[test]
    fn the_limit_is_the_hard_one_afterwards() {
        let raised = raise_open_files();
        assert_eq!(getrlimit(Resource::Nofile).current, Some(raised as u64));
        assert_eq!(getrlimit(Resource::Nofile).maximum, Some(raised as u64));
    }
}
