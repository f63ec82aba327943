//! `pollux serve`.

mod cannot_listen;

use crate::{bytes, duration, names, sys::own_file_tables, terminal, usage::UsageError};
use anyhow::Context;
use clap::{ArgAction, ValueEnum};
use pollux_server::{
    Config, Report,
    config::{
        Accepting, Architecture, Discipline, ForwardedPolicy, FrontendConfig, GuestbookConfig,
        HandoverConfig, HostPolicy, LargeFile, Listen, LogTarget, MechanismChoice, RouteConfig,
        Store, StoreConnections, Symlinks,
    },
};
use std::{
    num::{NonZeroU32, NonZeroUsize},
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

const EXAMPLES: &str = "\
Examples:
  pollux serve public                         Serve ./public on 127.0.0.1:8080
  pollux serve public --listen :80            On every address, IPv4 and IPv6
  pollux serve public --workers 2 --pin 0,1
  pollux serve public --mechanism poll        See what the old ways cost
  pollux serve public --architecture prethreaded --pool 200
  pollux serve public --architecture preforked --pool 16 --accept reuseport
  pollux serve public --mechanism epoll --interest per-state --accept-limit 1
  pollux serve public --mechanism rtsig:overflow=handoff --signal-queue 64
  pollux serve public --listen unix:/run/site.sock --access-log -
  pollux serve public --guestbook             Remarks of guests, in a file
  pollux serve public --guestbook /book --store redis://127.0.0.1:6379/0
  pollux serve --guestbook                    A guestbook and nothing else
  pollux serve --origin http://127.0.0.1:8000 --listen :80
                                  All goes to the origin (a reverse proxy)
  pollux serve public --origin unix:/run/app.sock
                                  Files first; what is no file, there
  pollux serve --origin /api=http://a:8000 --origin /api=http://b:8000
                                  /api and below to two in turn
  pollux serve --origin http://app:8000 --forwarded append --max-body 100M
  pollux serve --origin http://127.0.0.1:8000 --cache 256M --cache-stale 1h
  pollux serve public --handover unix:/run/app.sock
                                  Files first; for others the connection
  pollux serve --origin http://app:8000 --cache 1G --control /run/pollux.ctl
                                  See pollux cache --help
  pollux serve public --json --listen 127.0.0.1:0 --pin 0 --time-system-calls

Signals:
  TERM, INT   stop: accept no more, end what is in flight within --grace;
              twice: at once
  USR1        print the statistics
  HUP         open the access log anew, after it was moved away; serve on

Guestbook: a remark is posted as a form (application/x-www-form-urlencoded, at
most 16 KiB) with the field guest-remarks and, if wanted, guest-name: 4 KiB
together. A page shows at most 256 KiB of remarks. In Redis they are the list
guestbook_remarks, and visits the number visitor_count. In a file, a remark that
was acknowledged is on the disk. Pages of other sites can post remarks in their
readers' browsers (CSRF): there are no sessions whose rights they could use.

Exit status: 0 after a stop that was asked for, 1 when it cannot start or go on
(the reason is on standard error), 2 for a usage error.";

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The directory to serve; may be left out where there is an --origin, a --handover or a
    /// --guestbook
    #[arg(value_name = "DIR", required_unless_present_any = ["origin", "handover", "guestbook"])]
    directory: Option<PathBuf>,

    /// Where to listen: ADDRESS:PORT, [IPV6]:PORT, :PORT (every address) or unix:PATH; may be
    /// repeated. Port 0 lets the kernel choose
    #[arg(long, short, value_name = "ADDRESS", default_value = "127.0.0.1:8080", action = ArgAction::Append)]
    listen: Vec<Listen>,

    /// Who serves which connection: iterative (one after the other), forking (a process each),
    /// preforked (a pool of processes), threaded (a thread each), prethreaded (a pool of threads),
    /// or event (workers that wait for all theirs at a time)
    #[arg(long, value_name = "NAME", default_value = "event")]
    architecture: Architecture,

    /// Processes or threads of a pool (preforked, prethreaded): so many connections are served at a
    /// time, further ones wait in the kernel's queue [default: 64]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pool: Option<usize>,

    /// How a pool shares connections out: blocking (all block in accept), exclusive (epoll with
    /// EPOLLEXCLUSIVE), reuseport (a listener each, SO_REUSEPORT) or mutex (who waits holds a lock)
    /// [default: blocking; exclusive where there are several listeners]
    #[arg(long, value_name = "WAY")]
    accept: Option<Accepting>,

    /// How to wait: NAME[:KEY=VALUE,…] (see `pollux doctor`), or auto for the best that there is
    #[arg(long, short, value_name = "NAME", default_value = "auto", hide_possible_values = true,
          value_parser = names::mechanism_or_auto::<MechanismChoice>())]
    mechanism: MechanismChoice,

    /// When interest changes: eager registers once and writes at once; per-state follows the
    /// connection and writes when told, as the papers' servers do
    #[arg(long, value_name = "WHEN", default_value = "eager")]
    interest: InterestArg,

    /// Worker threads, each with its own listeners, connections and cache of files (--cache is one
    /// for all)
    #[arg(long, short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,

    /// CPUs: worker i runs on the i-th, counted round
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    pin: Vec<usize>,

    /// Connections that the kernel queues for each listener (cut to net.core.somaxconn)
    #[arg(long, value_name = "N", default_value_t = 4096)]
    backlog: u32,

    /// The most connections accepted at one event: a number, or inf
    #[arg(long, value_name = "N", default_value = "64", value_parser = parse_limit)]
    accept_limit: Limit,

    /// The most connections at once; further ones wait in the kernel's queue [default: as many as
    /// RLIMIT_NOFILE allows; forking: 4096]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    max_connections: Option<usize>,

    /// Close a connection after so many requests: a number, or inf
    #[arg(long, value_name = "N", default_value = "inf", value_parser = parse_limit)]
    max_requests: Limit,

    /// The time for a request's head, and again for each 16 KiB of a body
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

    /// The longest body of a request, or inf; longer ones are answered with 413. A guestbook's form is
    /// at most 16K in any case
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_body_size)]
    max_body: u64,

    /// Memory for cached files, of all workers or units together; what several threads have counts once.
    /// Processes (forking, preforked) have an equal part each. A unit of one connection (forking,
    /// threaded) keeps at most 1M, as long as the connection lasts. 0: none
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = bytes::parse)]
    cache_size: u64,

    /// A file to serve for a directory; may be repeated, the first that exists is taken
    #[arg(long, value_name = "NAME", default_value = "index.html", action = ArgAction::Append)]
    index: Vec<String>,

    /// Which symbolic links in DIR are followed: none, relative ones that stay within DIR, or all
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

    /// A guestbook at this path: remarks of guests and a count of visits. DIR stands before it
    /// [default path: /guestbook]
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "/guestbook", value_parser = parse_guestbook, help_heading = "Guestbook")]
    guestbook: Option<String>,

    /// Its page: HTML with $GUEST_REMARKS$ and $VISITOR_COUNT$, read at the start [default: one that
    /// is built in]
    #[arg(long, value_name = "FILE", requires = "guestbook", help_heading = "Guestbook")]
    guestbook_template: Option<PathBuf>,

    /// How many remarks the page shows, the newest: from 1 to 10000
    #[arg(
        long,
        value_name = "N",
        requires = "guestbook",
        default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..=10_000),
        help_heading = "Guestbook"
    )]
    guestbook_shown: u32,

    /// Where the remarks are: file:PATH, redis://[USER:PASSWORD@]HOST:PORT/DB or
    /// unix:///PATH?db=DB (or redis+unix://) [default: file:$XDG_STATE_HOME/pollux/guestbook, or
    /// below ~/.local/state: one for all sites of a user]
    #[arg(long, value_name = "STORE", requires = "guestbook", help_heading = "Guestbook")]
    store: Option<Store>,

    /// Connections to Redis: per-request, one, or pooled:N for each worker [default: pooled:8]
    #[arg(long, value_name = "HOW", requires = "guestbook", help_heading = "Guestbook")]
    store_connections: Option<StoreConnections>,

    /// Pass on what is not here: to http://HOST[:PORT] or unix:PATH what is no file in DIR; with a
    /// prefix, /PREFIX=URL, all that is at it and below. May be repeated: origins of one prefix
    /// have their turns, and who fails is left aside for a while. Paths are passed on as they are
    #[arg(long, value_name = "[/PREFIX=]URL", action = ArgAction::Append, help_heading = "Origins")]
    origin: Vec<RouteConfig>,

    /// Give the connections of clients who ask for what is not here to a process on this host, which
    /// listens on a SOCK_SEQPACKET socket at PATH: each message is a connection (SCM_RIGHTS) and what
    /// has been read of it. With a prefix, all that is at it and below. See docs/handover.md
    #[arg(long, value_name = "[/PREFIX=]unix:PATH", action = ArgAction::Append, help_heading = "Origins")]
    handover: Vec<HandoverConfig>,

    /// The Host that an origin is told: client (what was asked for), origin (what its URL says), or
    /// a name
    #[arg(
        long,
        value_name = "HOST",
        requires = "origin",
        default_value = "client",
        help_heading = "Origins"
    )]
    origin_host: HostPolicy,

    /// Forwarded, X-Forwarded-* and X-Real-IP of a request: replace them by what is known of the
    /// client, append that (behind trusted proxies), keep them as they came, or remove them
    #[arg(
        long,
        value_name = "HOW",
        requires = "origin",
        default_value = "replace",
        help_heading = "Origins"
    )]
    forwarded: ForwardedPolicy,

    /// The name of this proxy in Via and in Proxy-Status; off leaves Via out
    #[arg(
        long,
        value_name = "NAME",
        requires = "origin",
        default_value = "pollux",
        help_heading = "Origins"
    )]
    via: String,

    /// How long connecting to an origin may take; also waiting for a connection to become free
    #[arg(long, value_name = "TIME", requires = "origin", default_value = "5s", value_parser = duration::parse, help_heading = "Origins")]
    origin_connect_timeout: Duration,

    /// How long an origin may be silent: before its reply, between two pieces of it, or while it
    /// takes nothing of a body
    #[arg(long, value_name = "TIME", requires = "origin", default_value = "60s", value_parser = duration::parse, help_heading = "Origins")]
    origin_timeout: Duration,

    /// The most connections to origins at once, for each worker; further requests wait
    #[arg(long, value_name = "N", requires = "origin", default_value = "1024", value_parser = parse_nonzero, help_heading = "Origins")]
    origin_connections: NonZeroUsize,

    /// How many idle connections to each origin are kept, for each worker
    #[arg(
        long,
        value_name = "N",
        requires = "origin",
        default_value_t = 32,
        help_heading = "Origins"
    )]
    origin_keep: usize,

    /// How long they are kept
    #[arg(long, value_name = "TIME", requires = "origin", default_value = "60s", value_parser = duration::parse, help_heading = "Origins")]
    origin_keep_timeout: Duration,

    /// Keep replies of origins in so much memory, for all workers (RFC 9111); off by default
    #[arg(long, value_name = "SIZE", requires = "origin", value_parser = parse_cache, help_heading = "Origins")]
    cache: Option<u64>,

    /// How long a stale reply stands in for an origin that fails, where the reply does not say
    #[arg(long, value_name = "TIME", requires = "cache", default_value = "0s", value_parser = duration::parse, help_heading = "Origins")]
    cache_stale: Duration,

    /// The longest content that is kept. It needs room in --cache, too: an eighth of less than 32M,
    /// at least 4M from there on, 1/128 from 512M on
    #[arg(long, value_name = "SIZE", requires = "cache", default_value = "8M", value_parser = bytes::parse, help_heading = "Origins")]
    cache_object: u64,

    /// How long replies such as 404 and 301 are kept that do not say (negative caching); 0s keeps
    /// none of them
    #[arg(long, value_name = "TIME", requires = "cache", default_value = "0s", value_parser = duration::parse, help_heading = "Origins")]
    cache_negative: Duration,

    /// Keep replies in this folder too, so that they survive a restart; for nobody else's files
    #[arg(long, value_name = "DIR", requires = "cache", help_heading = "Origins")]
    cache_dir: Option<PathBuf>,

    /// How much may be in it
    #[arg(long, value_name = "SIZE", requires = "cache_dir", default_value = "1G", value_parser = bytes::parse, help_heading = "Origins")]
    cache_dir_size: u64,

    /// A socket, for you alone, on which `pollux cache` looks at what is kept and purges it
    #[arg(long, value_name = "PATH", requires = "cache", help_heading = "Origins")]
    control: Option<PathBuf>,

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

fn parse_nonzero(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "wants a number from 1".into())
}

fn parse_body_size(text: &str) -> Result<u64, String> {
    if text == "inf" { Ok(u64::MAX) } else { bytes::parse(text) }
}

/// Below this there is hardly room for a reply of usual length.
const MIN_CACHE: u64 = 1 << 20;

/// How long a server that was stopped writes what it has yet to write to --cache-dir.
const FLUSH_PATIENCE: Duration = Duration::from_secs(10);

fn parse_cache(text: &str) -> Result<u64, String> {
    let size = bytes::parse(text)?;
    if size >= MIN_CACHE { Ok(size) } else { Err("wants a size from 1M".into()) }
}

fn parse_guestbook(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err("the guestbook's path begins with a slash; DIR stands before --guestbook".into())
    }
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
pub(crate) fn run(args: Box<Args>) -> anyhow::Result<ExitCode> {
    let report = if args.json { Report::Json } else { Report::Human };
    // The cache's folder has a thread of its own, which must not be the one that a signal ends.
    pollux_server::hold_signals().context("signals")?;
    let config = config(args)?;
    // What is wrong with a file is no error of usage.
    if let Some(guestbook) = &config.guestbook {
        guestbook.load()?;
    }
    config.check().map_err(|error| UsageError::new(format!("{error:#}")))?;
    if report == Report::Json && config.access_log == Some(LogTarget::Stdout) {
        let both = "--json and --access-log - would both write to standard output: \
                    name a file for the log";
        return Err(UsageError::new(both).into());
    }
    let listens = config.listen.clone();
    let store = config.frontend.as_ref().and_then(|frontend| frontend.cache.clone());
    let outcome = pollux_server::run(config, report);
    if store.is_some_and(|store| !store.flush(FLUSH_PATIENCE)) {
        tracing::warn!("--cache-dir: not all was written within {FLUSH_PATIENCE:?}");
    }
    outcome.map_err(|error| match cannot_listen::advice(&error, &listens) {
        Some(advice) => {
            let advice = terminal::wrap(&advice, terminal::WIDTH, "  ");
            anyhow::anyhow!("{error:#}\n{advice}")
        }
        None => error,
    })?;
    Ok(ExitCode::SUCCESS)
}

fn config(args: Box<Args>) -> anyhow::Result<Config> {
    let guestbook = guestbook(&args)?;
    let frontend = frontend(&args)?;
    let mut config = Config::new("");
    config.site.directory = args.directory;
    config.frontend = frontend.map(Arc::new);
    config.limits.body = args.max_body;
    config.listen = args.listen;
    config.architecture = args.architecture;
    config.pool = args.pool;
    config.accepting = args.accept;
    config.mechanism = args.mechanism;
    config.interest = match args.interest {
        InterestArg::Eager => Discipline::Eager,
        InterestArg::PerState => Discipline::PerState,
    };
    config.workers = args.workers.into();
    config.own_file_tables = Some(own_file_tables());
    config.pin = args.pin;
    config.backlog = args.backlog;
    config.accept_limit = args.accept_limit.0;
    config.max_connections = args.max_connections;
    config.max_requests = args.max_requests.0;
    config.timeouts.header = args.header_timeout;
    config.timeouts.keep_alive = args.keep_alive;
    config.timeouts.send = args.send_timeout;
    config.limits.header_section = args.max_header;
    config.guestbook = guestbook.map(Arc::new);
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
    Ok(config)
}

fn frontend(args: &Args) -> anyhow::Result<Option<FrontendConfig>> {
    if args.origin.is_empty() && args.handover.is_empty() {
        return Ok(None);
    }
    let mut config = FrontendConfig::new(args.origin.clone());
    config.handovers.clone_from(&args.handover);
    config.host.clone_from(&args.origin_host);
    config.forwarded = args.forwarded;
    config.via = (args.via != "off").then(|| args.via.clone());
    config.connect_timeout = args.origin_connect_timeout;
    config.timeout = args.origin_timeout;
    config.connections = args.origin_connections;
    config.keep = args.origin_keep;
    config.keep_timeout = args.origin_keep_timeout;
    if args.cache.is_some()
        && matches!(args.architecture, Architecture::Forking | Architecture::Preforked)
    {
        return Err(UsageError::new(
            "--cache is one for all who serve, and processes share none: take --architecture event, \
             iterative, threaded or prethreaded with it",
        )
        .into());
    }
    config.cache = args.cache.map(|limit| cache(args, limit)).transpose()?;
    config.control.clone_from(&args.control);
    Ok(Some(config))
}

fn cache(args: &Args, limit: u64) -> anyhow::Result<pollux_cache::Store> {
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let mut config = pollux_cache::Config {
        limit_bytes: limit,
        max_object_bytes: args.cache_object,
        negative_lifetime_s: seconds(args.cache_negative),
        stale_if_error_s: seconds(args.cache_stale),
        ..Default::default()
    };
    if matches!(args.forwarded, ForwardedPolicy::Keep | ForwardedPolicy::Remove) {
        // Origins are told what clients say, or nothing.
        config.rewritten_fields.retain(|name| !name.contains("forwarded"));
    }
    let Some(path) = &args.cache_dir else { return Ok(pollux_cache::Store::new(config)) };
    pollux_cache::FsDirectory::open(path.clone())
        .and_then(|folder| pollux_cache::Store::with_directory(config, folder, args.cache_dir_size))
        .with_context(|| format!("--cache-dir {}", path.display()))
}

fn guestbook(args: &Args) -> anyhow::Result<Option<GuestbookConfig>> {
    let Some(path) = &args.guestbook else { return Ok(None) };
    let store = match &args.store {
        Some(store) => store.clone(),
        None => Store::File(default_store()?),
    };
    if matches!((&store, args.store_connections), (Store::File(_), Some(_))) {
        let none = "--store-connections: a file has no connections; it is of --store redis://…";
        return Err(UsageError::new(none).into());
    }
    let mut config = GuestbookConfig::new(path, store);
    config.template.clone_from(&args.guestbook_template);
    config.shown = args.guestbook_shown;
    config.connections = args.store_connections.unwrap_or_default();
    Ok(Some(config))
}

/// Where a guestbook is kept that was told nothing else (XDG Base Directory Specification), in a
/// folder that is made.
fn default_store() -> anyhow::Result<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .context("neither XDG_STATE_HOME nor HOME is set: say --store file:PATH")?;
    let folder = state.join("pollux");
    // For the user alone, as the specification has it.
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
        .create(&folder)
        .with_context(|| format!("cannot make {} (or say --store file:PATH)", folder.display()))?;
    Ok(folder.join("guestbook"))
}
