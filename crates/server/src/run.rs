//! The server as a process: signals, and what is printed.

use crate::{Config, Server, Statistics};
use anyhow::Context;
use pollux_event::sys;
use serde::Serialize;
use std::{io::Write, time::Duration};

/// How a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Sentences on standard error.
    Human,
    /// Lines of JSON on standard output: one when it listens, one with the statistics at each
    /// SIGUSR1 and one at the end.
    Json,
}

/// What tells the main thread that a worker has ended.
const WORKER_ENDED: libc::c_int = libc::SIGUSR2;
const SIGNALS: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, WORKER_ENDED];

/// Runs a server until SIGTERM or SIGINT, then stops within the grace time; a second one stops at
/// once. SIGUSR1 prints the statistics. Must be called by the only thread of the process.
///
/// # Errors
/// As [`Server::start`]; and what ended a worker.
pub fn run(config: Config, report: Report) -> anyhow::Result<Statistics> {
    // The workers inherit this: no signal ever interrupts them.
    sys::block_signals(&SIGNALS)?;
    sys::ignore_sigpipe();
    if let Some(most) = config.signal_queue {
        limit_signal_queue(most)?;
    }
    let grace = config.grace;
    let directory = config.site.directory.clone();
    let server = Server::start_watched(config, Some(|| sys::signal_self(WORKER_ENDED)))?;
    match report {
        Report::Json => println_json(&listening(&server)?)?,
        Report::Human => {
            for address in server.addresses() {
                let scheme =
                    if matches!(address, crate::config::Listen::Tcp(_)) { "http://" } else { "" };
                eprintln!(
                    "pollux serves {} on {scheme}{address} ({})",
                    directory.display(),
                    server.mechanism()
                );
            }
        }
    }
    let mechanism = server.mechanism().name.clone();
    let print = |statistics: &Statistics| match report {
        Report::Json => println_json(&statistics.to_json(&mechanism)),
        Report::Human => {
            eprint!("{}", statistics.to_text());
            Ok(())
        }
    };
    loop {
        match sys::wait_signal(&SIGNALS)? {
            libc::SIGUSR1 => print(&server.statistics())?,
            libc::SIGTERM | libc::SIGINT => {
                server.begin_stop(grace);
                break;
            }
            // Before a stop was asked for no worker should end: `wait` tells why it did.
            _ => {
                server.begin_stop(Duration::ZERO);
                let statistics = server.wait()?;
                print(&statistics)?;
                anyhow::bail!("a worker ended by itself");
            }
        }
    }
    while server.running() > 0 {
        match sys::wait_signal(&SIGNALS)? {
            WORKER_ENDED => {}
            libc::SIGUSR1 => print(&server.statistics())?,
            _ => server.begin_stop(Duration::ZERO),
        }
    }
    let statistics = server.wait()?;
    print(&statistics)?;
    Ok(statistics)
}

/// Before the workers start: which mechanism could queue more is up to them.
fn limit_signal_queue(most: u64) -> anyhow::Result<()> {
    let (_, hard) = sys::signal_queue_limit().context("RLIMIT_SIGPENDING")?;
    anyhow::ensure!(
        most <= hard,
        "--signal-queue {most}: the hard limit is {hard} (ulimit -Hi): ask for no more than that"
    );
    sys::set_signal_queue_limit(most).context("--signal-queue: setrlimit(RLIMIT_SIGPENDING)")
}

fn listening(server: &Server) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Line<'a> {
        event: &'static str,
        addresses: Vec<String>,
        mechanism: &'a str,
        mechanism_spec: String,
        pid: u32,
        workers: &'a [crate::WorkerInfo],
    }
    Ok(serde_json::to_string(&Line {
        event: "listening",
        addresses: server.addresses().iter().map(ToString::to_string).collect(),
        mechanism: &server.mechanism().name,
        mechanism_spec: server.mechanism().to_string(),
        pid: std::process::id(),
        workers: server.workers(),
    })?)
}

/// A line at once: whoever reads it waits for it.
fn println_json(line: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()?;
    Ok(())
}
