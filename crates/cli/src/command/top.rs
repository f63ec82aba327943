//! `pollux top`.

mod layout;

use crate::{command::control::connect, print::print_with, terminal};
use anyhow::{Context, bail, ensure};
use pollux_server::config::Listen;
use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    net::TcpStream,
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
    // A terminal that cannot move its cursor gets one text after the other, like a file.
    let moves = io::stdout().is_terminal() && terminal::shows_progress() && !args.once;
    follow(&args.address, |figures| {
        let text = layout::text(figures, terminal::width());
        let start = if moves { HOME } else { "" };
        let has_reader =
            print_with(|out| writeln!(out, "{start}{text}")).context("standard output")?;
        Ok(has_reader && !args.once)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Passes the statistics to `show` until it returns false. A server ends a stream after an hour and at a live upgrade;
/// then the stream is requested again, at the latter from the new process.
///
/// # Errors
/// The server cannot be reached, or has ended; the errors of `show`.
fn follow(
    address: &Listen,
    mut show: impl FnMut(&HashMap<String, String>) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut stream = events(address)?;
    loop {
        let mut has_figures = false;
        while let Some(figures) =
            next(&mut stream).with_context(|| format!("pollux top {address}"))?
        {
            has_figures = true;
            if !show(&figures)? {
                return Ok(());
            }
        }
        let ended = || format!("pollux top {address}: the server has ended");
        // A stream without any figures would be requested again and again without a pause.
        ensure!(has_figures, ended());
        stream = events(address).with_context(ended)?;
    }
}

/// Requests the stream of statistics.
fn events(address: &Listen) -> anyhow::Result<Box<dyn BufRead>> {
    let advice = "(`pollux serve --admin ADDRESS` serves its figures there)";
    let open = || -> io::Result<Box<dyn BufRead>> {
        let request = "GET /events HTTP/1.1\r\nHost: pollux\r\nConnection: close\r\n\r\n";
        Ok(match address {
            Listen::Unix(path) => {
                let mut stream = connect(path)?;
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
    let status = line(&mut reader).and_then(|line| line.context("it has closed the connection"));
    let status = status.with_context(|| format!("{address} {advice}"))?;
    if !status.starts_with("HTTP/1.1 200 ") {
        bail!("{address} answers {:?}: is it an --admin address?", status.trim_end());
    }
    Ok(reader)
}

/// Reads the next statistics, by key; returns `None` at the end of the stream.
fn next(events: &mut impl BufRead) -> anyhow::Result<Option<HashMap<String, String>>> {
    while let Some(line) = line(events)? {
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).map(Some).context("the server's figures");
        }
    }
    Ok(None)
}

/// Reads the next line; returns `None` at the end of the stream.
fn line(reader: &mut impl BufRead) -> anyhow::Result<Option<String>> {
    let mut line = String::new();
    let len = reader.take(LINE_BYTES_MAX).read_line(&mut line)?;
    Ok((len > 0).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    #[test]
    fn figures_are_found_after_the_head() {
        let mut stream =
            "Date: x\r\n\r\ndata: {\"open\":\"7\"}\n\ndata: {\"open\":\"8\"}\n\n".as_bytes();
        for open in ["7", "8"] {
            assert_eq!(next(&mut stream).unwrap().unwrap()["open"], open);
        }
        assert!(next(&mut stream).unwrap().is_none());
    }

    /// Regression: after an hour, and at a live upgrade, `pollux top` said that the server had ended, and so did it.
    #[test]
    fn a_stream_that_ends_is_requested_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Listen::Tcp(listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            for open in ["7", "8"] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = BufReader::new(stream.try_clone().unwrap());
                while line(&mut request).unwrap().unwrap() != "\r\n" {}
                let head = "HTTP/1.1 200 OK\r\n\r\n";
                write!(stream, "{head}data: {{\"open\":\"{open}\"}}\n\n").unwrap();
            }
        });
        let mut shown = Vec::new();
        let error = follow(&address, |figures| {
            shown.push(figures["open"].clone());
            Ok(true)
        });
        server.join().unwrap();
        assert_eq!(shown, ["7", "8"]);
        assert!(error.unwrap_err().to_string().contains("has ended"));
    }
}
