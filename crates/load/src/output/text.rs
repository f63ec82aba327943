//! The summary, for people: no line is wider than the smallest terminal in use.

mod push;

pub use push::push;

use super::histogram;
use crate::{
    idle::IdleReport, outcome::Failure, report::Report, times::Times, tls::HandshakeCounts,
};
use std::io::{self, Write};

/// The width of the summary.
pub(super) const WIDTH: usize = 80;

/// The column at which a line that does not fit is continued.
const INDENT: usize = 13;

/// Writes the summary.
///
/// # Errors
/// The errors of the writer.
pub fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    counts(report, out)?;
    idle(&report.idle, out)?;
    errors(report, out)?;
    times(report, out)?;
    histogram::write(&report.latencies, out)?;
    let generator = &report.generator;
    let delay = generator.run_delay_share.map_or("?".into(), |share| format!("{:.0}", share * 1e2));
    writeln!(out)?;
    line(
        "generator",
        &format!(
            "{:.1} µs CPU a request; busy {:.0} %, on its CPU {:.0} %, kept from it {delay} %",
            generator.cpu_us_per_request,
            generator.busy_utilization * 1e2,
            generator.cpu_utilization * 1e2,
        ),
        out,
    )?;
    if let Some(ranks) = &report.ranks {
        ranks.write(out)?;
    }
    if report.interrupted {
        line("interrupted", "what was measured until then", out)?;
    }
    for note in &report.notes {
        line("NOTE", note, out)?;
    }
    if let Some(reason) = &report.latency_invalid_reason {
        line("LATENCY", &format!("INVALID: {reason}"), out)?;
    }
    if let Some(reason) = &report.invalid_reason {
        line("INVALID", reason, out)?;
    }
    Ok(())
}

/// The configuration and its result.
fn counts(report: &Report, out: &mut impl Write) -> io::Result<()> {
    line(&report.url, &format!("({})", report.address), out)?;
    let seconds = report.duration_s;
    let load = match report.offered_rps {
        Some(rate) => {
            format!("open loop, {rate} requests/s for {seconds:.1} s, seed {}", report.seed)
        }
        None => format!("closed loop for {seconds:.1} s"),
    };
    line("load", &load, out)?;
    let requests = &report.requests;
    let outcomes = format!(
        "{} scheduled, {} sent, {} completed, {} failed{}{}",
        requests.scheduled,
        requests.sent,
        requests.completed,
        requests.failed,
        some(requests.unsent, "unsent"),
        some(requests.unfinished, "unfinished"),
    );
    line("requests", &outcomes, out)?;
    let rate = &report.reply_rate_rps;
    // A second, or a run below one, which has nanoseconds.
    let sample_s = (rate.sample_s * 1e3).round() / 1e3;
    let rates = format!(
        "{:.1}/s in {:.1} s; each {sample_s} s: min {:.1} avg {:.1} max {:.1} stddev {:.1}",
        rate.mean, rate.over_s, rate.min, rate.avg, rate.max, rate.stddev
    );
    line("reply rate", &rates, out)?;
    let connections = &report.connections;
    let connected = format!(
        "{} opened{}{}",
        connections.opened,
        some(connections.failed, "failed"),
        some(connections.dropped_idle, "closed by the server while free"),
    );
    line("connections", &connected, out)?;
    if let Some(tls) = &report.tls {
        handshakes(tls.handshakes, tls.handshakes_per_s, None, out)?;
    }
    let sessions = &report.sessions;
    if sessions.completed + sessions.broken + sessions.cut > 0 {
        let ended = format!(
            "{} completed{}{}",
            sessions.completed,
            some(sessions.broken, "broken"),
            some(sessions.cut, "cut off by the end of the run"),
        );
        line("sessions", &ended, out)?;
    }
    let (content, all) = (bytes(report.content_bytes), bytes(report.bytes_received));
    line("received", &format!("{content} of content, {all} in all"), out)?;
    if report.statuses.keys().any(|status| !(200..300).contains(status)) {
        let statuses: Vec<_> =
            report.statuses.iter().map(|(status, count)| format!("{status}: {count}")).collect();
        line("statuses", &statuses.join(", "), out)?;
    }
    Ok(())
}

/// Writes `text` after `label`, in lines of at most [`WIDTH`] columns, broken at spaces.
fn line(label: &str, text: &str, out: &mut impl Write) -> io::Result<()> {
    let mut width = label.chars().count();
    write!(out, "{label}")?;
    if width < INDENT {
        write!(out, "{:1$}", "", INDENT - width)?;
        width = INDENT;
    }
    let mut is_first = width == INDENT;
    for word in text.split(' ') {
        let len = word.chars().count();
        let space = usize::from(!is_first);
        if !is_first && width + space + len > WIDTH {
            write!(out, "\n{:INDENT$}{word}", "")?;
            width = INDENT + len;
        } else {
            write!(out, "{:space$}{word}", "")?;
            width += space + len;
        }
        is_first = false;
    }
    writeln!(out)
}

/// Writes the number of TLS handshakes, their rate and, unless a table contains it, their mean time.
///
/// # Errors
/// The errors of the writer.
pub fn handshakes(
    counts: HandshakeCounts,
    per_s: f64,
    mean_us: Option<f64>,
    out: &mut impl Write,
) -> io::Result<()> {
    let HandshakeCounts { full, resumed } = counts;
    let mean = mean_us.map_or_else(String::new, |mean_us| format!("; {mean_us:.0} µs on average"));
    line("TLS", &format!("{full} full handshakes, {resumed} resumed; {per_s:.1}/s{mean}"), out)
}

/// Writes the state of the idle connections, if there were any.
///
/// # Errors
/// The errors of the writer.
pub fn idle(idle: &IdleReport, out: &mut impl Write) -> io::Result<()> {
    if idle.wanted == 0 {
        return Ok(());
    }
    let held = format!(
        "{} of {} held{}{}{}",
        idle.held,
        idle.wanted,
        some(idle.dropped, "dropped by the server"),
        some(idle.reopened, "re-opened"),
        some(idle.failed, "attempts failed"),
    );
    line("idle", &held, out)
}

fn errors(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for kind in Failure::ALL {
        let count = report.errors.get(kind.name()).copied().unwrap_or(0);
        if count == 0 {
            continue;
        }
        let bad = &report.bad_replies;
        let what = match kind {
            Failure::Status => "of a status that was not expected (--expect-status)".to_owned(),
            Failure::BadReply => format!(
                "bad reply ({} malformed, {} of an unexpected length)",
                bad.malformed, bad.length
            ),
            _ => kind.name().replace('_', " "),
        };
        let advice = kind.advice().map(|advice| format!(": {advice}")).unwrap_or_default();
        line("error", &format!("{count} {what}{advice}"), out)?;
    }
    if let Some(reason) = &report.first_other {
        line("other", &format!("the first: {reason}"), out)?;
    }
    if let Some(reason) = report.tls.as_ref().and_then(|tls| tls.first_error.as_ref()) {
        line("TLS error", &format!("the first: {reason}"), out)?;
    }
    if let Some(reason) = &report.bad_replies.first_malformed {
        line("malformed", &format!("the first: {reason}"), out)?;
    }
    Ok(())
}

const COLUMNS: [&str; 9] = ["mean", "min", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "max"];

fn times(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let has_failures = report.requests.failed > 0;
    let header = COLUMNS.map(|column| format!("{column:>7}")).concat();
    writeln!(out, "\n{:INDENT$}{header}", "")?;
    row("latency", &report.latency_us, out)?;
    if has_failures {
        row("with failed", &report.latency_with_failures_us, out)?;
    }
    row("service", &report.service_us, out)?;
    row("connect", &report.connect_us, out)?;
    if let Some(tls) = &report.tls {
        row("handshake", &tls.handshake_us, out)?;
    }
    row("lag (own)", &report.generator.lag_us, out)?;
    writeln!(
        out,
        "latency runs from the scheduled instant, service from the send; lag is the\n\
         generator's own"
    )?;
    if has_failures {
        writeln!(out, "with failed: each request that failed counts as the timeout, or more")?;
    }
    Ok(())
}

fn row(name: &str, times: &Times, out: &mut impl Write) -> io::Result<()> {
    if times.count == 0 {
        return Ok(());
    }
    let Times { mean, min, p50, p90, p95, p99, p99_9, p99_99, max, .. } = *times;
    let values =
        [mean, min, p50, p90, p95, p99, p99_9, p99_99, max].map(|us| format!("{:>7}", time(us)));
    writeln!(out, "{name:<INDENT$}{}", values.concat())
}

/// A time with three digits and its unit.
pub(super) fn time(us: f64) -> String {
    let (value, unit) = match us {
        _ if us < 999.5 => (us, "µs"),
        _ if us < 999_500.0 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    let decimals = match value {
        _ if value < 9.995 => 2,
        _ if value < 99.95 => 1,
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
        let shown: Vec<_> = [0.5, 12.34, 999.9, 1500.0, 45_670.0, 999_900.0, 2e6].map(time).into();
        assert_eq!(shown, ["0.50µs", "12.3µs", "1.00ms", "1.50ms", "45.7ms", "1.00s", "2.00s"]);
    }

    fn text(report: &Report) -> String {
        let mut out = Vec::new();
        write(report, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_invalid_run_and_its_errors_are_reported() {
        let mut report = crate::report::tests::empty();
        report.invalid_reason = Some("the generator was the bottleneck".into());
        report.errors.insert("no_ports", 7);
        report.errors.insert("bad_reply", 2);
        report.errors.insert("status", 5);
        report.bad_replies.malformed = 2;
        report.bad_replies.first_malformed = Some("too many header fields".into());
        report.reply_rate_rps.sample_s = 0.029_779_378;
        report.statuses.insert(404, 5);
        report.errors.insert("other", 1);
        report.first_other = Some("Network is unreachable (os error 101)".into());
        let text = text(&report);
        assert!(text.contains("other        the first: Network is unreachable"), "{text}");
        assert!(text.contains("INVALID      the generator was the bottleneck"), "{text}");
        assert!(text.contains("7 no ports: ") && text.contains("--source"), "{text}");
        assert!(text.contains("statuses     404: 5"), "{text}");
        assert!(text.contains("; each 0.03 s: min"), "{text}");
        assert!(text.contains("5 of a status that was not expected"), "{text}");
        assert!(text.contains("malformed    the first: too many header fields\n"), "{text}");
        assert!(!text.contains("latency  "), "no times without replies: {text}");
    }

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let mut report = crate::report::tests::empty();
        let long = "a sentence that a program wrote about the events of this run, and their reasons, \
                    and what to do next about it, such as to give it more of everything";
        report.url =
            "http://a-host-with-a-long-name.example.org:65535/a/path/of/some/length".into();
        report.address = "[2001:db8:1234:5678:9abc:def0:1234:5678]:65535".into();
        report.invalid_reason = Some(long.into());
        report.latency_invalid_reason = Some(long.into());
        report.notes = vec![long.into()];
        report.interrupted = true;
        for kind in Failure::ALL {
            report.errors.insert(kind.name(), 123_456_789);
        }
        report.statuses.extend((200..230).map(|status| (status, 1_000_000)));
        report.requests.failed = 1_234_567_890;
        (report.requests.unsent, report.requests.unfinished) = (123_456_789, 123_456_789);
        report.requests.scheduled = 12_345_678_901;
        report.offered_rps = Some(123_456_789.125);
        let times =
            Times { count: 9, mean: 999.4, p99_99: 999_400.0, max: 3.6e9, ..Times::default() };
        (report.latency_us, report.latency_with_failures_us) = (times, times);
        for ns in (1..60).map(|power| 1.6f64.powi(power) as u64) {
            report.latencies.saturating_record_n(ns, 100_000_000);
        }
        for line in text(&report).lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }
}
