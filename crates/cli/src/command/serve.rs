//! `pollux serve`.

use crate::{bytes, duration};
use clap::{ArgAction, ValueEnum};
use pollux_server::{
    Config, Report,
    config::{Discipline, LargeFile, Listen, LogTarget, MechanismChoice, Symlinks},
};
use std::{num::NonZeroU32, path::PathBuf, process::ExitCode, time::Duration};

const EXAMPLES: &str = "\
Examples:
  pollux serve public                         Serve ./public on 127.0.0.1:8080
  pollux serve public --listen :80            On every address, IPv4 and IPv6
  pollux serve public --workers 4 --pin 0,1,2,3
  pollux serve public --mechanism poll        See what the old ways cost
  pollux serve public --mechanism epoll --interest per-state --accept-limit 1
  pollux serve public --mechanism rtsig:dequeue=one,overflow=handoff --signal-queue 64
  pollux serve public --listen unix:/run/site.sock --access-log -
  pollux serve public --json --listen 127.0.0.1:0 --pin 0 --time-system-calls

Signals:
  TERM, INT   stop: accept no more, end what is in flight within --grace; twice: at once
  USR1        print the statistics";

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The directory to serve
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Where to listen: ADDRESS:PORT, [IPV6]:PORT, :PORT (every address) or unix:PATH; may be
    /// repeated. Port 0 lets the kernel choose
    #[arg(long, short, value_name = "ADDRESS", default_value = "127.0.0.1:8080", action = ArgAction::Append)]
    listen: Vec<Listen>,

    /// How to wait: NAME[:KEY=VALUE,…] (see `pollux doctor`), or auto for the best that there is
    #[arg(long, short, value_name = "NAME", default_value = "auto")]
    mechanism: MechanismChoice,

    /// When interest changes: eager registers once and writes at once; per-state follows the
    /// connection and writes when told, as the papers' servers do
    #[arg(long, value_name = "WHEN", default_value = "eager")]
    interest: InterestArg,

    /// Worker threads, each with its own listeners, connections and cache
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,

    /// Pin worker i to the i-th of these CPUs
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    pin: Vec<usize>,

    /// Connections that the kernel queues for each listener (cut to net.core.somaxconn)
    #[arg(long, value_name = "N", default_value_t = 4096)]
    backlog: u32,

    /// The most connections accepted at one event: a number, or inf
    #[arg(long, value_name = "N", default_value = "64", value_parser = parse_limit)]
    accept_limit: Limit,

    /// The most connections at once; further ones wait in the kernel's queue [default: as many as
    /// RLIMIT_NOFILE allows]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    max_connections: Option<usize>,

    /// Close a connection after so many requests: a number, or inf
    #[arg(long, value_name = "N", default_value = "inf", value_parser = parse_limit)]
    max_requests: Limit,

    /// The time for a request's head, and again for a body
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration::parse)]
    header_timeout: Duration,

    /// How long a connection may be idle between requests
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = duration::parse)]
    keep_alive: Duration,

    /// How long a reader may take for each 16 KiB of a response
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    send_timeout: Duration,

    /// How long requests in flight may take after a stop was asked for
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration::parse)]
    grace: Duration,

    /// The longest header section of a request; longer ones are answered with 431
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = parse_header_size)]
    max_header: usize,

    /// Memory for cached files, per worker; 0 caches nothing
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = bytes::parse)]
    cache_size: u64,

    /// A file to serve for a directory; may be repeated, the first that exists is taken
    #[arg(long, value_name = "NAME", default_value = "index.html", action = ArgAction::Append)]
    index: Vec<String>,

    /// Which symbolic links in DIR are followed: none, those that stay within DIR, or all
    #[arg(long, value_name = "RULE", default_value = "within")]
    symlinks: SymlinksArg,

    /// Serve also names that begin with a dot (.well-known always is)
    #[arg(long)]
    dotfiles: bool,

    /// Do not serve FILE.zst, FILE.br or FILE.gz in place of FILE to clients that take them
    #[arg(long)]
    no_precompressed: bool,

    /// How the head of a large file waits for the file's first bytes
    #[arg(long, value_name = "HOW", default_value = "msg-more")]
    large_file: LargeFileArg,

    /// A field to add to every response; may be repeated
    #[arg(long, value_name = "NAME: VALUE", value_parser = parse_header, action = ArgAction::Append)]
    header: Vec<(String, String)>,

    /// Leave out the Server field
    #[arg(long)]
    no_server_header: bool,

    /// Write an access log in Common Log Format to FILE, or to standard output (-)
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,

    /// Measure how long system calls take (see the statistics)
    #[arg(long)]
    time_system_calls: bool,

    /// For experiments with rtsig and hybrid: let no more signals be queued than this (lowers the
    /// soft RLIMIT_SIGPENDING, which counts what all processes of the user have queued), so that
    /// the queue overflows early
    #[arg(long, value_name = "N", value_parser = parse_queue)]
    signal_queue: Option<u64>,

    /// Print lines of JSON on standard output: one when listening, one with the statistics at
    /// SIGUSR1 and at the end
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum InterestArg {
    Eager,
    PerState,
}

#[derive(Clone, Copy, ValueEnum)]
enum SymlinksArg {
    Deny,
    Within,
    Follow,
}

#[derive(Clone, Copy, ValueEnum)]
enum LargeFileArg {
    MsgMore,
    Cork,
}

/// A number, or none.
#[derive(Clone, Copy)]
struct Limit(Option<NonZeroU32>);

fn parse_limit(text: &str) -> Result<Limit, String> {
    match text {
        "inf" => Ok(Limit(None)),
        _ => text
            .parse()
            .map(|number| Limit(Some(number)))
            .map_err(|_| "wants a number from 1, or inf".into()),
    }
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse::<usize>().ok().filter(|&n| n > 0).ok_or_else(|| "wants a number from 1".into())
}

fn parse_queue(text: &str) -> Result<u64, String> {
    text.parse::<u64>().ok().filter(|&n| n > 0).ok_or_else(|| "wants a number from 1".into())
}

/// The least that RFC 9110 lets a server get away with is not stated; below this, browsers fail.
const MIN_HEADER: u64 = 1 << 10;
/// The parser counts in 32 bits, and one client should not get more memory than this.
const MAX_HEADER: u64 = 1 << 20;

fn parse_header_size(text: &str) -> Result<usize, String> {
    let size = bytes::parse(text)?;
    if (MIN_HEADER..=MAX_HEADER).contains(&size) {
        Ok(size as usize)
    } else {
        Err("wants a size from 1K to 1M".into())
    }
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("wants NAME: VALUE")?;
    Ok((name.trim().into(), value.trim().into()))
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let report = if args.json { Report::Json } else { Report::Human };
    let config = config(args);
    anyhow::ensure!(
        !(report == Report::Json && config.access_log == Some(LogTarget::Stdout)),
        "--json and --access-log - would both write to standard output: name a file for the log"
    );
    pollux_server::run(config, report)?;
    Ok(ExitCode::SUCCESS)
}

fn config(args: Args) -> Config {
    let mut config = Config::new(args.directory);
    config.listen = args.listen;
    config.mechanism = args.mechanism;
    config.interest = match args.interest {
        InterestArg::Eager => Discipline::Eager,
        InterestArg::PerState => Discipline::PerState,
    };
    config.workers = args.workers.into();
    config.pin = args.pin;
    config.backlog = args.backlog;
    config.accept_limit = args.accept_limit.0;
    config.max_connections = args.max_connections;
    config.max_requests = args.max_requests.0;
    config.timeouts.header = args.header_timeout;
    config.timeouts.keep_alive = args.keep_alive;
    config.timeouts.send = args.send_timeout;
    config.limits.header_section = args.max_header;
    config.site.index = args.index;
    config.site.symlinks = match args.symlinks {
        SymlinksArg::Deny => Symlinks::Deny,
        SymlinksArg::Within => Symlinks::Within,
        SymlinksArg::Follow => Symlinks::Follow,
    };
    config.site.dotfiles = args.dotfiles;
    config.site.cache_bytes = args.cache_size;
    config.site.precompressed = !args.no_precompressed;
    config.large_file = match args.large_file {
        LargeFileArg::MsgMore => LargeFile::MsgMore,
        LargeFileArg::Cork => LargeFile::Cork,
    };
    if args.no_server_header {
        config.server_name = None;
    }
    config.headers = args.header;
    config.grace = args.grace;
    config.access_log = args.access_log.map(|path| match path.to_str() {
        Some("-") => LogTarget::Stdout,
        _ => LogTarget::File(path),
    });
    config.time_system_calls = args.time_system_calls;
    config.signal_queue = args.signal_queue;
    config
}
