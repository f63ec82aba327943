//! A Redis server that belongs to the experiment.

use super::{
    interrupt::Interrupt,
    process::{Process, pinned},
};
use crate::{experiment::Redis, measure, peer::Port};
use anyhow::{Context as _, bail, ensure};
use pollux_sys::find_program;
use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// How long Redis may take to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// The keys of the guestbook (`pollux-guestbook`).
const REMARKS: &str = "guestbook_remarks";
const VISITORS: &str = "visitor_count";
/// The number of clients for which RLIMIT_NOFILE has room; Redis itself would lower a higher number.
const MAX_CLIENTS: &str = "19000";

/// A running Redis, which ends when this value is dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    address: SocketAddr,
    cpu: u32,
    _directory: TempDir,
}

/// Returns the path of one of Redis' programs.
///
/// # Errors
/// When Redis is not installed.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    find_program(name).with_context(|| format!("{name} is not installed: run `scripts/setup test`"))
}

impl RedisServer {
    /// Starts Redis on `cpu`, without persistence, and adds the remarks.
    ///
    /// # Errors
    /// When Redis is not installed, or does not answer.
    pub fn start(redis: &Redis, cpu: u32, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let reserved = Port::reserve()?;
        let address = reserved.address();
        let directory = tempfile::Builder::new().prefix("pollux-lab-redis-").tempdir()?;
        let executable = program("redis-server")?;
        let mut words: Vec<OsString> = vec![executable.into()];
        let port = address.port().to_string();
        let options = [
            ["--bind", "127.0.0.1"],
            ["--port", &port],
            ["--save", ""],
            ["--appendonly", "no"],
            ["--daemonize", "no"],
            ["--maxclients", MAX_CLIENTS],
            ["--tcp-backlog", "4096"],
            ["--loglevel", "warning"],
        ];
        words.extend(options.as_flattened().iter().map(OsString::from));
        words.extend(["--dir".into(), directory.path().into()]);
        let mut process = Process::spawn("Redis", &pinned(cpu, &words))?;
        let started_at = Instant::now();
        while TcpStream::connect(address).is_err() {
            interrupt.check()?;
            if process.ended().is_some() || started_at.elapsed() > ANSWER {
                process.drain_stderr();
                bail!("{}", process.complaint("does not answer"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let running = Self { process, address, cpu, _directory: directory };
        running.fill(redis.remarks)?;
        Ok(running)
    }

    fn fill(&self, remarks: u32) -> anyhow::Result<()> {
        for number in 0..remarks {
            let remark = format!("Remark {number} of a guest who liked the place - Guest {number}");
            let reply = self.command(&["RPUSH", REMARKS, &remark])?;
            ensure!(reply == format!(":{}", number + 1), "Redis replied {reply:?} to RPUSH");
        }
        Ok(())
    }

    fn command(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        stream.write_all(text.as_bytes())?;
        let mut line = String::new();
        BufReader::new(&stream).take(4096).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Returns the URL of Redis for `--store`.
    pub fn url(&self) -> String {
        format!("redis://{}/0", self.address)
    }

    /// The CPU on which Redis runs.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// The command line of Redis.
    pub fn command_line(&self) -> &str {
        self.process.command()
    }

    /// The CPU time of Redis so far, in nanoseconds.
    ///
    /// # Errors
    /// When Redis has ended.
    pub fn cpu_ns(&self) -> anyhow::Result<u64> {
        Ok(measure::cpu_time(self.process.pid())?.run_ns)
    }

    /// Returns the command line of Redis' own benchmark for one of the two commands of a page: LRANGE if
    /// `shown` is given, else INCR.
    ///
    /// # Errors
    /// When the benchmark is not installed.
    pub fn benchmark(
        &self,
        cpu: u32,
        connections: u32,
        pipeline: u32,
        requests: u64,
        shown: Option<u32>,
    ) -> anyhow::Result<Vec<OsString>> {
        let mut words: Vec<OsString> = vec![program("redis-benchmark")?.into()];
        let port = self.address.port().to_string();
        let text = [connections, pipeline].map(|number| number.to_string());
        let requests = requests.to_string();
        let options = [
            ["-h", "127.0.0.1"],
            ["-p", &port],
            ["-c", &text[0]],
            ["-P", &text[1]],
            ["-n", &requests],
        ];
        words.extend(options.as_flattened().iter().chain(&["--csv"]).map(OsString::from));
        match shown {
            Some(shown) => {
                let first = format!("-{shown}");
                words.extend(["LRANGE", REMARKS, &first, "-1"].map(OsString::from));
            }
            None => words.extend(["INCR", VISITORS].map(OsString::from)),
        }
        Ok(pinned(cpu, &words))
    }
}

/// Reads the requests per second from the benchmark's `--csv` output.
///
/// # Errors
/// When the output has no such column.
pub fn rate_rps(csv: &str) -> anyhow::Result<f64> {
    let line = csv.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    // The name of the test may contain commas. Like all fields it is in quotes.
    let fields: Vec<&str> = line.trim().trim_matches('"').split("\",\"").collect();
    let rate = fields.get(1).and_then(|field| field.parse::<f64>().ok());
    rate.filter(|rate| *rate > 0.0).with_context(|| format!("redis-benchmark wrote {csv:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_in_the_benchmarks_table() {
        let csv =
            "\"test\",\"rps\",\"avg_latency_ms\"\n\"LRANGE a -100, -1\",\"41666.67\",\"1.0\"\n";
        assert_eq!(rate_rps(csv).unwrap(), 41_666.67);
        assert!(rate_rps("").is_err());
        assert!(rate_rps("\"test\",\"rps\"\n").is_err());
    }
}
