//! The part of a report about the ranks of a run.

use super::{
    clock::ClockOffset,
    message::{Heartbeat, Identity},
};
use crate::{idle::IdleReport, outcome::Requests};
use serde::Serialize;
use std::{
    io::{self, Write},
    time::Duration,
};

/// How a rank's clocks compare with rank 0's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ClockComparison {
    /// The offset of its calendar clock from rank 0's before the start, positive if ahead. No figure
    /// depends on it.
    pub offset_us: f64,
    /// The error of the comparison, ±: its part of the schedule may be shifted against the others' by
    /// this much.
    pub error_us: f64,
    /// The time that its clock gained on rank 0's during the run, within ± both errors.
    pub drift_us: f64,
    /// The error of the comparison at the end.
    pub end_error_us: f64,
}

impl ClockComparison {
    pub(super) fn new((start, end): (ClockOffset, ClockOffset)) -> Self {
        let us = |ns: i64| ns as f64 / 1000.0;
        Self {
            // The internal offset is the value to add to get rank 0's clock, hence the sign. (Zero has
            // none.)
            offset_us: us(-start.calendar_ns),
            error_us: us(start.error_ns),
            drift_us: us(start.monotonic_ns - end.monotonic_ns),
            end_error_us: us(end.error_ns),
        }
    }

    /// The largest possible distance between its instants and rank 0's.
    fn spread_us(&self) -> f64 {
        self.error_us.max(self.drift_us.abs() - self.end_error_us)
    }
}

/// One rank.
#[derive(Clone, Debug, Serialize)]
pub struct RankReport {
    /// From 0.
    pub rank: u32,
    /// Its host's name.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Its requests; of a lost rank, those of its last heartbeat.
    pub requests: Requests,
    /// The 99th percentile of its lag.
    pub lag_p99_us: f64,
    /// The fraction of the time in which its busiest thread had work.
    pub busy_utilization: f64,
    /// Its clocks.
    pub clock: ClockComparison,
    /// Its delay after the common start, because the start message arrived late.
    pub late_us: f64,
    /// Its idle connections.
    pub idle: IdleReport,
    /// The reason why its own figures do not describe the server.
    pub invalid_reason: Option<String>,
    /// The reason why the rank was lost; only its last heartbeat is known then.
    pub lost: Option<String>,
}

impl RankReport {
    /// A rank that only held idle connections.
    pub(super) fn idle(
        rank: u32,
        host: &str,
        pid: u32,
        clock: ClockComparison,
        idle: IdleReport,
    ) -> Self {
        let none =
            Requests { scheduled: 0, sent: 0, completed: 0, failed: 0, unsent: 0, unfinished: 0 };
        Self {
            rank,
            host: host.to_owned(),
            pid,
            requests: none,
            lag_p99_us: 0.0,
            busy_utilization: 0.0,
            clock,
            late_us: 0.0,
            idle,
            invalid_reason: None,
            lost: None,
        }
    }

    /// A lost rank, with the reason.
    pub(super) fn lost(identity: &Identity, heartbeat: Heartbeat, why: String) -> Self {
        let requests = Requests {
            scheduled: heartbeat.sent,
            sent: heartbeat.sent,
            completed: heartbeat.completed,
            failed: heartbeat.failed,
            unsent: 0,
            unfinished: heartbeat.sent.saturating_sub(heartbeat.completed + heartbeat.failed),
        };
        Self {
            requests,
            lost: Some(why),
            ..Self::idle(
                identity.rank,
                &identity.host,
                identity.pid,
                ClockComparison::default(),
                heartbeat.idle,
            )
        }
    }
}

/// The ranks of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RanksReport {
    /// The launcher.
    pub launcher: &'static str,
    /// The MPI library that connected them.
    pub library: String,
    /// The number of ranks.
    pub count: u32,
    /// The reason why the run ended early, with the rank. No other figure includes the measurements of
    /// a lost rank.
    pub fault: Option<String>,
    /// One entry per rank.
    pub members: Vec<RankReport>,
}

impl RanksReport {
    /// The reason why the run does not describe the server because of a single rank: one slow rank of
    /// many is hardly visible in the total.
    pub(super) fn invalid_reason(&self, max_lag: Duration) -> Option<String> {
        if let Some(fault) = &self.fault {
            return Some(format!("{fault}; the run ended there, and its part is missing"));
        }
        let max_lag_us = max_lag.as_nanos() as f64 / 1000.0;
        self.members.iter().find_map(|member| {
            let RankReport { rank, host, clock, late_us, .. } = member;
            if let Some(reason) = &member.invalid_reason {
                return Some(format!("rank {rank} ({host}): {reason}"));
            }
            if *late_us > max_lag_us {
                return Some(format!(
                    "rank {rank} ({host}) began {late_us:.0} µs after the common start, above --max-lag \
                     {max_lag_us:.0} µs: it learned of the start too late"
                ));
            }
            (clock.spread_us() > max_lag_us).then(|| {
                format!(
                    "rank {rank} ({host}) may have been {:.0} µs beside rank 0's clock, above \
                     --max-lag {max_lag_us:.0} µs: its part of the schedule was not where it belongs",
                    clock.spread_us()
                )
            })
        })
    }

    /// Writes one line per rank.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "ranks        {} by {}, {}", self.count, self.launcher, self.library)?;
        writeln!(
            out,
            "{:>4} {:<16}{:>9}{:>9}{:>7}{:>8}{:>10} clock",
            "rank", "host", "sent", "done", "failed", "idle", "lag p99"
        )?;
        for member in &self.members {
            let RankReport { rank, host, requests, clock, idle, .. } = member;
            let host: String = host.chars().take(15).collect();
            write!(
                out,
                "{rank:>4} {host:<16}{:>9}{:>9}{:>7}{:>8}",
                requests.sent, requests.completed, requests.failed, idle.held
            )?;
            match &member.lost {
                Some(why) => writeln!(out, "  LOST: {why}")?,
                None => writeln!(
                    out,
                    "{:>8.0}µs {:+.0} ± {:.0} µs",
                    member.lag_p99_us, clock.offset_us, clock.error_us
                )?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rank: u32) -> RankReport {
        RankReport::idle(rank, "host", 7, ClockComparison::default(), IdleReport::default())
    }

    fn ranks(members: Vec<RankReport>, fault: Option<&str>) -> RanksReport {
        RanksReport {
            launcher: "mpirun",
            library: "MPI".into(),
            count: members.len() as u32,
            fault: fault.map(str::to_owned),
            members,
        }
    }

    #[test]
    fn one_bad_rank_makes_the_run_invalid_and_is_named() {
        let max_lag = Duration::from_millis(5);
        let reason = |ranks: RanksReport| ranks.invalid_reason(max_lag).unwrap_or_default();
        assert_eq!(reason(ranks(vec![member(0), member(1)], None)), "");
        let slow = RankReport { invalid_reason: Some("too slow".into()), ..member(1) };
        assert_eq!(reason(ranks(vec![member(0), slow], None)), "rank 1 (host): too slow");
        let late = |late_us| RankReport { late_us, ..member(1) };
        assert_eq!(reason(ranks(vec![member(0), late(5000.0)], None)), "");
        let missed = reason(ranks(vec![member(0), late(5001.0)], None));
        assert!(missed.starts_with("rank 1 (host) began 5001 µs after"), "{missed}");
        let far = ClockComparison { error_us: 5001.0, ..ClockComparison::default() };
        let far = RankReport { clock: far, ..member(1) };
        assert!(reason(ranks(vec![member(0), far], None)).contains("5001 µs beside"));
        // The error of the comparison explains this drift.
        let drift = |drift_us| ClockComparison {
            drift_us,
            end_error_us: 2000.0,
            ..ClockComparison::default()
        };
        let drifted = |drift_us| RankReport { clock: drift(drift_us), ..member(1) };
        assert_eq!(reason(ranks(vec![drifted(6000.0)], None)), "");
        assert!(reason(ranks(vec![drifted(-8000.0)], None)).contains("6000 µs beside"));
        assert!(
            reason(ranks(vec![member(0)], Some("rank 1 was lost"))).contains("rank 1 was lost")
        );
    }

    #[test]
    fn lines_fit_a_terminal() {
        let requests = Requests {
            scheduled: 12_345_678,
            sent: 12_345_678,
            completed: 12_345_678,
            failed: 123_456,
            unsent: 0,
            unfinished: 0,
        };
        let wide = RankReport { requests, host: "a-very-long-host-name".into(), ..member(1023) };
        let mut out = Vec::new();
        ranks(vec![wide], None).write(&mut out).unwrap();
        for line in String::from_utf8(out).unwrap().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
