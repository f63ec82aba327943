//! The part of one rank in the work of all ranks.
//!
//! As with threads, the rate and the numbers of requests, connections and idle connections are
//! those of all ranks together. Threads and CPUs are those of each rank.

use crate::{
    config::{Config, IdleConfig, Pace, Share},
    schedule::{Lane, Length},
};
use anyhow::{Result, ensure};

/// Rank `rank`'s part of `total`.
pub(super) fn part(total: u64, rank: u32, size: u32) -> u64 {
    Lane { offset: rank.into(), stride: size.into() }.share(total)
}

/// The configuration of rank `rank` of `size`; `config` was checked.
///
/// # Errors
/// The configuration already has a share, or a number in it is smaller than the number of ranks.
pub(super) fn config(config: &Config, rank: u32, size: u32) -> Result<Config> {
    ensure!(
        config.share.count == 1,
        "--client: ranks share the schedule by themselves; leave it out"
    );
    let needs = |flag: &str, total: u64, each: u64| {
        ensure!(
            total >= each * u64::from(size),
            "{flag} {total}: {size} ranks share it and each needs at least {each}"
        );
        Ok(())
    };
    let connections = |flag: &str, total: Option<usize>| -> Result<Option<usize>> {
        let Some(total) = total else { return Ok(None) };
        needs(flag, total as u64, config.threads as u64)?;
        Ok(Some(part(total as u64, rank, size) as usize))
    };
    let length = match (config.pace, config.length) {
        // A schedule needs no division here; the number of requests of a closed loop does.
        (Pace::Closed, Length::Requests(total)) => {
            needs("--requests", total, 1)?;
            Length::Requests(part(total, rank, size))
        }
        (_, length) => length,
    };
    let idle = config
        .idle
        .map(|idle| IdleConfig { count: part(idle.count as u64, rank, size) as usize, ..idle });
    Ok(Config {
        share: Share { index: rank.into(), count: size.into() },
        connections: connections("--connections", config.connections)?,
        max_connections: connections("--max-connections", config.max_connections)?,
        length,
        idle: idle.filter(|idle| idle.count > 0),
        progress: config.progress && rank == 0,
        ..config.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn whole() -> Config {
        Config::new("http://127.0.0.1/".parse().unwrap(), 10.0, Duration::from_secs(1))
    }

    #[test]
    fn the_parts_are_the_whole() {
        let mut whole = whole();
        whole.connections = Some(10);
        whole.idle = Some(IdleConfig { count: 60_001, kind: crate::config::IdleKind::Connect });
        let parts: Vec<_> = (0..4).map(|rank| config(&whole, rank, 4).unwrap()).collect();
        let connections: Vec<_> = parts.iter().map(|part| part.connections.unwrap()).collect();
        assert_eq!(connections, [3, 3, 2, 2]);
        let idle: Vec<_> = parts.iter().map(|part| part.idle.unwrap().count).collect();
        assert_eq!(idle, [15_001, 15_000, 15_000, 15_000]);
        assert!(parts.iter().all(|part| part.length == whole.length), "the schedule is shared");
        let shares: Vec<_> = parts.iter().map(|part| part.share).collect();
        assert_eq!(shares[2], Share { index: 2, count: 4 });

        whole.pace = Pace::Closed;
        whole.length = Length::Requests(9);
        let requests: Vec<_> = (0..4).map(|rank| config(&whole, rank, 4).unwrap().length).collect();
        assert_eq!(requests, [3, 2, 2, 2].map(Length::Requests));
    }

    #[test]
    fn too_little_for_all_names_the_flag() {
        let reason = |change: fn(&mut Config)| {
            let mut whole = whole();
            change(&mut whole);
            config(&whole, 1, 4).unwrap_err().to_string()
        };
        assert!(reason(|c| c.connections = Some(3)).contains("--connections 3: 4 ranks"));
        assert!(reason(|c| c.max_connections = Some(3)).contains("--max-connections 3"));
        assert!(reason(|c| c.share = Share { index: 0, count: 2 }).contains("--client"));
        assert!(
            reason(|c| (c.pace, c.length) = (Pace::Closed, Length::Requests(3)))
                .contains("--requests 3")
        );
    }
}
