//! `pollux top`.

mod layout;

use crate::{print::print_with, terminal};
use anyhow::{Context, bail};
use pollux_server::config::Listen;
use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    process::ExitCode,
    time::Duration,
};

const EXAMPLES: &str = "\
Examples:
  pollux top 127.0.0.1:9100
  pollux top unix:/run/pollux/admin --once

The server has to run with `--admin ADDRESS`. The figures are those of the page
that it has there for browsers. Control-C ends it.

Exit status: 0 after --once, 1 when the server cannot be reached or has ended.";

/// The time for which a server may be silent; it sends statistics once a second.
const PATIENCE: Duration = Duration::from_secs(15);
/// The maximum size of a line of statistics in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Moves the cursor to the upper left corner and clears the screen below it.
const HOME: &str = "\x1b[H\x1b[J";

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The server's --admin address: ADDRESS:PORT or unix:PATH
    #[arg(value_name = "ADDRESS")]
    address: Listen,

    /// Print the figures once
    #[arg(long)]
    once: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut events = events(&args.address)?;
    // A terminal that cannot move its cursor gets one text after the other, like a file.
    let moves = io::stdout().is_terminal() && terminal::shows_progress() && !args.once;
    loop {
        let figures = next(&mut events).with_context(|| format!("pollux top {}", args.address))?;
        let text = layout::text(&figures, terminal::width());
        let start = if moves { HOME } else { "" };
        let has_reader =
            print_with(|out| writeln!(out, "{start}{text}")).context("standard output")?;
        if args.once || !has_reader {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Requests the stream of statistics.
fn events(address: &Listen) -> anyhow::Result<Box<dyn BufRead>> {
    let advice = "(`pollux serve --admin ADDRESS` serves its figures there)";
    let open = || -> io::Result<Box<dyn BufRead>> {
        let request = "GET /events HTTP/1.1\r\nHost: pollux\r\nConnection: close\r\n\r\n";
        Ok(match address {
            Listen::Unix(path) => {
                let mut stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(request.as_bytes())?;
                Box::new(BufReader::new(stream))
            }
            Listen::Tcp(address) => {
                let mut stream = TcpStream::connect_timeout(address, PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(request.as_bytes())?;
                Box::new(BufReader::new(stream))
            }
            Listen::Passed(_) => return Err(io::ErrorKind::AddrNotAvailable.into()),
        })
    };
    let mut reader = open().with_context(|| format!("cannot reach {address} {advice}"))?;
    let status = line(&mut reader).with_context(|| format!("{address} {advice}"))?;
    if !status.starts_with("HTTP/1.1 200 ") {
        bail!("{address} answers {:?}: is it an --admin address?", status.trim_end());
    }
    Ok(reader)
}

/// Reads the next statistics, by key.
fn next(events: &mut impl BufRead) -> anyhow::Result<HashMap<String, String>> {
    loop {
        let line = line(events)?;
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).context("the server's figures");
        }
    }
}

fn line(reader: &mut impl BufRead) -> anyhow::Result<String> {
    let mut line = String::new();
    if reader.take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
        bail!("the server has ended");
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_after_the_head() {
        let mut stream =
            "Date: x\r\n\r\ndata: {\"open\":\"7\"}\n\ndata: {\"open\":\"8\"}\n\n".as_bytes();
        assert_eq!(next(&mut stream).unwrap()["open"], "7");
        assert_eq!(next(&mut stream).unwrap()["open"], "8");
        assert!(next(&mut stream).is_err());
    }
}
