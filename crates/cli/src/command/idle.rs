//! `pollux idle`.

use super::load::{IdleKindName, header};
use crate::duration;
use anyhow::{Context, Result};
use pollux_load::{
    config::IdleConfig,
    idle::{IdlePlan, IdleReport},
    output, run as load,
    source::Sources,
    target::{RequestOptions, Url, resolve_authority},
};
use std::{
    io::{self, Write},
    process::ExitCode,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

const EXAMPLES: &str = "\
Examples:
  # 8,000 connections that do nothing, until Ctrl-C
  pollux idle 127.0.0.1:8080 --connections 8000

  # kept alive after one request, for a minute
  pollux idle 127.0.0.1:8080 --connections 8000 --kind after-request --duration 1m

  # more than one source address has ports for
  pollux idle 127.0.0.1:8080 --connections 100000 --source 127.0.1.0/24

Connections that the server drops are re-opened. More than the limit on descriptors (`ulimit -Hn`)
are held by several threads, each with a file table of its own.";

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The server: HOST:PORT
    server: String,
    /// How many connections to hold
    #[arg(long, short = 'c', value_name = "N")]
    connections: usize,
    /// What they do before they fall silent
    #[arg(long, value_enum, default_value = "connect")]
    kind: IdleKindName,
    /// How long to hold them [default: until SIGINT]
    #[arg(long, value_parser = duration::parse, value_name = "TIME")]
    duration: Option<Duration>,
    /// Source addresses: one, or a network such as 127.0.1.0/24 whose hosts are taken in turn
    #[arg(long, value_name = "NET")]
    source: Option<Sources>,
    /// The longest time for a handshake, and for the reply with --kind after-request
    #[arg(long, value_parser = duration::parse, default_value = "10s", value_name = "TIME")]
    timeout: Duration,
    /// The path that requests ask for
    #[arg(long, default_value = "/")]
    path: String,
    /// A field for every request; may be given several times
    #[arg(long = "header", short = 'H', value_parser = header, value_name = "FIELD")]
    headers: Vec<(String, String)>,
    /// CPUs for the threads that hold the connections
    #[arg(long, value_delimiter = ',', value_name = "CPU,…")]
    pin: Vec<usize>,
    /// Print a JSON line when all are held, and one at the end
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let destination = resolve_authority(&args.server)?;
    let url: Url = format!("http://{}{}", args.server, args.path).parse()?;
    let request = RequestOptions { headers: args.headers, ..RequestOptions::default() };
    request.check()?;
    let plan = IdlePlan {
        config: IdleConfig { count: args.connections, kind: args.kind.into() },
        destination,
        sources: args.source,
        url,
        request,
        timeout: args.timeout,
        cpus: args.pin,
    };
    let stop = load::stop_on_signals()?;
    let started_at = Instant::now();
    let on_held = |report| {
        // A closed standard output is no reason to let go of the connections.
        let _ = show("holding", report, started_at, false, args.json);
    };
    let report = load::hold_idle(&plan, args.duration, !args.json, &stop, on_held)?;
    show("statistics", report, started_at, stop.load(Ordering::Relaxed), args.json)
        .context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn show(
    event: &str,
    report: IdleReport,
    started_at: Instant,
    interrupted: bool,
    json: bool,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        let line = serde_json::json!({
            "event": event,
            "wanted": report.wanted,
            "held": report.held,
            "opened": report.opened,
            "reopened": report.reopened,
            "dropped": report.dropped,
            "failed": report.failed,
            "elapsed_s": started_at.elapsed().as_secs_f64(),
            "interrupted": interrupted,
        });
        writeln!(out, "{line}")?;
    } else {
        output::text::idle(&report, &mut out)?;
    }
    out.flush()
}
