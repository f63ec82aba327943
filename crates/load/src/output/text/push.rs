//! The summary of a run with subscribers.

use super::{COLUMNS, INDENT, bytes, line, row, some};
use crate::{outcome::Failure, push::PushReport};
use std::io::{self, Write};

/// Writes the summary.
///
/// # Errors
/// The errors of the writer.
pub fn push(report: &PushReport, out: &mut impl Write) -> io::Result<()> {
    counts(report, out)?;
    errors(report, out)?;
    let header = COLUMNS.map(|column| format!("{column:>7}")).concat();
    writeln!(out, "\n{:INDENT$}{header}", "")?;
    row("delivery", &report.latency_us, out)?;
    row("last one", &report.fan_out_us, out)?;
    row("answer", &report.answer_us, out)?;
    row("reconnect", &report.reconnect_us, out)?;
    row("lag (own)", &report.generator.lag_us, out)?;
    writeln!(
        out,
        "all run from an update's scheduled instant: to each delivery, to the last one,\n\
         to the publisher's answer; lag is the generator's own"
    )?;
    if report.reconnect_us.count > 0 {
        writeln!(out, "reconnect runs from --reconnect-at to each subscriber's new stream")?;
    }
    writeln!(out)?;
    let generator = &report.generator;
    let delay = generator.run_delay_share.map_or("?".into(), |share| format!("{:.0}", share * 1e2));
    let own = format!(
        "{:.1} µs CPU a delivery; on its CPU {:.0} %, kept from it {delay} %",
        generator.cpu_us_per_delivery,
        generator.cpu_utilization * 1e2,
    );
    line("generator", &own, out)?;
    if let Some(ranks) = &report.ranks {
        ranks.write(out)?;
    }
    if report.interrupted {
        line("interrupted", "what was measured until then", out)?;
    }
    if let Some(reason) = &report.invalid_reason {
        line("INVALID", reason, out)?;
    }
    Ok(())
}

fn counts(report: &PushReport, out: &mut impl Write) -> io::Result<()> {
    line(&report.url, &format!("({})", report.address), out)?;
    let load = format!(
        "{} updates/s of {} bytes for {:.1} s",
        report.offered_rps, report.update_bytes, report.duration_s
    );
    line("load", &load, out)?;
    let held = &report.subscribers;
    let subscribers = format!(
        "{} at the start, {} at the end{}{}{}",
        held.at_start,
        held.at_end,
        some(held.dropped, "dropped by the server"),
        some(held.reopened, "connected again"),
        some(held.failed, "attempts failed"),
    );
    line("subscribers", &subscribers, out)?;
    let updates = &report.publications;
    let published = format!(
        "{} scheduled, {} sent, {} acknowledged{}",
        updates.scheduled,
        updates.sent,
        updates.acknowledged,
        some(updates.failed, "failed"),
    );
    line("updates", &published, out)?;
    let got = &report.deliveries;
    let deliveries = format!(
        "{} of {}: {} lost, {} duplicated, {} reordered, {} corrupt{}",
        got.delivered,
        got.expected,
        got.lost,
        got.duplicated,
        got.reordered,
        got.corrupt,
        some(got.foreign, "not of this run"),
    );
    line("deliveries", &deliveries, out)?;
    line("received", &bytes(report.bytes_received), out)
}

fn errors(report: &PushReport, out: &mut impl Write) -> io::Result<()> {
    for kind in Failure::ALL {
        let Some(count) = report.errors.get(kind.name()) else { continue };
        let what = match kind {
            Failure::ClosedEarly => "streams that ended".to_owned(),
            Failure::Status => "streams refused".to_owned(),
            _ => kind.name().replace('_', " "),
        };
        let advice = kind.advice().map(|advice| format!(": {advice}")).unwrap_or_default();
        line("error", &format!("{count} {what}{advice}"), out)?;
    }
    match &report.publications.first_failure {
        Some(reason) => line("failed", &format!("the first update: {reason}"), out),
        None => Ok(()),
    }
}
