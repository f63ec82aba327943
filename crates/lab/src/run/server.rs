//! The server under test, as a process.

use super::{
    interrupt::Interrupt,
    process::{Process, pinned},
};
use crate::{environment::patience, peer::SetUp};
use anyhow::{Context as _, bail};
use pollux_tls::{ClientSettings, ServerName};
use rustix::process::Signal;
use rustls::{ClientConnection, StreamOwned};
use serde_json::Value as Json;
use std::{
    ffi::OsString,
    io::{self, BufRead as _, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// How long the server may take until it listens.
const START: Duration = Duration::from_secs(15);
/// How long a peer may take until it listens: Varnish first compiles its configuration.
const PEER_START: Duration = Duration::from_secs(60);
/// How long a server may take to write its statistics or to answer a request.
const ANSWER: Duration = Duration::from_secs(15);
/// How long the idle connections may take to open: a constant part, and a part for each connection.
const FILL: Duration = Duration::from_secs(30);
const FILL_EACH: Duration = Duration::from_micros(300);
/// How long the number of open connections may stay the same before the rest counts as refused, if the
/// server wrote to stderr.
const STALL: Duration = Duration::from_secs(2);
/// The same for a server without output on stderr: the server, or the holder that opens the connections,
/// may just be waiting for a CPU.
const SILENT_STALL: Duration = Duration::from_secs(12);
/// The interval at which the number of open connections is requested.
const POLL: Duration = Duration::from_millis(40);

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    process: Process,
    /// The server's `listening` line.
    pub listening: Json,
    /// The address on which the server listens.
    pub address: String,
    /// The mechanism that the server reports, with its options.
    pub mechanism: String,
    /// Whether the server uses HTTPS.
    pub is_tls: bool,
    /// Whether the server reports statistics, as Pollux does.
    has_statistics: bool,
}

impl Server {
    /// Starts the floor on `cpu` ([`crate::floor`]), and waits until it listens.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_floor(
        program: &[OsString],
        cpu: u32,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        Ok(Self { has_statistics: false, ..Self::start(&pinned(cpu, program), interrupt)? })
    }

    /// Starts a Pollux server and waits until it listens.
    ///
    /// # Errors
    /// When the server ends or does not listen in time; the message contains its output on stderr.
    pub fn start(program: &[OsString], interrupt: &Interrupt) -> anyhow::Result<Self> {
        let mut process = Process::spawn("the server", program)?;
        let Some(line) = process.line(patience(START), interrupt)? else {
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
        Ok(Self { process, listening, address, mechanism, is_tls: false, has_statistics: true })
    }

    /// Starts a peer on `cpu` and waits until it answers a request for `path`.
    ///
    /// # Errors
    /// When the peer ends, or does not answer with status 200 in time; the message contains its output on
    /// stderr.
    pub fn start_peer(
        name: &'static str,
        set_up: &SetUp,
        cpu: u32,
        path: &str,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let program = pinned(cpu, &set_up.program);
        let process = Process::spawn_peer(name, &program)?;
        let address = set_up.port.address().to_string();
        let mut server = Self {
            process,
            listening: Json::Null,
            address,
            mechanism: name.into(),
            is_tls: set_up.is_tls,
            has_statistics: false,
        };
        let started_at = Instant::now();
        while let Err(error) = answers(set_up.port.address(), set_up.is_tls, path) {
            interrupt.check()?;
            if server.process.ended().is_some() {
                server.process.drain_stderr();
                bail!("{}", server.process.complaint("ended before it listened"));
            }
            if started_at.elapsed() > PEER_START {
                let problem = format!("did not answer within {PEER_START:?}: {error:#}");
                bail!("{}", server.process.complaint(&problem));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Returns the same server with `is_tls` set.
    #[must_use]
    pub fn with_tls(self, is_tls: bool) -> Self {
        Self { is_tls, ..self }
    }

    /// Whether the server reports statistics.
    pub fn has_statistics(&self) -> bool {
        self.has_statistics
    }

    /// Requests `path` on a new connection.
    ///
    /// # Errors
    /// When the response has another status than 200.
    pub fn request(&self, path: &str) -> anyhow::Result<()> {
        answers(self.address.parse().context("its address")?, self.is_tls, path)
    }

    /// Returns the URL of `path`.
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.address)
    }

    /// Requests `path` on a persistent connection and returns the whole response.
    ///
    /// # Errors
    /// When the response has another status than 200, or no Content-Length.
    pub fn reply(&self, path: &str) -> anyhow::Result<Reply> {
        Reply::of(self.address.parse().context("its address")?, path)
    }

    /// Stops the server process (SIGSTOP) or continues it (SIGCONT).
    ///
    /// # Errors
    /// When the server has ended.
    pub fn hold(&self, is_held: bool) -> anyhow::Result<()> {
        self.process.signal(if is_held { Signal::STOP } else { Signal::CONT })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The command line of the server.
    pub fn command(&self) -> &str {
        self.process.command()
    }

    /// Limits the number of signals that may be queued for the server. Only the soft limit is lowered, so
    /// that it can be raised again. The hard limit is raised if it is lower, which requires root.
    ///
    /// # Errors
    /// Those of prlimit(2).
    pub fn limit_signal_queue(&self, length: u64) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).context("the server's id")?;
        let maximum = rustix::process::getrlimit(rustix::process::Resource::Sigpending).maximum;
        // `None` means no limit.
        let maximum = maximum.map(|maximum| maximum.max(length));
        let limit = rustix::process::Rlimit { current: Some(length), maximum };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Sigpending, limit)
            .with_context(|| format!("a queue of {length} signals for the server (prlimit(2))"))?;
        Ok(())
    }

    /// Requests the server's current statistics (SIGUSR1); null for a server without statistics.
    ///
    /// # Errors
    /// When the server has ended or does not answer.
    pub fn statistics(&self, interrupt: &Interrupt) -> anyhow::Result<Json> {
        if !self.has_statistics {
            return Ok(Json::Null);
        }
        self.process.signal(Signal::USR1)?;
        match self.process.line(patience(ANSWER), interrupt)? {
            Some(line) => event(&line, "statistics"),
            None => bail!("{}", self.process.complaint("ended while it was measured")),
        }
    }

    /// Waits until `wanted` connections are open.
    ///
    /// # Errors
    /// [`HoldShortfall`] when the server holds fewer connections and their number no longer grows; another
    /// error when it does not answer.
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
        if !self.has_statistics {
            return await_held(wanted, fill, holder, interrupt);
        }
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
            // Before the first connection is open, the holder itself may still be starting, which takes
            // seconds on an emulated or a busy machine.
            let stood_still = grew_at.elapsed();
            let has_stalled = stood_still > patience(STALL)
                && (stood_still > patience(SILENT_STALL) || !self.process.stderr().is_empty());
            let is_refused = if most == 0 { stood_still > patience(START) } else { has_stalled };
            if ended || is_refused || started_at.elapsed() > patience(fill) {
                let mut stderr = self.process.stderr();
                if stderr.is_empty() {
                    stderr = holder.stderr();
                }
                return Err(HoldShortfall::new(wanted, Some(most), stderr).into());
            }
            std::thread::sleep(POLL);
        }
    }
}

/// Waits until the holder reports that it holds all connections: for a server without statistics.
fn await_held(
    wanted: u64,
    limit: Duration,
    holder: &mut Process,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let not_held = |held, stderr| Err(HoldShortfall::new(wanted, Some(held), stderr).into());
    match holder.line(limit, interrupt) {
        Ok(Some(line)) => match event(&line, "holding")?["held"].as_u64() {
            Some(held) if held >= wanted => Ok(()),
            held => not_held(held.unwrap_or(0), holder.stderr()),
        },
        Ok(None) => {
            holder.drain_stderr();
            not_held(0, holder.stderr())
        }
        Err(error) if error.is::<super::interrupt::Interruption>() => Err(error),
        Err(error) => not_held(0, format!("{error:#}")),
    }
}

/// Checks that the server answers a request for `path`.
///
/// # Errors
/// When the response has another status than 200.
fn answers(address: SocketAddr, is_tls: bool, path: &str) -> anyhow::Result<()> {
    let socket = TcpStream::connect_timeout(&address, ANSWER)?;
    socket.set_read_timeout(Some(ANSWER))?;
    let mut stream: Box<dyn Stream> =
        if is_tls { Box::new(https(socket)?) } else { Box::new(socket) };
    // The same Host as in the generator's requests: a cache stores the documents of different hosts
    // separately.
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    anyhow::ensure!(
        &head == b"HTTP/1.1 200",
        "{path} was answered {:?}",
        String::from_utf8_lossy(&head)
    );
    // Read the response to its end, so that a cache stores it completely.
    let mut rest = Vec::new();
    match stream.take(MAX_ANSWER).read_to_end(&mut rest) {
        // Some servers end TLS without close_notify.
        Err(error) if !is_tls || error.kind() != io::ErrorKind::UnexpectedEof => Err(error.into()),
        _ => Ok(()),
    }
}

/// A connection, plain or over TLS.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Starts TLS with a server whose certificate is self-signed.
fn https(socket: TcpStream) -> anyhow::Result<StreamOwned<ClientConnection, TcpStream>> {
    let config = ClientSettings::trusting_anybody(&[b"http/1.1"]).build()?;
    let name = ServerName::try_from("localhost")?;
    Ok(StreamOwned::new(ClientConnection::new(config, name)?, socket))
}

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The response as it was sent.
    pub bytes: Vec<u8>,
    head_len: usize,
}

impl Reply {
    fn of(address: SocketAddr, path: &str) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut reader = BufReader::new(stream.take(MAX_ANSWER));
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            let read = reader.read_until(b'\n', &mut bytes)?;
            anyhow::ensure!(read > 0, "the head of the answer to {path} is cut short");
        }
        let mut reply = Self { head_len: bytes.len(), bytes };
        anyhow::ensure!(
            reply.bytes.starts_with(b"HTTP/1.1 200"),
            "{path}: another status than 200"
        );
        let length = reply.lines().find_map(|(name, value)| {
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
        });
        let length = length.with_context(|| format!("{path}: no Content-Length"))??;
        anyhow::ensure!(length as u64 <= MAX_ANSWER, "{path}: {length} bytes");
        reply.bytes.resize(reply.head_len + length, 0);
        reader.read_exact(&mut reply.bytes[reply.head_len..])?;
        Ok(reply)
    }

    /// The names and values of the header fields.
    fn lines(&self) -> impl Iterator<Item = (&str, &str)> {
        let head = std::str::from_utf8(&self.bytes[..self.head_len]).unwrap_or_default();
        head.lines().skip(1).filter_map(|line| line.split_once(':'))
    }

    /// The number of bytes that every cache stores: the header lines without those about the connection and
    /// the length, and the content.
    pub fn own_bytes(&self) -> u64 {
        const NOT: [&str; 3] = ["connection", "keep-alive", "content-length"];
        let is_own = |name: &str| !NOT.iter().any(|not| name.eq_ignore_ascii_case(not));
        let lines = self.lines().filter(|(name, _)| is_own(name));
        let fields: usize =
            lines.map(|(name, value)| name.len() + value.len() + ":\r\n".len()).sum();
        (fields + self.bytes.len() - self.head_len) as u64
    }
}

/// The most bytes that are read of a response.
const MAX_ANSWER: u64 = 16 << 20;

/// The error of a server that holds fewer connections than the experiment requires.
#[derive(Debug, thiserror::Error)]
#[error("the server {} {wanted} idle connections{}", held_of(*held), because(stderr))]
pub struct HoldShortfall {
    wanted: u64,
    held: Option<u64>,
    stderr: String,
}

impl HoldShortfall {
    /// Creates the error. `held` is the number of connections held, if it is known; `stderr` is the output
    /// that explains it.
    pub fn new(wanted: u64, held: Option<u64>, stderr: String) -> Self {
        Self { wanted, held, stderr }
    }
}

fn held_of(held: Option<u64>) -> String {
    held.map_or_else(|| "did not hold all of".into(), |held| format!("held {held} of"))
}

fn because(stderr: &str) -> String {
    // The first line states the cause; the other lines repeat it.
    stderr.lines().next().map_or_else(String::new, |line| format!(": {}", line.trim()))
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
