//! The server under test, as a process.

use super::{interrupt::Interrupt, process::Process};
use crate::environment::guest;
use anyhow::{Context as _, bail};
use rustix::process::Signal;
use serde_json::Value as Json;
use std::{
    ffi::OsString,
    time::{Duration, Instant},
};

/// How long the server may take until it listens.
const START: Duration = Duration::from_secs(15);
/// How long it may take to write its statistics.
const ANSWER: Duration = Duration::from_secs(15);
/// How long it may take until all idle connections are open, and how much longer for each.
const FILL: Duration = Duration::from_secs(30);
const FILL_EACH: Duration = Duration::from_micros(300);
/// How long their number may stand still before they count as refused.
const STALL: Duration = Duration::from_secs(2);
/// How much longer both may take in a guest, whose CPU is emulated.
const GUEST_FACTOR: u32 = 8;
/// How often their number is asked for.
const ASK: Duration = Duration::from_millis(40);

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    process: Process,
    /// Its `listening` line.
    pub listening: Json,
    /// Where it listens.
    pub address: String,
    /// The mechanism that really runs, with its options.
    pub mechanism: String,
}

impl Server {
    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// When it ends or does not listen in time; the message holds what it wrote.
    pub fn start(program: &[OsString], interrupt: &Interrupt) -> anyhow::Result<Self> {
        let mut process = Process::spawn("the server", program)?;
        let Some(line) = process.line(START, interrupt)? else {
            process.drain_stderr();
            bail!("{}", process.complaint("ended before it listened"));
        };
        let listening = event(&line, "listening").with_context(|| process.complaint("spoke up"))?;
        let address = listening["addresses"][0]
            .as_str()
            .with_context(|| format!("no address in {line}"))?
            .to_owned();
        let mechanism = listening["mechanism_spec"]
            .as_str()
            .or_else(|| listening["mechanism"].as_str())
            .with_context(|| format!("no mechanism in {line}"))?
            .to_owned();
        Ok(Self { process, listening, address, mechanism })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its command line.
    pub fn command(&self) -> &str {
        self.process.command()
    }

    /// From now on so many signals may be queued for it. Only the soft limit is set: it can be raised
    /// again.
    ///
    /// # Errors
    /// Those of prlimit(2).
    pub fn limit_signal_queue(&self, length: u64) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).context("the server's id")?;
        let maximum = rustix::process::getrlimit(rustix::process::Resource::Sigpending).maximum;
        let limit = rustix::process::Rlimit { current: Some(length), maximum };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Sigpending, limit)
            .with_context(|| format!("a queue of {length} signals for the server (prlimit(2))"))?;
        Ok(())
    }

    /// Its statistics as they stand (SIGUSR1).
    ///
    /// # Errors
    /// When it has ended or does not answer.
    pub fn statistics(&self, interrupt: &Interrupt) -> anyhow::Result<Json> {
        self.process.signal(Signal::USR1)?;
        match self.process.line(ANSWER, interrupt)? {
            Some(line) => event(&line, "statistics"),
            None => bail!("{}", self.process.complaint("ended while it was measured")),
        }
    }

    /// Waits until `wanted` connections are open.
    ///
    /// # Errors
    /// [`NotHeld`] when it holds fewer and their number stands still; anything else when it does
    /// not answer.
    pub fn await_open(
        &self,
        wanted: u64,
        holder: &mut Process,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let started_at = Instant::now();
        let (mut most, mut grew_at) = (0, started_at);
        let each = u32::try_from(wanted).unwrap_or(u32::MAX);
        let fill = FILL + FILL_EACH.saturating_mul(each);
        loop {
            let statistics = self.statistics(interrupt)?;
            let open = statistics["connections"]["open"]
                .as_u64()
                .context("the server's statistics lack connections.open")?;
            if open >= wanted {
                return Ok(());
            }
            if open > most {
                (most, grew_at) = (open, Instant::now());
            }
            let ended = holder.ended().is_some();
            // Before the first connection the holder itself may still be starting, which takes an
            // emulated or a busy machine seconds.
            let factor = if guest().is_some() { GUEST_FACTOR } else { 1 };
            let patience = if most == 0 { START } else { STALL * factor };
            if ended || grew_at.elapsed() > patience || started_at.elapsed() > fill * factor {
                let mut said = self.process.stderr();
                if said.is_empty() {
                    said = holder.stderr();
                }
                return Err(NotHeld { wanted, held: most, said }.into());
            }
            std::thread::sleep(ASK);
        }
    }
}

/// The server does not hold as many connections as the experiment wants.
#[derive(Debug, thiserror::Error)]
#[error("the server held {held} of {wanted} idle connections{}", because(said))]
pub struct NotHeld {
    wanted: u64,
    held: u64,
    said: String,
}

fn because(said: &str) -> String {
    // The first line says what happened; the rest repeats it.
    said.lines().next().map_or_else(String::new, |line| format!(": {}", line.trim()))
}

fn event(line: &str, wanted: &str) -> anyhow::Result<Json> {
    let json: Json =
        serde_json::from_str(line).with_context(|| format!("not JSON: {}", excerpt(line)))?;
    anyhow::ensure!(json["event"] == wanted, "expected event {wanted:?}, got {}", excerpt(line));
    Ok(json)
}

fn excerpt(line: &str) -> String {
    line.chars().take(200).collect()
}
