//! `pollux cache`.

mod text;

use super::control::{self, Client, ControlError};
use pollux_server::admin::{ControlEvent, ControlRequest, ErrorKind, What, text_of};
use std::{
    ffi::OsString,
    io::{self, BufWriter, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

const EXAMPLES: &str = "\
The server has to run with `--cache SIZE --control PATH`. Other programs may
use that socket too: a request is a line of JSON, and the answer is lines of
JSON, of which the last one has the event \"end\" or \"error\". Requests:
  {\"command\":\"list\",\"prefix\":\"http://a.example/img/\",\"limit\":100}
  {\"command\":\"show\",\"url\":\"http://a.example/\"}
  {\"command\":\"purge\",\"what\":{\"surrogate_key\":\"article-7\"}}
  {\"command\":\"purge\",\"what\":\"all\"}            (or {\"url\":…}, {\"prefix\":…})
  {\"command\":\"statistics\"}
Each byte of a URL or a field is one character, U+0000 to U+00FF.

Exit status: 0 when it was done, 1 when the URL of `show` is not stored or when
the answer cannot be written, 2 for a command line that is not understood, 3
when the server cannot be reached or is busy.";

const LIST_EXAMPLES: &str = "\
Examples:
  pollux cache list --control /run/pollux/ctl
  pollux cache list --control /run/pollux/ctl --prefix http://a.example/img/
  pollux cache list --control /run/pollux/ctl --json --limit 1000

Columns: AGE of the latest variant, and the time for which it is still fresh
(LEFT, negative if it is stale); HITS since it was loaded into memory; VAR, the
number of variants; the bytes of all variants, metadata included; MEMORY, DISK
or BOTH. The list has no order.";

const SHOW_EXAMPLES: &str = "\
Example:
  pollux cache show --control /run/pollux/ctl http://a.example/

Prints the fields of each variant. The requests that found a variant are counted
for the URL, and not for each variant.

Exit status: 1 when it is not stored, 3 when the server cannot be reached or is
busy.";

const PURGE_USAGE: &str = "\
pollux cache purge --control <PATH> [--json] <URL>
       pollux cache purge --control <PATH> [--json] --prefix <URL>
       pollux cache purge --control <PATH> [--json] --surrogate-key <KEY>
       pollux cache purge --control <PATH> [--json] --all";

const PURGE_EXAMPLES: &str = "\
Examples:
  pollux cache purge --control /run/pollux/ctl http://a.example/a
  pollux cache purge --control /run/pollux/ctl --prefix http://a.example/img/
  pollux cache purge --control /run/pollux/ctl --surrogate-key article-7
  pollux cache purge --control /run/pollux/ctl --all

Responses are removed from memory and from --cache-dir. A response that an
origin is sending at that time is not stored. A URL without a path is that of /;
a query is a part of a URL, a fragment is not.

Surrogate keys are the members of a response's Surrogate-Key (Fastly's) or xkey
(Varnish's), separated by spaces, or of its Cache-Tag, separated by commas.

Exit status: 0 also when there was nothing to remove, 3 when the server cannot
be reached or is busy.";

const STATS_EXAMPLES: &str = "\
Examples:
  pollux cache stats --control /run/pollux/ctl
  pollux cache stats --control /run/pollux/ctl --json

The counters begin with the server. The list explains each of them.";

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The server's control socket
    #[arg(long, value_name = "PATH", global = true)]
    control: Option<PathBuf>,
    /// Print the server's lines of JSON as they come
    // With this order it follows --control, before the flags of a subcommand.
    #[arg(long, global = true, display_order = 0)]
    json: bool,
    #[command(subcommand)]
    what: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the URLs that are stored
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// Only URLs that begin with this text
        #[arg(long, value_name = "URL", default_value = "")]
        prefix: OsString,
        /// Print at most N URLs
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Show what is stored for a URL: fields, variants, and its freshness
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// The URL
        url: OsString,
    },
    /// Remove what is stored: for a URL, below a prefix, with a surrogate key, or all
    #[command(after_help = PURGE_EXAMPLES, override_usage = PURGE_USAGE)]
    Purge {
        #[command(flatten)]
        what: PurgeArgs,
    },
    /// Print the counters by outcome
    #[command(after_help = STATS_EXAMPLES)]
    Stats,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct PurgeArgs {
    /// A URL, in all its variants
    url: Option<OsString>,
    /// All URLs that begin like this
    #[arg(long, value_name = "URL")]
    prefix: Option<OsString>,
    /// All responses that have this surrogate key
    #[arg(long, value_name = "KEY")]
    surrogate_key: Option<OsString>,
    /// Everything
    #[arg(long)]
    all: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let request = match args.what {
        Command::List { prefix, limit } => ControlRequest::List { prefix: bytes(&prefix), limit },
        Command::Show { url } => ControlRequest::Show { url: bytes(&url) },
        Command::Purge { what } => ControlRequest::Purge { what: what.what() },
        Command::Stats => ControlRequest::Statistics {},
    };
    match exchange(&control::path_of(args.control)?, args.json, &request) {
        Err(ControlError::Rejected(ErrorKind::NotStored, message)) => anyhow::bail!(message),
        Err(ControlError::Rejected(ErrorKind::BadRequest, message)) => {
            Err(crate::usage::UsageError::new(message).into())
        }
        outcome => control::exit_code(outcome),
    }
}

/// Converts an argument to a text of bytes: neither arguments nor URLs in a cache need be UTF-8.
fn bytes(argument: &OsString) -> String {
    text_of(argument.as_bytes())
}

impl PurgeArgs {
    fn what(self) -> What {
        let Self { url, prefix, surrogate_key, .. } = self;
        let url = url.map(|url| What::Url(bytes(&url)));
        let prefix = prefix.map(|prefix| What::Prefix(bytes(&prefix)));
        let key = surrogate_key.map(|key| What::SurrogateKey(bytes(&key)));
        url.or(prefix).or(key).unwrap_or(What::All)
    }
}

fn exchange(control: &Path, json: bool, request: &ControlRequest) -> Result<(), ControlError> {
    let mut client = Client::connect(control)?;
    client.send(request)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut shown = 0;
    loop {
        let (line, event) = client.event()?;
        if json {
            out.write_all(line.as_bytes()).map_err(ControlError::Output)?;
        }
        match &event {
            ControlEvent::End { .. } => break,
            ControlEvent::Error { kind, message } => {
                out.flush().map_err(ControlError::Output)?;
                return Err(ControlError::Rejected(*kind, text::printable(message)));
            }
            _ if json => {}
            event => text::put(event, shown, &mut out).map_err(ControlError::Output)?,
        }
        shown += 1;
    }
    out.flush().map_err(ControlError::Output)
}
