//! `pollux load`.

mod push;

use super::tls_client::TlsLoadArgs;
use crate::{duration, message::say, print::print_with, sys::own_file_tables};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use pollux_load::{
    Config, EXIT_INVALID, EXIT_NOTHING,
    config::{AtLimit, Closing, Expectation, IdleConfig, IdleKind, Pace, Share},
    output,
    ranks::{self, MpiChoice, Ranks},
    schedule::{Arrivals, Length},
    session::Session,
    source::Sources,
    target::{RequestOptions, Targets, Url},
};
use std::{
    fs,
    io::{self, StdoutLock},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

const EXAMPLES: &str = "\
Examples:
  # 1,000 requests a second for 10 s, a connection each
  pollux load http://127.0.0.1:8080/ --rate 1000

  # the same at random instants, with 8,000 idle connections held meanwhile
  pollux load http://127.0.0.1:8080/ --rate 1000 --arrivals poisson --idle 8000

  # the same mean rate in bursts of 500 requests
  pollux load http://127.0.0.1:8080/ --rate 1000 --burst 500 --max-lag 100ms

  # a schedule over 64 connections that are kept alive, after 2 s of warm-up
  pollux load http://127.0.0.1:8080/ --rate 20000 --connections 64 --warm-up 2s

  # sessions: 5 requests on a connection, each 20 ms after the last reply
  pollux load http://127.0.0.1/ -q 1000 --session-requests 5 --think-time 20ms

  # how much the server can take: 64 connections, each as fast as it is answered
  pollux load http://127.0.0.1:8080/ --connections 64 --duration 5s

  # the same in the flags of oha and hey, and 10,000 requests at 500 a second
  pollux load -c 64 -z 5s http://127.0.0.1:8080/
  pollux load -n 10000 -q 500 http://127.0.0.1:8080/

  # TLS: the server's certificate signs itself; each connection a full handshake
  pollux load https://127.0.0.1:8443/ --rate 200 --insecure

  # how many handshakes a second: a new connection for each request, resumed
  pollux load https://127.0.0.1/ -kc 8 --requests-per-connection 1 --tls-resume

  # more connections than one source address has ports for
  pollux load http://127.0.0.1:8080/ --rate 20000 --source 127.0.1.0/24

  # 10,000 subscribers of a Mercure hub, each of whom gets 5 updates a second
  pollux load http://127.0.0.1:8080/ --subscribe 10000 --rate 5

  # for programs: one JSON document, and a log for HdrHistogram's tools
  pollux load http://127.0.0.1:8080/ --rate 1000 --json --hdr run.hlog

Open or closed loop: with --rate (-q) requests come by a schedule, whatever the
server does; with --connections (-c) and no rate each connection sends again
when it is answered; with neither 100 requests a second are sent. -q is the rate
of all connections together, as oha has it (hey: of each).

Exit status:
  0  the run was valid and some request succeeded, those that failed are
     counted; or it was interrupted before any was answered or had failed
  1  it could not be made, or was interrupted before it began
  2  the command line was not understood, contradicts itself, or names a file
     that cannot be read
  3  the generator, not the server, was the bottleneck: it never sent a part of
     the schedule, had no descriptor or local port for some request, the 99th
     percentile of its lag was above --max-lag, its busiest thread had
     something to do for more than 95 % of the time (generator.busy_utilization
     in the JSON document; waiting for an instant that is very near is not
     counted), or, in a closed loop, it waited for a CPU for more than
     --max-starved of the time (generator.run_delay_share)
  4  the run was valid, and no request succeeded
  130  a second SIGINT or SIGTERM ended it at once; the first one ends it with
     what was measured until then, and with one of the above";

/// The default rate if neither a rate nor connections are given: high enough to show latencies, and
/// low enough not to harm a server.
const DEFAULT_RATE_RPS: f64 = 100.0;

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to request: http://HOST[:PORT]/PATH, or https://…. Several, all of one server, are requested in equal
    /// shares
    #[arg(required_unless_present = "url_file")]
    urls: Vec<Url>,
    /// More URLs, or paths of the first URL's server: one a line, with an optional weight after it.
    /// A single URL beside it names that server only and is not requested
    #[arg(long, value_name = "FILE")]
    url_file: Option<PathBuf>,
    /// Request the URLs one after the other in their order, instead of drawing each at random: with
    /// --requests as many as there are, each is requested once
    #[arg(long)]
    in_turn: bool,

    /// Requests a second: an open loop, in which requests do not wait for replies [default: 100,
    /// unless --connections selects a closed loop]
    #[arg(long, short = 'q', value_name = "RPS", help_heading = "Load")]
    rate: Option<f64>,
    /// How requests follow each other in the open loop
    #[arg(long, value_enum, default_value = "constant", help_heading = "Load")]
    arrivals: ArrivalsName,
    /// How many requests of the open loop come at the same instant; the mean rate stays --rate
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Load")]
    burst: u64,
    /// How long to measure [default: 10s]
    #[arg(long, short = 'z', value_parser = duration::parse, value_name = "TIME", conflicts_with = "requests", help_heading = "Load")]
    duration: Option<Duration>,
    /// How many requests to measure, instead of --duration
    #[arg(long, short = 'n', value_name = "N", help_heading = "Load")]
    requests: Option<u64>,
    /// Load before the measured part
    #[arg(long, visible_alias = "warm-up", value_parser = duration::parse, default_value = "0s", value_name = "TIME", help_heading = "Load")]
    warmup: Duration,
    /// Decides the random instants and the choice among URLs
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Load")]
    seed: u64,
    /// Send only the I-th of N shares of the schedule; the others run elsewhere
    #[arg(long, value_parser = share, value_name = "I/N", help_heading = "Load")]
    client: Option<Share>,

    /// Connections opened before the run and kept alive. Without --rate each sends its next
    /// request when it has the reply to the last: a closed loop
    #[arg(
        long,
        short = 'c',
        value_name = "N",
        conflicts_with = "max_connections",
        help_heading = "Connections"
    )]
    connections: Option<usize>,
    /// The most connections at a time [default: no limit]
    #[arg(long, value_name = "N", help_heading = "Connections")]
    max_connections: Option<usize>,
    /// A request of the schedule that finds no free connection, because as many as --max-connections
    /// or --connections are in use
    #[arg(
        long,
        value_enum,
        default_value_t = AtLimitName::Wait,
        value_name = "WHAT",
        requires = "rate",
        help_heading = "Connections"
    )]
    at_limit: AtLimitName,
    /// Requests that one connection carries, one after the other [default: 1, or no limit with
    /// --connections]
    #[arg(long, value_name = "N", conflicts_with = "keep_alive", help_heading = "Connections")]
    requests_per_connection: Option<u64>,
    /// No limit on the requests of a connection
    #[arg(long, help_heading = "Connections")]
    keep_alive: bool,
    /// Sessions of N requests, each session on a connection of its own. Their starts follow the
    /// schedule, at --rate divided by N; each further request comes --think-time after the reply to
    /// the one before, and its latency counts from there. With --duration the end cuts sessions off
    #[arg(long, value_name = "N", requires = "rate", conflicts_with_all = ["connections", "requests_per_connection", "keep_alive"], help_heading = "Connections")]
    session_requests: Option<u64>,
    /// In a session, the time from a reply to the next request
    #[arg(long, value_parser = duration::parse, default_value = "0s", value_name = "TIME", requires = "session_requests", help_heading = "Connections")]
    think_time: Duration,
    /// How a connection ends after its last reply
    #[arg(long, value_enum, default_value = "at-once", help_heading = "Connections")]
    close: ClosingName,
    /// Source addresses: one, or a network such as 127.0.1.0/24 whose hosts are taken in turn
    #[arg(long, value_name = "NET", help_heading = "Connections")]
    source: Option<Sources>,
    /// The longest time from a request's scheduled instant to the end of its reply
    #[arg(long, value_parser = duration::parse, default_value = "10s", value_name = "TIME", help_heading = "Connections")]
    timeout: Duration,
    /// The longest time for a handshake, that of TLS included
    #[arg(long, value_parser = duration::parse, default_value = "10s", value_name = "TIME", help_heading = "Connections")]
    connect_timeout: Duration,
    /// Idle connections to hold during the run
    #[arg(long, value_name = "N", help_heading = "Connections")]
    idle: Option<usize>,
    /// What each idle connection does before it becomes idle
    #[arg(
        long,
        value_enum,
        default_value = "connect",
        requires = "idle",
        help_heading = "Connections"
    )]
    idle_kind: IdleKindName,

    #[command(flatten)]
    tls: TlsLoadArgs,

    /// The request method
    #[arg(long, default_value = "GET", help_heading = "Requests")]
    method: String,
    /// A field for every request, such as 'Accept: text/html'; may be given several times
    #[arg(long = "header", short = 'H', value_parser = header, value_name = "FIELD", help_heading = "Requests")]
    headers: Vec<(String, String)>,
    /// The file whose content every request carries
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    body: Option<PathBuf>,
    /// Good statuses: any, or a list such as 200,300-399
    #[arg(long, value_parser = statuses, default_value = "200-399", value_name = "LIST", help_heading = "Requests")]
    expect_status: Statuses,
    /// The length that every reply's content must have, in bytes
    #[arg(long, value_name = "BYTES", help_heading = "Requests")]
    expect_length: Option<u64>,

    /// Threads that share the schedule
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Generator")]
    threads: usize,
    /// CPUs: thread i runs on the i-th of this list, which begins again at its end
    #[arg(long, value_delimiter = ',', value_name = "CPU,…", help_heading = "Generator")]
    pin: Vec<usize>,
    /// Maximum of the 99th percentile of the generator's own lag; above it the run is invalid
    #[arg(long, value_parser = duration::parse, default_value = "5ms", value_name = "TIME", help_heading = "Generator")]
    max_lag: Duration,
    /// Maximum of the generator's own lag as a share of the latency, at the median and at the 99th
    /// percentile; above it the latencies are invalid, and the rest of the run stays valid
    #[arg(long, value_parser = share_of_one, default_value = "50%", value_name = "SHARE", help_heading = "Generator")]
    max_lag_share: f64,
    /// Maximum share of the time for which the generator of a closed loop may wait for a CPU; above
    /// it the run is invalid
    #[arg(long, value_parser = share_of_one, default_value = "10%", value_name = "SHARE", help_heading = "Generator")]
    max_starved: f64,

    /// Whether the processes that mpirun or srun started make one run: auto, off, or the MPI library
    /// to load [docs/cluster.md]
    #[arg(long, default_value = "auto", value_name = "CHOICE", help_heading = "Generator")]
    ranks: MpiChoice,

    #[command(flatten)]
    push: push::PushArgs,

    /// Print one JSON document instead of the summary
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write an HdrHistogram log with two histograms for each second: latencies from the scheduled
    /// instant, and, with the tag `service`, from the send; of https URLs TLS handshakes too, with
    /// the tag `handshake`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    hdr: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum ArrivalsName {
    /// At equal distances
    Constant,
    /// Independently of each other, as those of many users
    Poisson,
    /// The same, but as many in each second as --rate says
    Binomial,
}

#[derive(Clone, Copy, ValueEnum)]
enum AtLimitName {
    /// Waits for one, and its latency counts
    Wait,
    /// Fails, as with httperf, which lacks a descriptor then (fd-unavail)
    Fail,
}

#[derive(Clone, Copy, ValueEnum)]
enum ClosingName {
    /// The generator closes when it has the reply, as httperf does
    AtOnce,
    /// The server closes first, and keeps the TIME_WAIT
    Wait,
    /// The generator resets: nobody keeps a TIME_WAIT
    Reset,
}

/// `--idle-kind`, which `pollux idle` has too.
#[derive(Clone, Copy, ValueEnum)]
pub(super) enum IdleKindName {
    /// Connects only; for https with a TLS handshake
    Connect,
    /// Sends a part of a request
    Partial,
    /// Sends one request and reads the response
    AfterRequest,
}

impl From<IdleKindName> for IdleKind {
    fn from(name: IdleKindName) -> Self {
        match name {
            IdleKindName::Connect => Self::Connect,
            IdleKindName::Partial => Self::Partial,
            IdleKindName::AfterRequest => Self::AfterRequest,
        }
    }
}

type Statuses = Vec<RangeInclusive<u16>>;

fn statuses(text: &str) -> Result<Statuses, String> {
    if text == "any" {
        // The list includes invalid statuses, which a client treats like a 5xx (RFC 9110 §15).
        return Ok(vec![0..=999]);
    }
    let one = |text: &str| match text.parse() {
        Ok(status) if (100..=599).contains(&status) => Ok(status),
        _ => Err(format!("{text:?} is not a status (100 to 599)")),
    };
    text.split(',')
        .map(|part| match part.split_once('-') {
            Some((first, last)) => {
                let range = one(first)?..=one(last)?;
                if range.is_empty() {
                    return Err(format!("{part}: the first status is above the last"));
                }
                Ok(range)
            }
            None => one(part).map(|status| status..=status),
        })
        .collect()
}

pub(super) fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected NAME: VALUE")?;
    Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

fn share(text: &str) -> Result<Share, String> {
    let parsed = text
        .split_once('/')
        .and_then(|(index, count)| Some((index.parse::<u64>().ok()?, count.parse::<u64>().ok()?)));
    match parsed {
        Some((index, count)) if (1..=count).contains(&index) => {
            Ok(Share { index: index - 1, count })
        }
        _ => Err("expected I/N with 1 ≤ I ≤ N, such as 2/4".into()),
    }
}

/// Parses `10%` or `0.1`.
fn share_of_one(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number.trim_end(), 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().ok().map(|number| number / unit);
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "expected a share such as 10% or 0.1, at most 100%".into())
}

impl Args {
    fn checked_config(&self) -> Result<Config> {
        let config = self.config()?;
        config.check()?;
        Ok(config)
    }

    fn config(&self) -> Result<Config> {
        let mut urls: Vec<_> = self.urls.iter().map(|url| (url.clone(), 1.0)).collect();
        if let Some(path) = &self.url_file {
            let base = self.urls.first();
            let listed = Targets::parse_file(&read_text(path)?, base)
                .with_context(|| format!("--url-file {}", path.display()))?;
            if listed.is_empty() {
                bail!("--url-file {}: no URL in it", path.display());
            }
            if let [named] = self.urls.as_slice() {
                // The URL only names the server whose paths the file lists.
                let other = listed.iter().find(|(url, _)| !url.has_origin_of(named));
                if let Some((other, _)) = other {
                    bail!(
                        "--url-file {}: {other}: one run drives one server, and the URL beside the \
                         file is of {}",
                        path.display(),
                        named.origin()
                    );
                }
                urls.clear();
            }
            urls.extend(listed);
        }
        let body = match &self.body {
            None => Vec::new(),
            Some(path) => fs::read(path).with_context(|| format!("--body {}", path.display()))?,
        };
        // A closed loop has no schedule.
        if self.rate.is_none() && self.connections.is_some() {
            if self.burst != 1 {
                bail!("--burst: a closed loop has no bursts; give --rate");
            }
            if !matches!(self.arrivals, ArrivalsName::Constant) {
                bail!("--arrivals: a closed loop has no arrivals; give --rate");
            }
        }
        let arrivals = match self.arrivals {
            ArrivalsName::Constant => Arrivals::Constant,
            ArrivalsName::Poisson => Arrivals::Poisson,
            ArrivalsName::Binomial => Arrivals::Binomial,
        };
        let unlimited = self.keep_alive || self.connections.is_some();
        Ok(Config {
            urls,
            in_turn: self.in_turn,
            request: RequestOptions {
                method: self.method.clone(),
                headers: self.headers.clone(),
                body,
            },
            expect: Expectation {
                statuses: self.expect_status.clone(),
                length: self.expect_length,
            },
            pace: match self.rate {
                Some(rate_rps) => Pace::Open { rate_rps, arrivals },
                None if self.connections.is_some() => Pace::Closed,
                None => Pace::Open { rate_rps: DEFAULT_RATE_RPS, arrivals },
            },
            burst: self.burst,
            length: match self.requests {
                Some(requests) => Length::Requests(requests),
                None => Length::Duration(self.duration.unwrap_or(Duration::from_secs(10))),
            },
            warmup: self.warmup,
            seed: self.seed,
            connections: self.connections,
            max_connections: self.max_connections,
            at_limit: match self.at_limit {
                AtLimitName::Wait => AtLimit::Wait,
                AtLimitName::Fail => AtLimit::Fail,
            },
            requests_per_connection: match self.requests_per_connection {
                None if unlimited => None,
                requests => Some(requests.unwrap_or(1)),
            },
            session: self
                .session_requests
                .map(|requests| Session { requests, think: self.think_time }),
            tls: self.tls.options(),
            closing: match self.close {
                ClosingName::AtOnce => Closing::AtOnce,
                ClosingName::Wait => Closing::Wait,
                ClosingName::Reset => Closing::Reset,
            },
            timeout: self.timeout,
            connect_timeout: self.connect_timeout,
            sources: self.source,
            threads: self.threads,
            own_file_tables: Some(own_file_tables()),
            cpus: self.pin.clone(),
            share: self.client.unwrap_or(Share { index: 0, count: 1 }),
            idle: self
                .idle
                .filter(|&count| count > 0)
                .map(|count| IdleConfig { count, kind: self.idle_kind.into() }),
            max_lag: self.max_lag,
            max_lag_share: self.max_lag_share,
            max_starved: self.max_starved,
            hdr: self.hdr.clone(),
            progress: true,
        })
    }
}

fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if let Some(code) = ranks::supervise(&args.ranks)? {
        return Ok(ExitCode::from(code));
    }
    if let Some(subscribers) = args.push.subscribe {
        return push::run(args, subscribers);
    }
    let config = match args.checked_config() {
        Ok(config) => config,
        Err(error) => return Ok(usage_error(&error)),
    };
    let stop = pollux_load::stop_on_signals()?;
    let mut ranks = ranks::join(&args.ranks, || ranks::task(&config), &stop)?;
    let reports = ranks.as_ref().is_none_or(Ranks::is_first);
    // The file is created before the run, because otherwise a run would be lost if the path cannot
    // be written.
    let log = match &config.hdr {
        Some(path) if reports => {
            let file =
                fs::File::create(path).with_context(|| format!("--hdr {}", path.display()))?;
            Some((path, file))
        }
        _ => None,
    };
    let report = match &mut ranks {
        None => pollux_load::run(&config, &stop)?,
        Some(ranks) => match ranks::run(&config, ranks, &stop)? {
            Some(report) => report,
            // Rank 0 reports for all ranks.
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    // A full disk must not lose the report, nor a lost standard output the log.
    let shown = show(args.json, report.invalid_reason.as_deref(), |out| match args.json {
        true => output::json::write(&report, out),
        false => output::text::write(&report, out),
    });
    if let Some((path, file)) = log {
        output::hdr::write(&report, io::BufWriter::new(file))
            .with_context(|| format!("--hdr {}", path.display()))?;
    }
    shown?;
    Ok(match (report.valid, report.requests.completed) {
        (false, _) => ExitCode::from(EXIT_INVALID),
        // An interrupt before the first answer is not a failure. A run that ends by itself without an answer is a
        // failure, also if the requests of the warm-up waited so long that the measured part has no request.
        (true, 0) if report.requests.failed > 0 || !report.interrupted => {
            ExitCode::from(EXIT_NOTHING)
        }
        (true, _) => ExitCode::SUCCESS,
    })
}

/// Reports an error of the command line; the exit status is that of clap.
pub(super) fn usage_error(error: &anyhow::Error) -> ExitCode {
    say(format_args!("pollux: {error:#}"));
    ExitCode::from(2)
}

/// Prints a report with `write`. The reason why a run is invalid is a part of the text; beside a JSON document it is a
/// message.
fn show(
    json: bool,
    invalid_reason: Option<&str>,
    write: impl FnOnce(&mut StdoutLock<'static>) -> io::Result<()>,
) -> Result<()> {
    print_with(write).context("standard output")?;
    if let (true, Some(reason)) = (json, invalid_reason) {
        say(format_args!("pollux: invalid run: {reason}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_statuses() {
        assert_eq!(statuses("200,300-302"), Ok(vec![200..=200, 300..=302]));
        assert_eq!(statuses("any"), Ok(vec![0..=999]));
        assert!(statuses("99").is_err() && statuses("200,").is_err() && statuses("x").is_err());
        assert!(statuses("300-200").is_err(), "no status would be good");
    }

    #[test]
    fn shares_count_from_one() {
        assert_eq!(share("2/4"), Ok(Share { index: 1, count: 4 }));
        for text in ["0/4", "5/4", "1", "a/b", "1/0"] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_of_one_have_two_forms() {
        assert_eq!(share_of_one("10%"), Ok(0.1));
        assert_eq!(share_of_one("0.25"), Ok(0.25));
        for text in ["", "%", "101%", "-1%", "2", "nan"] {
            assert!(share_of_one(text).is_err(), "{text}");
        }
    }

    #[test]
    fn header_values_are_trimmed() {
        assert_eq!(header("X-A:  b c\t"), Ok(("X-A".into(), "b c".into())));
        assert!(header("X-A").is_err());
    }
}
