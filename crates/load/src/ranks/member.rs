//! Every rank except rank 0: connects to rank 0, begins at its command, and sends its result.

use super::{
    clock::{ClockOffset, ClockReading, PROBES},
    keep_alive,
    message::{self, Heartbeat, Identity, MAX_GREETING_BYTES, ToLeader, ToMember},
};
use anyhow::{Context, Result, bail};
use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// The time limit for the connection to each of rank 0's addresses, and for its first reply.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// The time for which all addresses together are tried.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);

/// How often a rank reports its progress.
const HEARTBEAT_PERIOD: Duration = Duration::from_secs(1);

/// The longest time for comparing clocks, when the network is slow.
const PROBE_TIME: Duration = Duration::from_millis(100);

/// How long rank 0 may take to reply.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a wait checks the stop flag.
const PERIOD: Duration = Duration::from_millis(20);

/// The messages that rank 0 has sent.
#[derive(Default)]
struct LeaderState {
    clocks: Option<(ClockReading, ClockReading)>,
    start_ns: Option<i64>,
    aborted: Option<String>,
    bye: bool,
    /// The connection has ended.
    gone: bool,
}

type HeartbeatSource = Box<dyn Fn() -> Heartbeat + Send>;

struct LeaderConnection {
    stream: Mutex<TcpStream>,
    leader_state: Mutex<LeaderState>,
    changed: Condvar,
    stop: Arc<AtomicBool>,
    heartbeat: Mutex<HeartbeatSource>,
}

impl LeaderConnection {
    fn leader_state(&self) -> MutexGuard<'_, LeaderState> {
        self.leader_state.lock().expect("no thread panics with this lock")
    }

    fn send(&self, message: &ToLeader) -> Result<()> {
        message::send(&*self.stream.lock().expect("no thread panics with this lock"), message)
    }

    fn receive_messages(&self, stream: &TcpStream) {
        while let Ok(Some(message)) = message::receive::<ToMember>(stream, MAX_GREETING_BYTES) {
            let at = ClockReading::now();
            let mut leader_state = self.leader_state();
            match message {
                ToMember::Clocks(theirs) => leader_state.clocks = Some((theirs, at)),
                ToMember::Start { at_ns } => leader_state.start_ns = Some(at_ns),
                ToMember::Stop => self.stop.store(true, Relaxed),
                ToMember::Abort(why) => {
                    leader_state.aborted = Some(why);
                    self.stop.store(true, Relaxed);
                }
                ToMember::Bye => leader_state.bye = true,
                ToMember::Welcome | ToMember::Mismatch(_) => {}
            }
            drop(leader_state);
            self.changed.notify_all();
        }
        let mut leader_state = self.leader_state();
        leader_state.gone = true;
        if !leader_state.bye {
            self.stop.store(true, Relaxed);
        }
        drop(leader_state);
        self.changed.notify_all();
    }

    fn send_heartbeats(&self) {
        let mut leader_state = self.leader_state();
        while !leader_state.gone && !leader_state.bye {
            let waited = self
                .changed
                .wait_timeout(leader_state, HEARTBEAT_PERIOD)
                .expect("no thread panics with this lock");
            leader_state = waited.0;
            if waited.1.timed_out() {
                drop(leader_state);
                let heartbeat = self.heartbeat.lock().expect("no thread panics with this lock")();
                let _ = self.send(&ToLeader::Heartbeat(heartbeat));
                leader_state = self.leader_state();
            }
        }
    }

    /// Waits until `what` returns a value; `None` when the connection ends first or after
    /// `patience`.
    fn wait<T>(
        &self,
        patience: Option<Duration>,
        what: impl Fn(&mut LeaderState) -> Option<T>,
    ) -> Option<T> {
        let since = Instant::now();
        let mut leader_state = self.leader_state();
        loop {
            if let Some(found) = what(&mut leader_state) {
                return Some(found);
            }
            if leader_state.gone || patience.is_some_and(|patience| since.elapsed() > patience) {
                return None;
            }
            leader_state = self
                .changed
                .wait_timeout(leader_state, PERIOD)
                .expect("no thread panics with this lock")
                .0;
        }
    }
}

/// This rank's side of the run.
pub(super) struct Member {
    connection: Arc<LeaderConnection>,
    leader: String,
}

impl Member {
    /// Connects to rank 0 at the first of `addresses` that accepts the secret.
    ///
    /// # Errors
    /// No address answers, or rank 0 refuses this rank.
    pub(super) fn new(
        addresses: &[IpAddr],
        port: u16,
        leader: String,
        me: Identity,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let stream = connect(addresses, port, &me)
            .with_context(|| format!("rank 0 on {leader}, port {port}"))?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let reader = stream.try_clone()?;
        let connection = Arc::new(LeaderConnection {
            stream: Mutex::new(stream),
            leader_state: Mutex::default(),
            changed: Condvar::new(),
            stop: stop.clone(),
            heartbeat: Mutex::new(Box::new(Heartbeat::default)),
        });
        let (listening, beating) = (connection.clone(), connection.clone());
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        thread("rank 0").spawn(move || listening.receive_messages(&reader))?;
        thread("heartbeat").spawn(move || beating.send_heartbeats())?;
        Ok(Self { connection, leader })
    }

    /// From now on, sends `heartbeat` to rank 0.
    pub(super) fn heartbeat(&self, heartbeat: impl Fn() -> Heartbeat + Send + 'static) {
        *self.connection.heartbeat.lock().expect("no thread panics with this lock") =
            Box::new(heartbeat);
    }

    /// The reason why rank 0 ended the run early, if it did.
    pub(super) fn aborted(&self) -> Option<String> {
        self.connection.leader_state().aborted.clone()
    }

    fn gone(&self) -> anyhow::Error {
        match self.aborted() {
            Some(why) => anyhow::anyhow!("rank 0 ({}) ended the run: {why}", self.leader),
            None => anyhow::anyhow!("rank 0 ({}) is gone, and with it the report", self.leader),
        }
    }

    /// Compares this host's clocks with rank 0's.
    fn compare(&self) -> Result<ClockOffset> {
        let since = Instant::now();
        let mut best: Option<ClockOffset> = None;
        for _ in 0..PROBES {
            self.connection.leader_state().clocks = None;
            let sent = ClockReading::now();
            self.connection.send(&ToLeader::ReadClocks)?;
            let answer =
                self.connection.wait(Some(PATIENCE), |leader_state| leader_state.clocks.take());
            let Some((theirs, received)) = answer else { return Err(self.gone()) };
            let offset = ClockOffset::of(sent, theirs, received);
            if best.is_none_or(|best| offset.error_ns < best.error_ns) {
                best = Some(offset);
            }
            if since.elapsed() > PROBE_TIME {
                break;
            }
        }
        best.context("the clocks were not compared")
    }

    /// Reports that this rank is set up, and waits for the start. Returns the start by this host's
    /// monotonic clock.
    ///
    /// # Errors
    /// Rank 0 ended the run or has disconnected, or the run was interrupted.
    pub(super) fn ready(&self, heartbeat: Heartbeat) -> Result<i64> {
        self.connection.send(&ToLeader::Ready(heartbeat))?;
        let start_ns = self.connection.wait(None, |leader_state| match leader_state.start_ns {
            Some(start_ns) => Some(Some(start_ns)),
            None => self.connection.stop.load(Relaxed).then_some(None),
        });
        let Some(Some(start_ns)) = start_ns else { return Err(self.gone()) };
        let offset = self.compare()?;
        self.connection.send(&ToLeader::Started(offset))?;
        Ok(start_ns - offset.monotonic_ns)
    }

    /// Sends the result.
    ///
    /// # Errors
    /// Rank 0 has disconnected.
    pub(super) fn hand_over(
        &self,
        interrupted: bool,
        gone_ns: Option<i64>,
        measured: Vec<u8>,
    ) -> Result<()> {
        if self.connection.leader_state().gone {
            return Err(self.gone());
        }
        let offset = self.compare()?;
        if let Some(gone_ns) = gone_ns {
            self.connection
                .send(&ToLeader::Orphaned { since_ns: gone_ns + offset.monotonic_ns })?;
        }
        self.connection.send(&ToLeader::Result { offset, interrupted, measured })?;
        // Rank 0 may wait for other ranks, and writes the report first. If its host vanishes, the connection
        // ends.
        match self.connection.wait(None, |leader_state| {
            (leader_state.bye || leader_state.aborted.is_some()).then_some(())
        }) {
            Some(()) => Ok(()),
            None => Err(self.gone()),
        }
    }

    /// Reports that this rank failed, and waits for rank 0's last message: a launcher ends all
    /// ranks when one has ended.
    pub(super) fn fail(&self, why: &str) {
        if self.connection.send(&ToLeader::Failed(why.to_owned())).is_ok() {
            self.connection.wait(Some(PATIENCE), |leader_state| {
                (leader_state.bye || leader_state.aborted.is_some()).then_some(())
            });
        }
    }
}

fn connect(addresses: &[IpAddr], port: u16, me: &Identity) -> Result<TcpStream> {
    let since = Instant::now();
    loop {
        let mut failures = Vec::new();
        for &address in addresses {
            match greet(SocketAddr::new(address, port), me) {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(refusal)) => bail!(refusal),
                Err(error) => failures.push(format!("{address}: {error:#}")),
            }
        }
        if since.elapsed() > JOIN_PATIENCE {
            bail!(
                "it cannot be reached ({}): is a firewall between the hosts?",
                failures.join("; ")
            );
        }
        std::thread::sleep(PERIOD);
    }
}

/// Connects and identifies this rank; the inner error is a refusal.
fn greet(address: SocketAddr, me: &Identity) -> Result<Result<TcpStream, String>> {
    let stream = TcpStream::connect_timeout(&address, CONNECT_PATIENCE)?;
    keep_alive(&stream)?;
    stream.set_read_timeout(Some(CONNECT_PATIENCE))?;
    message::send(&stream, &ToLeader::Hello(me.clone()))?;
    match message::receive(&stream, MAX_GREETING_BYTES)? {
        Some(ToMember::Welcome) => Ok(Ok(stream)),
        Some(ToMember::Mismatch(why)) => Ok(Err(why)),
        _ => bail!("that is not rank 0"),
    }
}
