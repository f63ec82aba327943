//! `pollux push`.

use super::tls_client::TrustArgs;
use crate::{
    hub_client::{Connection, HubAddress, authorization, describe},
    print::print_all,
};
use anyhow::{Context, bail, ensure};
use pollux_hub::{event_reader::EVENT_BYTES, fields::has_invisible};
use pollux_tls::ClientTrust;
use std::{
    io::{self, BufRead, Read as _},
    path::PathBuf,
    process::ExitCode,
    thread,
    time::Duration,
};
use url::{Url, form_urlencoded::Serializer};

const EXAMPLES: &str = "\
Examples:
  pollux push http://127.0.0.1:8080 --topic news --data \"It rains\"
  vmstat 1 | pollux push http://127.0.0.1:8080 --topic load
                                  An update for each line
  pollux push http://127.0.0.1:8080 --topic /orders/7 --private --data shipped

The command prints the identifier of each update. If the hub answers 429 because
it gets too many updates, the command sends the update again after a second. If
the connection fails before an answer arrives, the command ends: the hub may
have published the update.

Exit status: 0 if all updates were accepted, 1 if one was not.";

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The hub: http://HOST[:PORT] or https://HOST[:PORT], with a path if that is not /.well-known/mercure
    #[arg(value_name = "URL")]
    hub: HubAddress,

    /// The topic of the update: a URL or any other text
    #[arg(long, short, value_name = "TOPIC")]
    topic: String,

    /// The content; without it, each line of standard input is an update
    #[arg(long, short, value_name = "TEXT")]
    data: Option<String>,

    /// Send the update only to subscribers whose token permits the topic
    #[arg(long)]
    private: bool,

    /// The type of the event, for which scripts can listen (addEventListener)
    #[arg(long = "type", value_name = "NAME")]
    event_type: Option<String>,

    /// The identifier of the update [default: the hub generates one]
    #[arg(long, value_name = "ID", requires = "data")]
    id: Option<String>,

    /// How long clients wait before they reconnect, in milliseconds
    #[arg(long, value_name = "MS")]
    retry: Option<u64>,

    /// File with the access token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(flatten)]
    trust: TrustArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut publisher = Publisher {
        url: args.hub.url(),
        fields: authorization(args.token_file.as_deref())?,
        trust: args.trust.trust(),
        id: args.id.clone(),
        connection: None,
    };
    if let Some(data) = &args.data {
        publisher.push(&form(&args, data))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut input = io::stdin().lock();
    while let Some(line) = next_line(&mut input).context("standard input")? {
        publisher.push(&form(&args, &line))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the next line, without its end; returns `None` after the last one.
fn next_line(input: &mut impl BufRead) -> anyhow::Result<Option<String>> {
    let mut line = Vec::new();
    let limit = EVENT_BYTES as u64 + 1;
    if input.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    ensure!(line.len() <= EVENT_BYTES, "a line is longer than {EVENT_BYTES} bytes");
    if line.ends_with(b"\n") {
        line.pop();
        if line.ends_with(b"\r") {
            line.pop();
        }
    }
    Ok(Some(String::from_utf8(line).context("a line is not UTF-8")?))
}

fn form(args: &Args, data: &str) -> String {
    let mut form = Serializer::new(String::new());
    form.append_pair("topic", &args.topic).append_pair("data", data);
    if args.private {
        form.append_pair("private", "on");
    }
    let retry = args.retry.map(|retry| retry.to_string());
    for (name, value) in [("type", &args.event_type), ("id", &args.id), ("retry", &retry)] {
        if let Some(value) = value {
            form.append_pair(name, value);
        }
    }
    form.finish()
}

struct Publisher {
    url: Url,
    fields: String,
    trust: ClientTrust,
    /// The identifier that the command gives the update.
    id: Option<String>,
    /// The connection for all updates, for as long as it is open.
    connection: Option<Connection>,
}

impl Publisher {
    fn push(&mut self, form: &str) -> anyhow::Result<()> {
        loop {
            let mut connection = match self.connection.take().filter(Connection::is_open) {
                Some(connection) => connection,
                None => Connection::open(&self.url, &self.trust)?,
            };
            // Without an answer nobody knows whether the hub has accepted the update. If it has, a second attempt would
            // reach subscribers twice.
            let answer = connection
                .request("POST", &self.url, &self.fields, form.as_bytes())
                .and_then(|response| Ok((response.status, connection.text()?)));
            let (status, text) =
                answer.context("the hub may have published the update, which is not sent again")?;
            self.connection = Some(connection);
            match status {
                200..=299 => {
                    let is_own = self.id.as_ref().is_some_and(|id| id.trim_end() == text);
                    ensure!(
                        is_own || is_identifier(&text),
                        "{}: the answer {status} has no identifier of the update: is this the URL of a hub?",
                        self.url
                    );
                    // Updates are published also if nobody reads their identifiers.
                    return print_all(&format!("{text}\n"));
                }
                429 => thread::sleep(Duration::from_secs(1)),
                status => bail!(describe(status, &text)),
            }
        }
    }
}

/// Returns whether the text can be the identifier that a hub has generated, which is an IRI (Mercure, "Publication";
/// for the characters RFC 3987 §2.2). Nothing else tells a hub from another web server: it may choose any status of
/// success, and the protocol names no media type. The reference hub sets none, and its library guesses one.
fn is_identifier(text: &str) -> bool {
    let is_excluded = |c: char| c.is_whitespace() || r#"<>"{}|\^`"#.contains(c);
    !text.is_empty() && !text.contains(is_excluded) && !has_invisible(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_an_iri() {
        for hubs in ["urn:uuid:e1ee88e2-532a-4d6f-ba70-f0f8bd584022", "#7", "id", "/\u{e9}?a=[1]"] {
            assert!(is_identifier(hubs), "{hubs}");
        }
        for other in ["", "<html>hi</html>", "{}", "not found", "a\nb", "\u{1b}[2J", "a\u{202e}b"] {
            assert!(!is_identifier(other), "{other:?}");
        }
    }

    #[test]
    fn lines_of_standard_input_are_bounded() {
        let mut input = &b"one\r\n\ntwo"[..];
        let mut next = || next_line(&mut input).unwrap();
        assert_eq!(
            [next(), next(), next()],
            [Some("one".into()), Some("".into()), Some("two".into())]
        );
        assert_eq!(next(), None);
        let endless = io::repeat(b'x');
        let error = next_line(&mut io::BufReader::new(endless)).unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
        assert!(next_line(&mut &b"\xff\n"[..]).is_err());
    }
}
