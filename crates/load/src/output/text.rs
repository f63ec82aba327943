//! The summary, for people.

use crate::{
    idle::IdleReport,
    outcome::Failure,
    report::{Report, Times},
};
use std::io::{self, Write};

/// Writes the summary.
///
/// # Errors
/// The writer's.
pub fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let requests = &report.requests;
    match report.offered_rps {
        Some(rate) => writeln!(
            out,
            "{} ({}), open loop, {rate} requests/s for {:.1} s, seed {}",
            report.url, report.address, report.duration_s, report.seed
        )?,
        None => writeln!(
            out,
            "{} ({}), closed loop for {:.1} s",
            report.url, report.address, report.duration_s
        )?,
    }
    writeln!(
        out,
        "requests     {} scheduled, {} sent, {} completed, {} failed{}{}",
        requests.scheduled,
        requests.sent,
        requests.completed,
        requests.failed,
        some(requests.unsent, "unsent"),
        some(requests.unfinished, "unfinished"),
    )?;
    let rate = &report.reply_rate_rps;
    writeln!(
        out,
        "reply rate   mean {:.1}/s   min {:.1}  avg {:.1}  max {:.1}  stddev {:.1}  ({} samples)",
        rate.mean,
        rate.min,
        rate.samples.iter().sum::<f64>() / rate.samples.len().max(1) as f64,
        rate.max,
        rate.stddev,
        rate.samples.len()
    )?;
    let connections = &report.connections;
    writeln!(
        out,
        "connections  {} opened{}{}",
        connections.opened,
        some(connections.failed, "failed"),
        some(connections.dropped_idle, "closed by the server while free"),
    )?;
    let sessions = &report.sessions;
    if sessions.completed + sessions.broken + sessions.cut > 0 {
        writeln!(
            out,
            "sessions     {} completed{}{}",
            sessions.completed,
            some(sessions.broken, "broken"),
            some(sessions.cut, "cut off by the end of the run"),
        )?;
    }
    writeln!(
        out,
        "received     {} of content, {} in all",
        bytes(report.content_bytes),
        bytes(report.bytes_received)
    )?;
    idle(&report.idle, out)?;
    errors(report, out)?;

    writeln!(out, "\n{:<12}{}", "", header())?;
    line("latency", &report.latency_us, out)?;
    line("service", &report.service_us, out)?;
    line("connect", &report.connect_us, out)?;
    line("lag (own)", &report.generator.lag_us, out)?;
    writeln!(
        out,
        "latency runs from the scheduled instant, service from the send; lag is the generator's own"
    )?;
    writeln!(
        out,
        "\ngenerator    {:.1} µs CPU a request, busy for {:.0} % of the time ({:.0} % of its CPU with \
         the waiting)",
        report.generator.cpu_us_per_request,
        report.generator.busy_utilization * 100.0,
        report.generator.cpu_utilization * 100.0
    )?;
    if report.interrupted {
        writeln!(out, "interrupted: what was measured until then")?;
    }
    if let Some(reason) = &report.invalid_reason {
        writeln!(out, "INVALID: {reason}")?;
    }
    Ok(())
}

/// Writes how idle connections stand, if there were any.
///
/// # Errors
/// The writer's.
pub fn idle(idle: &IdleReport, out: &mut impl Write) -> io::Result<()> {
    if idle.wanted == 0 {
        return Ok(());
    }
    writeln!(
        out,
        "idle         {} of {} held{}{}{}",
        idle.held,
        idle.wanted,
        some(idle.dropped, "dropped by the server"),
        some(idle.reopened, "re-opened"),
        some(idle.failed, "attempts failed"),
    )
}

fn errors(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for kind in Failure::ALL {
        let count = report.errors.get(kind.name()).copied().unwrap_or(0);
        if count == 0 {
            continue;
        }
        write!(out, "error        {count} {}", kind.name().replace('_', " "))?;
        if kind == Failure::BadReply {
            let bad = &report.bad_replies;
            write!(
                out,
                " ({} malformed, {} of an unexpected status, {} of an unexpected length)",
                bad.malformed, bad.status, bad.length
            )?;
        }
        match kind.advice() {
            Some(advice) => writeln!(out, ": {advice}")?,
            None => writeln!(out)?,
        }
    }
    if let Some(reason) = &report.bad_replies.first_malformed {
        writeln!(out, "malformed    the first: {reason}")?;
    }
    if report.bad_replies.status > 0 {
        let statuses: Vec<_> =
            report.statuses.iter().map(|(status, count)| format!("{status}: {count}")).collect();
        writeln!(out, "statuses     {}", statuses.join(", "))?;
    }
    Ok(())
}

const COLUMNS: [&str; 9] = ["mean", "min", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "max"];

fn header() -> String {
    COLUMNS.map(|column| format!("{column:>9}")).concat()
}

fn line(name: &str, times: &Times, out: &mut impl Write) -> io::Result<()> {
    if times.count == 0 {
        return Ok(());
    }
    let Times { mean, min, p50, p90, p95, p99, p99_9, p99_99, max, .. } = *times;
    let values =
        [mean, min, p50, p90, p95, p99, p99_9, p99_99, max].map(|us| format!("{:>9}", time(us)));
    writeln!(out, "{name:<12}{}", values.concat())
}

/// A time with three digits and its unit.
fn time(us: f64) -> String {
    let (value, unit) = match us {
        _ if us < 1000.0 => (us, "µs"),
        _ if us < 1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    let decimals = match value {
        _ if value < 10.0 => 2,
        _ if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{unit}")
}

fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}

fn some(count: u64, what: &str) -> String {
    if count == 0 { String::new() } else { format!(", {count} {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        let shown: Vec<_> = [0.5, 12.34, 999.9, 1500.0, 45_670.0, 2e6].map(time).to_vec();
        assert_eq!(shown, ["0.50µs", "12.3µs", "1000µs", "1.50ms", "45.7ms", "2.00s"]);
    }

    #[test]
    fn an_invalid_run_and_its_errors_are_told() {
        let mut report = crate::report::tests::empty();
        report.invalid_reason = Some("the generator was the bottleneck".into());
        report.errors.insert("no_ports", 7);
        report.errors.insert("bad_reply", 2);
        report.bad_replies.status = 2;
        report.bad_replies.first_malformed = Some("too many header fields".into());
        report.statuses.insert(503, 2);
        let mut out = Vec::new();
        write(&report, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("INVALID: the generator was the bottleneck"), "{text}");
        assert!(text.contains("7 no ports: ") && text.contains("--source"), "{text}");
        assert!(text.contains("statuses     503: 2"), "{text}");
        assert!(text.contains("malformed    the first: too many header fields\n"), "{text}");
        assert!(!text.contains("latency  "), "no times without replies: {text}");
    }
}
