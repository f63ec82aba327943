//! Rank 0: accepts the other ranks, starts the run, and collects the results.

use super::{
    clock::{ClockOffset, ClockReading},
    keep_alive,
    message::{
        self, Heartbeat, Identity, MAX_GREETING_BYTES, MAX_MESSAGE_BYTES, ToLeader, ToMember,
    },
    report::RankReport,
};
use anyhow::{Context, Result, bail};
use std::{
    io,
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// How long all ranks may take to connect to rank 0.
const JOIN_PATIENCE: Duration = Duration::from_secs(60);

/// How long a connection may take to identify itself.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);

/// A rank that sends nothing for this long is lost; it sends a heartbeat once a second.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);

/// How long a rank may take to send its result after a stop.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// The time from the moment when all ranks are ready to the start; meanwhile each rank compares its
/// clock.
const START_DELAY_NS: i64 = 300_000_000;

/// The most connections that have not identified themselves, beside those of ranks.
const MAX_UNIDENTIFIED: usize = 64;

/// How often a wait checks conditions that no thread signals.
const PERIOD: Duration = Duration::from_millis(20);

/// The result of a rank.
#[derive(Debug)]
pub(super) struct RankResult {
    /// Its clock compared with rank 0's, before the start and at the end.
    pub(super) clock: (ClockOffset, ClockOffset),
    pub(super) interrupted: bool,
    pub(super) measured: Vec<u8>,
}

/// The state of another rank, as far as rank 0 knows it.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) identity: Identity,
    writer: Arc<Mutex<TcpStream>>,
    ready: bool,
    started: Option<ClockOffset>,
    pub(super) heartbeat: Heartbeat,
    pub(super) result: Option<RankResult>,
    /// The reason why it failed or was lost, and the time by rank 0's monotonic clock.
    pub(super) lost: Option<(String, i64)>,
    /// The time at which its supervisor ended.
    pub(super) orphaned_ns: Option<i64>,
}

impl Peer {
    fn is_done(&self) -> bool {
        self.result.is_some() || self.lost.is_some()
    }

    /// The part of the report about this rank, which was lost.
    pub(super) fn report_of_loss(&self) -> RankReport {
        let why = self.lost.as_ref().map(|(why, _)| why.clone());
        RankReport::lost(&self.identity, self.heartbeat, why.unwrap_or_default())
    }

    fn send(&self, message: &ToMember) {
        send(&self.writer, message);
    }
}

fn send(to: &Mutex<TcpStream>, message: &ToMember) {
    // The rank's reader thread detects a broken connection.
    let _ = message::send(&*to.lock().expect("no thread panics with this lock"), message);
}

struct LeaderShared {
    task: Identity,
    /// By rank; `None` until a rank has connected. Rank 0's own entry stays `None`.
    peers: Mutex<Vec<Option<Peer>>>,
    /// The first reason why the run cannot start.
    refusal: Mutex<Option<String>>,
    changed: Condvar,
    unidentified: AtomicUsize,
    stop: Arc<AtomicBool>,
}

impl LeaderShared {
    fn peers(&self) -> MutexGuard<'_, Vec<Option<Peer>>> {
        self.peers.lock().expect("no thread panics with this lock")
    }

    /// Applies `change` to the state of `rank`.
    fn update(&self, rank: u32, change: impl FnOnce(&mut Peer)) {
        if let Some(Some(peer)) = self.peers().get_mut(rank as usize) {
            change(peer);
        }
        self.changed.notify_all();
    }

    /// Ends the run early: stops all ranks.
    fn stop_all(&self) {
        self.stop.store(true, Relaxed);
        for peer in self.peers().iter().flatten() {
            peer.send(&ToMember::Stop);
        }
        self.changed.notify_all();
    }

    fn lose(&self, rank: u32, why: String) {
        let mut is_new = false;
        self.update(rank, |peer| {
            is_new = !peer.is_done();
            if is_new {
                peer.lost = Some((why, ClockReading::now().monotonic_ns));
            }
        });
        if is_new {
            self.stop_all();
        }
    }

    /// Serves one connection from its greeting to its end.
    fn serve(&self, stream: TcpStream) -> Result<()> {
        let greeted = self.greet(&stream);
        self.unidentified.fetch_sub(1, Relaxed);
        let Some((rank, writer)) = greeted? else { return Ok(()) };
        stream.set_read_timeout(Some(SILENCE_LIMIT))?;
        let why = loop {
            match message::receive::<ToLeader>(&stream, MAX_MESSAGE_BYTES) {
                Ok(Some(message)) => self.handle(rank, &writer, message)?,
                Ok(None) => break "its process ended".to_owned(),
                Err(error) => break why_lost(&error),
            }
        };
        self.lose(rank, why);
        Ok(())
    }

    /// Identifies a connection; `None` if it does not belong to a rank.
    fn greet(&self, stream: &TcpStream) -> Result<Option<(u32, Arc<Mutex<TcpStream>>)>> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(GREETING_PATIENCE))?;
        stream.set_write_timeout(Some(GREETING_PATIENCE))?;
        keep_alive(stream)?;
        let Ok(Some(ToLeader::Hello(identity))) =
            message::receive::<ToLeader>(stream, MAX_GREETING_BYTES)
        else {
            return Ok(None);
        };
        if identity.secret != self.task.secret {
            return Ok(None);
        }
        if let Some(difference) = difference(&self.task, &identity) {
            message::send(stream, &ToMember::Mismatch(difference.clone()))?;
            self.refusal.lock().expect("no thread panics with this lock").get_or_insert(difference);
            self.changed.notify_all();
            return Ok(None);
        }
        let writer = Arc::new(Mutex::new(stream.try_clone()?));
        let rank = identity.rank;
        {
            let mut peers = self.peers();
            match peers.get_mut(rank as usize) {
                Some(slot @ None) if rank > 0 => {
                    *slot = Some(Peer {
                        identity,
                        writer: writer.clone(),
                        ready: false,
                        started: None,
                        heartbeat: Heartbeat::default(),
                        result: None,
                        lost: None,
                        orphaned_ns: None,
                    });
                }
                _ => return Ok(None),
            }
        }
        message::send(stream, &ToMember::Welcome)?;
        self.changed.notify_all();
        Ok(Some((rank, writer)))
    }

    fn handle(&self, rank: u32, writer: &Mutex<TcpStream>, message: ToLeader) -> Result<()> {
        match message {
            ToLeader::ReadClocks => {
                let stream = writer.lock().expect("no thread panics with this lock");
                message::send(&*stream, &ToMember::Clocks(ClockReading::now()))?;
            }
            ToLeader::Hello(_) => bail!("a second greeting"),
            ToLeader::Ready(heartbeat) => {
                self.update(rank, |peer| (peer.ready, peer.heartbeat) = (true, heartbeat))
            }
            ToLeader::Started(offset) => self.update(rank, |peer| peer.started = Some(offset)),
            ToLeader::Heartbeat(heartbeat) => self.update(rank, |peer| peer.heartbeat = heartbeat),
            ToLeader::Orphaned { since_ns } => {
                self.update(rank, |peer| peer.orphaned_ns = Some(since_ns))
            }
            ToLeader::Failed(why) => self.lose(rank, why),
            ToLeader::Result { offset, interrupted, measured } => {
                self.update(rank, |peer| {
                    let clock = (peer.started.unwrap_or(offset), offset);
                    peer.result = Some(RankResult { clock, interrupted, measured });
                });
                if interrupted && !self.stop.load(Relaxed) {
                    self.stop_all();
                }
            }
        }
        Ok(())
    }

    /// Waits until `done` is true for the known ranks.
    fn wait(&self, mut done: impl FnMut(&[Option<Peer>]) -> bool) {
        let mut peers = self.peers();
        while !done(&peers) {
            let waited = self.changed.wait_timeout(peers, PERIOD);
            peers = waited.expect("no thread panics with this lock").0;
        }
    }
}

fn why_lost(error: &anyhow::Error) -> String {
    match error.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            format!("nothing was heard from it for {} s", SILENCE_LIMIT.as_secs())
        }
        Some(io::ErrorKind::ConnectionReset) => "its process ended".to_owned(),
        _ => format!("{error:#}"),
    }
}

/// The difference between another rank's version or arguments and rank 0's, in words.
fn difference(own: &Identity, other: &Identity) -> Option<String> {
    let name = format!("rank {} ({}, process {})", other.rank, other.host, other.pid);
    if own.version != other.version {
        return Some(format!(
            "{name} is pollux {}, rank 0 is {}: install the same on all hosts",
            other.version, own.version
        ));
    }
    if own.task == other.task {
        return None;
    }
    let same = own.task.chars().zip(other.task.chars()).take_while(|(a, b)| a == b).count();
    let part = |text: &str| text.chars().skip(same.saturating_sub(24)).take(56).collect::<String>();
    Some(format!(
        "{name} was started with other arguments than rank 0: …{}… there, …{}… here",
        part(&other.task),
        part(&own.task)
    ))
}

/// Rank 0's side of the run.
pub(super) struct Leader {
    shared: Arc<LeaderShared>,
    size: u32,
    is_over: bool,
    /// The ranks whose results were collected. They wait for the last message.
    collected: Vec<Arc<Mutex<TcpStream>>>,
}

impl Leader {
    /// Accepts `size` − 1 ranks, which know the listener and `me.secret`.
    ///
    /// # Errors
    /// A rank did not connect in time, has another version, or was started with other arguments.
    pub(super) fn new(
        listener: &TcpListener,
        size: u32,
        me: Identity,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let shared = Arc::new(LeaderShared {
            task: me,
            peers: Mutex::new((0..size).map(|_| None).collect()),
            refusal: Mutex::new(None),
            changed: Condvar::new(),
            unidentified: AtomicUsize::new(0),
            stop: stop.clone(),
        });
        let leader = Self { shared: shared.clone(), size, is_over: false, collected: Vec::new() };
        listener.set_nonblocking(true)?;
        let since = Instant::now();
        while shared.peers().iter().skip(1).any(Option::is_none) {
            if let Some(refusal) =
                shared.refusal.lock().expect("no thread panics with this lock").take()
            {
                leader.send_to_all(&ToMember::Abort(refusal.clone()));
                bail!(refusal);
            }
            if stop.load(Relaxed) {
                bail!("interrupted while ranks were awaited");
            }
            if since.elapsed() > JOIN_PATIENCE {
                let missing: Vec<_> = {
                    let peers = shared.peers();
                    (1..peers.len()).filter(|&rank| peers[rank].is_none()).collect()
                };
                bail!(
                    "ranks {missing:?} did not connect to rank 0, {} port {}, within {} s: is a \
                     firewall between the hosts?",
                    shared.task.host,
                    listener.local_addr()?.port(),
                    JOIN_PATIENCE.as_secs()
                );
            }
            match listener.accept() {
                Ok((stream, _))
                    if shared.unidentified.load(Relaxed) < MAX_UNIDENTIFIED + size as usize =>
                {
                    shared.unidentified.fetch_add(1, Relaxed);
                    let shared = shared.clone();
                    std::thread::Builder::new()
                        .name("rank".into())
                        .spawn(move || {
                            if let Err(error) = shared.serve(stream) {
                                tracing::debug!(%error, "a connection of a rank");
                            }
                        })
                        .context("a thread for a rank")?;
                }
                // Too many: the connection is closed.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Err(error).context("accepting the other ranks"),
            }
        }
        Ok(leader)
    }

    fn send_to_all(&self, message: &ToMember) {
        for peer in self.shared.peers().iter().flatten() {
            peer.send(message);
        }
    }

    /// The reason why the run failed: the first rank that was lost, with its reason.
    pub(super) fn fault(&self) -> Option<String> {
        let peers = self.shared.peers();
        let lost = peers.iter().flatten().filter_map(|peer| Some((peer, peer.lost.as_ref()?)));
        let (peer, (why, _)) = lost.min_by_key(|(_, (_, at_ns))| *at_ns)?;
        let Identity { rank, host, pid, .. } = &peer.identity;
        Some(format!("rank {rank} ({host}, process {pid}): {why}"))
    }

    /// Waits until all ranks are ready and sends them the start time. Returns their progress and the
    /// start by this host's monotonic clock.
    ///
    /// # Errors
    /// A rank was lost, or the run was interrupted.
    pub(super) fn ready(&self) -> Result<(Vec<Heartbeat>, i64)> {
        let shared = &self.shared;
        shared.wait(|peers| {
            let mut peers = peers.iter().flatten();
            shared.stop.load(Relaxed) || peers.all(|peer| peer.ready || peer.is_done())
        });
        if let Some(fault) = self.fault() {
            bail!(fault);
        }
        if shared.stop.load(Relaxed) {
            bail!("interrupted while ranks were setting up");
        }
        let at_ns = ClockReading::now().monotonic_ns + START_DELAY_NS;
        self.send_to_all(&ToMember::Start { at_ns });
        Ok((shared.peers().iter().flatten().map(|peer| peer.heartbeat).collect(), at_ns))
    }

    /// Ends the run for all.
    pub(super) fn stop_all(&self) {
        self.shared.stop_all();
    }

    /// Waits until every other rank has sent its result or is lost. The ranks do not end before this
    /// value is dropped, which must be after the report is written: after a signal, `mpirun` of Open MPI
    /// kills all ranks of a host as soon as one of them has ended.
    pub(super) fn collect_results(&mut self) -> Vec<Peer> {
        let shared = self.shared.clone();
        let mut stopped_at: Option<Instant> = None;
        while shared.peers().iter().flatten().any(|peer| !peer.is_done()) {
            match stopped_at {
                None if shared.stop.load(Relaxed) => {
                    stopped_at = Some(Instant::now());
                    self.stop_all();
                }
                Some(at) if at.elapsed() > STOP_PATIENCE => {
                    let seconds = STOP_PATIENCE.as_secs();
                    for rank in 1..self.size {
                        shared.lose(rank, format!("no result {seconds} s after the stop message"));
                    }
                }
                _ => {}
            }
            let waited = shared.changed.wait_timeout(shared.peers(), PERIOD);
            drop(waited.expect("no thread panics with this lock"));
        }
        let peers = shared.peers().iter_mut().filter_map(Option::take).collect::<Vec<_>>();
        self.collected = peers.iter().map(|peer| peer.writer.clone()).collect();
        self.is_over = true;
        peers
    }

    /// Ends the run, or prevents it.
    pub(super) fn abort(&mut self, why: &str) {
        self.send_to_all(&ToMember::Abort(why.to_owned()));
        self.is_over = true;
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if !self.is_over {
            self.abort("it ended before the run was over");
        }
        for rank in &self.collected {
            send(rank, &ToMember::Bye);
        }
    }
}
