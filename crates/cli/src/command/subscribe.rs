//! `pollux subscribe`.

use super::tls_client::TrustArgs;
use crate::{
    hub_client::{Connection, HubAddress, UntrustedError, authorization, describe},
    message::say,
    print::print_with,
    usage::UsageError,
};
use anyhow::bail;
use clap::ArgAction;
use pollux_hub::event_reader::{Event, EventReader};
use pollux_tls::{ClientTrust, ConfigError};
use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    thread,
    time::Duration,
};
use url::Url;

const EXAMPLES: &str = "\
Examples:
  pollux subscribe http://127.0.0.1:8080 --topic news
  pollux subscribe http://127.0.0.1:8080 --pattern '/orders/:id' --json
  pollux subscribe http://127.0.0.1:8080 --topic '*' --last-event-id earliest
                                  All topics, from the start of the history

The command prints the content of each update, followed by a line feed. When the
stream ends or the connection fails, it connects again and continues after the
last update. An update of more than 16 MiB is skipped, with a message.

Exit status: 0 after --count updates, 1 if the hub refuses the subscription.";

/// The time for which a hub may be silent. Hubs send comments more often.
const SILENCE: Duration = Duration::from_secs(150);
/// The bounds of the delay before a new connection that a hub may set. Without a delay, each attempt to reach a hub that is
/// gone would follow the last one at once.
const SHORTEST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The hub: http://HOST[:PORT] or https://HOST[:PORT], with a path if that is not /.well-known/mercure
    #[arg(value_name = "URL")]
    hub: HubAddress,

    /// Subscribe to this topic, or to all (*); may be repeated
    #[arg(long, short, value_name = "TOPIC", action = ArgAction::Append, required_unless_present = "pattern")]
    topic: Vec<String>,

    /// Subscribe to the topics that match this URL pattern, such as /orders/:id; may be repeated
    #[arg(long, short, value_name = "PATTERN", action = ArgAction::Append)]
    pattern: Vec<String>,

    /// Begin after the update with this identifier, or with the whole history (earliest)
    #[arg(long, value_name = "ID")]
    last_event_id: Option<String>,

    /// End after this number of updates
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Print each update as a line of JSON: id, type and data
    #[arg(long)]
    json: bool,

    /// File with the access token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    trust: TrustArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(id) = &args.last_event_id {
        check_last_id(id)?;
    }
    let mut url = args.hub.url();
    for topic in &args.topic {
        url.query_pairs_mut().append_pair("match", topic);
    }
    for pattern in &args.pattern {
        url.query_pairs_mut().append_pair("match_urlpattern", pattern);
    }
    let mut reader = Reader {
        url,
        trust: args.trust.trust(),
        authorization: authorization(args.token_file.as_deref())?,
        last_id: args.last_event_id,
        retry: Duration::from_secs(1),
        left: args.count,
        json: args.json,
    };
    loop {
        match reader.read() {
            Ok(End::Count | End::Reader) => return Ok(ExitCode::SUCCESS),
            Ok(End::Refusal(why)) => bail!(why),
            // A hub that stops ends its streams; when a hub fails, its streams are lost.
            Ok(End::Stream) => {}
            Err(error) if error.is::<OutputError>() => return Err(error),
            // Another attempt would fail with the same error.
            Err(error) if error.is::<UntrustedError>() || error.is::<ConfigError>() => {
                return Err(error);
            }
            Err(error) => {
                say(format_args!("{error:#}; connecting again in {:?}", reader.retry));
            }
        }
        thread::sleep(reader.retry);
    }
}

/// Checks that an identifier can be sent in a field (RFC 9110 §5.5): with a line break it would begin another field, or
/// another request. The identifiers in a stream of events have no line breaks and no NUL.
fn check_last_id(id: &str) -> Result<(), UsageError> {
    if id.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        let advice = "give an id that `pollux subscribe --json` has printed, or earliest";
        return Err(UsageError::new(format_args!(
            "--last-event-id {id:?} holds a control character: {advice}"
        )));
    }
    Ok(())
}

/// The reason why a stream is no longer read.
enum End {
    /// The requested number of updates has been received.
    Count,
    /// The reader of standard output has closed the pipe.
    Reader,
    /// The hub has ended the stream.
    Stream,
    /// The hub refuses further requests.
    Refusal(String),
}

#[derive(Debug, thiserror::Error)]
#[error("standard output: {0}")]
struct OutputError(io::Error);

struct Reader {
    url: Url,
    trust: ClientTrust,
    authorization: String,
    last_id: Option<String>,
    retry: Duration,
    left: Option<u64>,
    json: bool,
}

impl Reader {
    /// Reads one stream to its end.
    fn read(&mut self) -> anyhow::Result<End> {
        let mut connection = Connection::open(&self.url, &self.trust)?;
        let last = self.last_id.as_ref().map(|id| format!("Last-Event-ID: {id}\r\n"));
        let fields = format!(
            "Accept: text/event-stream\r\n{}{}",
            self.authorization,
            last.unwrap_or_default()
        );
        let response = connection.request("GET", &self.url, &fields, b"")?;
        match response.status {
            200 if is_stream(response.content_type.as_deref()) => {}
            // Another attempt would get the same (HTML Standard §9.2.3).
            200 => {
                let text =
                    "the answer is not of the type text/event-stream: is this the URL of a hub?";
                return Ok(End::Refusal(format!("{}: {text}", self.url)));
            }
            429 | 500.. => {
                bail!(describe(response.status, &connection.text()?));
            }
            status => return Ok(End::Refusal(describe(status, &connection.text()?))),
        }
        connection.set_patience(SILENCE)?;
        let mut events = EventReader::new(self.last_id.as_deref());
        while let Some(content) = connection.content()? {
            for event in events.read(&content) {
                let event = match event {
                    Ok(event) => event,
                    // Another attempt would get the same, and never reach the events behind it.
                    Err(error) => {
                        say(format_args!("{error}"));
                        continue;
                    }
                };
                if !self.print(&event)? {
                    return Ok(End::Reader);
                }
                self.left = self.left.map(|left| left.saturating_sub(1));
                if self.left == Some(0) {
                    return Ok(End::Count);
                }
            }
            self.last_id = Some(events.last_id().to_owned()).filter(|id| !id.is_empty());
            if let Some(retry) = events.retry_ms() {
                self.retry = Duration::from_millis(retry).clamp(SHORTEST_RETRY, LONGEST_RETRY);
            }
        }
        Ok(End::Stream)
    }

    /// Prints an update. Returns false if nobody reads it.
    fn print(&self, event: &Event) -> Result<bool, OutputError> {
        let Event { id, name, data } = event;
        let text = if self.json {
            serde_json::json!({"id": id, "type": name, "data": data}).to_string()
        } else {
            data.clone()
        };
        print_with(|out| writeln!(out, "{text}")).map_err(OutputError)
    }
}

/// Returns whether the content of a response is a stream of events.
fn is_stream(content_type: Option<&str>) -> bool {
    let essence = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("text/event-stream")
}
