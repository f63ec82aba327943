//! Sessions: several requests on one connection, each some time after the previous reply.
//!
//! The starts of sessions follow the schedule, regardless of the server's behaviour. Within a session
//! the client waits for its reply and then for the think time, as httperf's `--wsess` and the papers'
//! clients do. A request within a session has an instant of its own, the end of the think time, and its
//! latency counts from that instant.

use std::time::Duration;

/// The form of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The number of its requests.
    pub requests: u64,
    /// The think time: from a reply to the next request.
    pub think: Duration,
}

/// The most requests of a session.
pub const MAX_REQUESTS: u64 = 1_000_000;

/// A session, prepared for the loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionPlan {
    pub(crate) requests: u64,
    pub(crate) think_ns: u64,
    /// Whether the end of the measured part ends all sessions. If the run is measured in requests, each
    /// session sends all of its requests.
    pub(crate) is_cut: bool,
}

/// The number of sessions by their end during the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sessions {
    /// All requests were answered.
    pub completed: u64,
    /// A request failed, or the server closed the connection before the last request.
    pub broken: u64,
    /// The measured part ended before the session.
    pub cut: u64,
}

impl Sessions {
    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: Self) {
        self.completed += other.completed;
        self.broken += other.broken;
        self.cut += other.cut;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Config, Pace},
        plan::Plan,
        schedule::{Arrivals, Length},
    };

    fn plan(seed: u64, requests: u64) -> Plan {
        let second = Duration::from_secs(1);
        let config = Config {
            pace: Pace::Open { rate_rps: 1_000.0, arrivals: Arrivals::Poisson },
            seed,
            session: Some(Session { requests, think: second }),
            ..Config::new("http://127.0.0.1/".parse().unwrap(), 1_000.0, 50 * second)
        };
        config.check().unwrap();
        Plan::new(&config, "127.0.0.1:80".parse().unwrap()).unwrap()
    }

    fn starts(plan: &Plan) -> Vec<u64> {
        let schedule = plan.schedule.as_ref().unwrap();
        (0..schedule.len()).map(|index| schedule.at(index).unwrap()).collect()
    }

    #[test]
    fn sessions_start_by_the_schedule_at_the_rate_that_makes_the_requests() {
        let five = plan(7, 5);
        // 10,000 expected; the standard deviation is 100.
        assert!((9_600..10_400).contains(&starts(&five).len()), "{}", starts(&five).len());
        assert_eq!(five.requests_per_connection, 5);
        assert_eq!(starts(&five), starts(&plan(7, 5)), "drawn from the seed");
        assert_ne!(starts(&five), starts(&plan(8, 5)));
        let single = plan(7, 1);
        assert!((49_000..51_000).contains(&starts(&single).len()));
    }

    #[test]
    fn what_contradicts_itself_names_the_flag() {
        let url = "http://127.0.0.1/";
        let config = |change: &dyn Fn(&mut Config)| {
            let second = Duration::from_secs(1);
            let mut config = Config::new(url.parse().unwrap(), 10.0, second);
            config.session = Some(Session { requests: 4, think: second });
            change(&mut config);
            config.check().map_err(|error| error.to_string())
        };
        assert_eq!(config(&|_| {}), Ok(()));
        assert_eq!(config(&|config| config.length = Length::Requests(8)), Ok(()));
        for (change, part) in [
            ((|c| c.session.as_mut().unwrap().requests = 0) as fn(&mut Config), "from 1 to"),
            (|c| c.length = Length::Requests(9), "not a multiple of --session-requests 4"),
            (|c| c.connections = Some(2), "leave --connections out"),
            (
                |c| c.request.headers = vec![("Connection".into(), "close".into())],
                "'Connection: close'",
            ),
            (|c| (c.pace, c.connections) = (Pace::Closed, None), "give --rate"),
        ] {
            let message = config(&change).unwrap_err();
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}
