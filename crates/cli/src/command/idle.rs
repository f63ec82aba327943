//! `pollux idle`.

use super::{
    load::{IdleKindName, header, usage_error},
    tls_client::TrustArgs,
};
use crate::{duration, print::print_with, sys::own_file_tables};
use anyhow::{Context, Result, anyhow, bail, ensure};
use pollux_load::{
    config::{IdleConfig, IdleKind},
    idle::{IdlePlan, IdleReport},
    output,
    ranks::{self, IdleTotals, MpiChoice, RanksReport},
    run as load,
    source::Sources,
    target::{RequestOptions, Url, check_authority, resolve},
    tls::TlsOptions,
};
use std::{
    io::Write,
    process::ExitCode,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

const EXAMPLES: &str = "\
Examples:
  # 8,000 connections that do nothing, until Ctrl-C
  pollux idle 127.0.0.1:8080 --connections 8000

  # 8,000 connections that stay open after one request each, for a minute
  pollux idle http://127.0.0.1:8080/a/page -c 8000 --kind after-request -z 1m

  # 10,000 idle TLS connections to a server with a self-signed certificate
  pollux idle https://127.0.0.1:8443/ -c 10000 --kind after-request --insecure

  # 10,000 subscribers of a hub
  pollux idle http://127.0.0.1:8080/ -c 10000 --subscribe

  # more connections than one source address has ports
  pollux idle 127.0.0.1:8080 --connections 100000 --source 127.0.1.0/24

Connections that the server drops are re-opened. If there are more connections
than the limit on descriptors (`ulimit -Hn`), several threads hold them, each
with a file table of its own.

Exit status: 0 when all connections were open at the end (after --duration, or
at the first SIGINT or SIGTERM), 1 when some were missing, 2 for a usage error.";

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The server: HOST:PORT, or the URL of the requests, http://HOST[:PORT]/PATH or
    /// https://HOST[:PORT]/PATH
    server: String,
    /// How many connections to hold
    #[arg(long, short = 'c', value_name = "N")]
    connections: usize,
    /// What each connection does before it becomes idle
    #[arg(long, value_enum, default_value = "connect")]
    kind: IdleKindName,
    /// Hold subscribers: each requests the event stream at the URL, once, and keeps it open. If the URL has
    /// no path, it is that of a Mercure hub, and the topic is `load`
    #[arg(long, conflicts_with = "kind")]
    subscribe: bool,
    /// How long to hold them [default: until SIGINT]
    #[arg(long, short = 'z', value_parser = duration::parse, value_name = "TIME")]
    duration: Option<Duration>,
    /// Source addresses: one, or a network such as 127.0.1.0/24 whose hosts are taken in turn
    #[arg(long, value_name = "NET")]
    source: Option<Sources>,
    /// The longest time for a handshake, and for the reply with --kind after-request
    #[arg(long, value_parser = duration::parse, default_value = "10s", value_name = "TIME")]
    timeout: Duration,
    /// Open at most this many connections per second, for a server with a short backlog [default: no limit,
    /// with at most 64 in progress per thread]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// The path of the requests [default: that of the URL, or /]
    #[arg(long)]
    path: Option<String>,
    /// A field for every request; may be given several times
    #[arg(long = "header", short = 'H', value_parser = header, value_name = "FIELD")]
    headers: Vec<(String, String)>,
    /// CPUs for the threads that hold the connections
    #[arg(long, value_delimiter = ',', value_name = "CPU,…")]
    pin: Vec<usize>,
    /// Whether the processes that mpirun or srun started form one pool: auto, off, or the MPI library to
    /// load [docs/cluster.md]
    #[arg(long, default_value = "auto", value_name = "CHOICE")]
    ranks: MpiChoice,
    #[command(flatten)]
    trust: TrustArgs,
    /// Re-opened connections resume TLS sessions instead of making full handshakes
    #[arg(long, help_heading = "TLS")]
    tls_resume: bool,
    /// Print a JSON line when all connections are open, and one at the end
    #[arg(long)]
    json: bool,
}

/// Returns the URL of the requests: `server` is a URL, or HOST:PORT.
fn url(server: &str, path: Option<&str>) -> Result<Url> {
    if let Some(path) = path {
        // Without the slash it would be a part of the host or of the port.
        ensure!(path.starts_with('/'), "--path {path}: a path begins with /");
    }
    if !server.contains("://") {
        check_authority(server)?;
        return format!("http://{server}{}", path.unwrap_or("/")).parse();
    }
    let url: Url = server.parse()?;
    match path {
        None => Ok(url),
        Some(path) => format!("{}{path}", url.origin()).parse(),
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if let Some(code) = ranks::supervise(&args.ranks)? {
        return Ok(ExitCode::from(code));
    }
    if args.timeout.is_zero() {
        return Ok(usage_error(&anyhow!("--timeout 0: every connection would fail")));
    }
    let mut request = RequestOptions { headers: args.headers, ..RequestOptions::default() };
    let mut kind = args.kind.into();
    if args.subscribe {
        kind = IdleKind::Subscribe;
        let is_accept = |(name, _): &(String, String)| name.eq_ignore_ascii_case("Accept");
        if !request.headers.iter().any(is_accept) {
            request.headers.push(("Accept".into(), "text/event-stream".into()));
        }
    }
    let mut url = match url(&args.server, args.path.as_deref())
        .and_then(|url| request.check().map(|()| url))
    {
        Ok(url) => url,
        Err(error) => return Ok(usage_error(&error)),
    };
    if args.subscribe && url.path == "/" {
        url.path = format!("{}?match=load", pollux_hub::topic::WELL_KNOWN);
    }
    let tls = TlsOptions { trust: args.trust.trust(), resumes: args.tls_resume, cipher: None };
    if let Err(error) = tls.check(std::iter::once(&url)) {
        return Ok(usage_error(&error));
    }
    let destination = resolve(&url.host, url.port, args.source)?;
    let plan = IdlePlan {
        config: IdleConfig { count: args.connections, kind },
        own_file_tables: Some(own_file_tables()),
        destination,
        sources: args.source,
        tls,
        url,
        request,
        timeout: args.timeout,
        rate: args.rate.map(f64::from),
        cpus: args.pin,
    };
    let stop = load::stop_on_signals()?;
    let ranks = ranks::join(&args.ranks, || ranks::idle_task(&plan, args.duration), &stop)?;
    let started_at = Instant::now();
    let on_held = |report| {
        // A lost standard output is no reason to close the connections.
        let _ = show("holding", report, started_at, false, None, args.json);
    };
    let Some(mut ranks) = ranks else {
        let report = load::hold_idle(&plan, args.duration, !args.json, &stop, on_held)?;
        show("statistics", report, started_at, stop.load(Ordering::Relaxed), None, args.json)?;
        return all_held(&report);
    };
    let held = ranks::hold_idle(&plan, args.duration, !args.json, &mut ranks, &stop, on_held)?;
    // Rank 0 reports for all ranks; the others have no totals.
    let Some(IdleTotals { idle, ranks, interrupted }) = held else { return Ok(ExitCode::SUCCESS) };
    show("statistics", idle, started_at, interrupted, Some(&ranks), args.json)?;
    match ranks.fault {
        Some(fault) => bail!("{fault}"),
        None => all_held(&idle),
    }
}

/// Returns success if all connections were open at the end.
fn all_held(report: &IdleReport) -> Result<ExitCode> {
    let IdleReport { wanted, held, .. } = report;
    if held < wanted {
        bail!("only {held} of {wanted} idle connections were open at the end");
    }
    Ok(ExitCode::SUCCESS)
}

/// The rate and the mean duration of the connections' TLS handshakes.
struct Handshakes {
    per_s: f64,
    /// Measured from the end of the TCP handshake.
    mean_us: f64,
}

impl Handshakes {
    /// Returns `None` if there was no handshake.
    fn of(report: &IdleReport, elapsed: Duration) -> Option<Self> {
        let count = (report.handshakes.full + report.handshakes.resumed) as f64;
        (count > 0.0).then(|| Self {
            per_s: count / elapsed.as_secs_f64(),
            mean_us: report.handshake_ns as f64 / 1e3 / count,
        })
    }
}

fn show(
    event: &str,
    report: IdleReport,
    started_at: Instant,
    interrupted: bool,
    ranks: Option<&RanksReport>,
    json: bool,
) -> Result<()> {
    print_with(|out| {
        if !json {
            output::text::idle(&report, out)?;
            if let Some(tls) = Handshakes::of(&report, started_at.elapsed()) {
                let mean_us = Some(tls.mean_us);
                output::text::handshakes(report.handshakes, tls.per_s, mean_us, out)?;
            }
            return ranks.map_or(Ok(()), |ranks| ranks.write(out));
        }
        let mut line = serde_json::json!({
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
        if let Some(tls) = Handshakes::of(&report, started_at.elapsed()) {
            line["tls"] = serde_json::json!({
                "handshakes": report.handshakes,
                "handshakes_per_s": tls.per_s,
                "handshake_us": { "mean": tls.mean_us },
            });
        }
        if let Some(ranks) = ranks {
            line["ranks"] = serde_json::to_value(ranks)?;
        }
        writeln!(out, "{line}")
    })
    .context("standard output")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_an_address_or_a_url() {
        let shown = |server, path| url(server, path).map(|url| url.to_string());
        assert_eq!(shown("h:81", None).unwrap(), "http://h:81/");
        assert_eq!(shown("[::1]:81", Some("/a")).unwrap(), "http://[::1]:81/a");
        assert_eq!(shown("http://h/a?b", None).unwrap(), "http://h/a?b");
        assert_eq!(shown("http://h:82/a", Some("/c")).unwrap(), "http://h:82/c");
        assert!(shown("h", None).unwrap_err().to_string().contains("HOST:PORT"));
        assert_eq!(shown("https://h/", Some("/a")).unwrap(), "https://h/a");
        for server in ["http://h/", "h:81"] {
            assert!(shown(server, Some(".net/")).unwrap_err().to_string().contains("--path .net/"));
        }
    }
}
