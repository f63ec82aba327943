//! Every rank but rank 0: connects to it, begins when it says so, hands over what was measured.

use super::{
    clock::{Offset, PROBES, Reading},
    keep_alive,
    message::{self, Down, Introduction, MAX_GREETING_BYTES, Pulse, Up},
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

/// For the handshake with each of rank 0's addresses, and for its first words.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// How long all of its addresses are tried.
const JOIN_PATIENCE: Duration = Duration::from_secs(30);

/// How often a rank tells how far it is.
const PULSE: Duration = Duration::from_secs(1);

/// How long clocks are compared at most, where the way is long.
const PROBE_TIME: Duration = Duration::from_millis(100);

/// How long rank 0 may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a wait looks whether it is to stop.
const PERIOD: Duration = Duration::from_millis(20);

/// What rank 0 has said.
#[derive(Default)]
struct Heard {
    clocks: Option<(Reading, Reading)>,
    start_ns: Option<i64>,
    aborted: Option<String>,
    bye: bool,
    /// The connection has ended.
    gone: bool,
}

type PulseSource = Box<dyn Fn() -> Pulse + Send>;

struct Line {
    stream: Mutex<TcpStream>,
    heard: Mutex<Heard>,
    changed: Condvar,
    stop: Arc<AtomicBool>,
    pulse: Mutex<PulseSource>,
}

impl Line {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().expect("nobody panics with it")
    }

    fn tell(&self, message: &Up) -> Result<()> {
        message::send(&*self.stream.lock().expect("nobody panics with it"), message)
    }

    fn listen(&self, stream: &TcpStream) {
        while let Ok(Some(message)) = message::receive::<Down>(stream, MAX_GREETING_BYTES) {
            let at = Reading::now();
            let mut heard = self.heard();
            match message {
                Down::Clocks(theirs) => heard.clocks = Some((theirs, at)),
                Down::Start { at_ns } => heard.start_ns = Some(at_ns),
                Down::Stop => self.stop.store(true, Relaxed),
                Down::Abort(why) => {
                    heard.aborted = Some(why);
                    self.stop.store(true, Relaxed);
                }
                Down::Bye => heard.bye = true,
                Down::Welcome | Down::Unlike(_) => {}
            }
            drop(heard);
            self.changed.notify_all();
        }
        let mut heard = self.heard();
        heard.gone = true;
        if !heard.bye {
            self.stop.store(true, Relaxed);
        }
        drop(heard);
        self.changed.notify_all();
    }

    fn beat(&self) {
        let mut heard = self.heard();
        while !heard.gone && !heard.bye {
            let waited = self.changed.wait_timeout(heard, PULSE).expect("nobody panics with it");
            heard = waited.0;
            if waited.1.timed_out() {
                drop(heard);
                let pulse = self.pulse.lock().expect("nobody panics with it")();
                let _ = self.tell(&Up::Pulse(pulse));
                heard = self.heard();
            }
        }
    }

    /// Waits for `what`; nothing when the connection ends first, or after `patience`.
    fn wait<T>(
        &self,
        patience: Option<Duration>,
        what: impl Fn(&mut Heard) -> Option<T>,
    ) -> Option<T> {
        let since = Instant::now();
        let mut heard = self.heard();
        loop {
            if let Some(found) = what(&mut heard) {
                return Some(found);
            }
            if heard.gone || patience.is_some_and(|patience| since.elapsed() > patience) {
                return None;
            }
            heard = self.changed.wait_timeout(heard, PERIOD).expect("nobody panics with it").0;
        }
    }
}

/// This rank's side of the run.
pub(super) struct Member {
    line: Arc<Line>,
    leader: String,
}

impl Member {
    /// Connects to rank 0 at the first of `addresses` that knows the secret.
    ///
    /// # Errors
    /// None does; it refuses this rank.
    pub(super) fn new(
        addresses: &[IpAddr],
        port: u16,
        leader: String,
        me: Introduction,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let stream = connect(addresses, port, &me)
            .with_context(|| format!("rank 0 on {leader}, port {port}"))?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let reader = stream.try_clone()?;
        let line = Arc::new(Line {
            stream: Mutex::new(stream),
            heard: Mutex::default(),
            changed: Condvar::new(),
            stop: stop.clone(),
            pulse: Mutex::new(Box::new(Pulse::default)),
        });
        let (listening, beating) = (line.clone(), line.clone());
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        thread("rank 0").spawn(move || listening.listen(&reader))?;
        thread("pulse").spawn(move || beating.beat())?;
        Ok(Self { line, leader })
    }

    /// From now on rank 0 is told `pulse`.
    pub(super) fn pulse(&self, pulse: impl Fn() -> Pulse + Send + 'static) {
        *self.line.pulse.lock().expect("nobody panics with it") = Box::new(pulse);
    }

    /// Why rank 0 ended the run before its time, if it did.
    pub(super) fn aborted(&self) -> Option<String> {
        self.line.heard().aborted.clone()
    }

    fn gone(&self) -> anyhow::Error {
        match self.aborted() {
            Some(why) => anyhow::anyhow!("rank 0 ({}) ended the run: {why}", self.leader),
            None => anyhow::anyhow!("rank 0 ({}) is gone, and with it the report", self.leader),
        }
    }

    /// Compares the clocks.
    fn compare(&self) -> Result<Offset> {
        let since = Instant::now();
        let mut best: Option<Offset> = None;
        for _ in 0..PROBES {
            self.line.heard().clocks = None;
            let asked = Reading::now();
            self.line.tell(&Up::Ask)?;
            let answer = self.line.wait(Some(PATIENCE), |heard| heard.clocks.take());
            let Some((theirs, heard)) = answer else { return Err(self.gone()) };
            let offset = Offset::of(asked, theirs, heard);
            if best.is_none_or(|best| offset.error_ns < best.error_ns) {
                best = Some(offset);
            }
            if since.elapsed() > PROBE_TIME {
                break;
            }
        }
        best.context("the clocks were not compared")
    }

    /// Tells that all is set up, and waits for the start. Returns its instant by this host's
    /// monotonic clock.
    ///
    /// # Errors
    /// Rank 0 ended the run, or is gone; an interrupt.
    pub(super) fn ready(&self, pulse: Pulse) -> Result<i64> {
        self.line.tell(&Up::Ready(pulse))?;
        let start_ns = self.line.wait(None, |heard| match heard.start_ns {
            Some(start_ns) => Some(Some(start_ns)),
            None => self.line.stop.load(Relaxed).then_some(None),
        });
        let Some(Some(start_ns)) = start_ns else { return Err(self.gone()) };
        let offset = self.compare()?;
        self.line.tell(&Up::Started(offset))?;
        Ok(start_ns - offset.monotonic_ns)
    }

    /// Hands over what was measured.
    ///
    /// # Errors
    /// Rank 0 is gone.
    pub(super) fn hand_over(
        &self,
        interrupted: bool,
        gone_ns: Option<i64>,
        measured: Vec<u8>,
    ) -> Result<()> {
        if self.line.heard().gone {
            return Err(self.gone());
        }
        let offset = self.compare()?;
        if let Some(gone_ns) = gone_ns {
            self.line.tell(&Up::Orphaned { since_ns: gone_ns + offset.monotonic_ns })?;
        }
        self.line.tell(&Up::Result { offset, interrupted, measured })?;
        match self
            .line
            .wait(Some(PATIENCE), |heard| (heard.bye || heard.aborted.is_some()).then_some(()))
        {
            Some(()) => Ok(()),
            None => Err(self.gone()),
        }
    }

    /// Tells that this rank cannot go on, and waits until rank 0 has said so: launchers end all when
    /// one has ended.
    pub(super) fn fail(&self, why: &str) {
        if self.line.tell(&Up::Failed(why.to_owned())).is_ok() {
            self.line
                .wait(Some(PATIENCE), |heard| (heard.bye || heard.aborted.is_some()).then_some(()));
        }
    }
}

fn connect(addresses: &[IpAddr], port: u16, me: &Introduction) -> Result<TcpStream> {
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

/// Connects and introduces this rank; the inner error is a refusal.
fn greet(address: SocketAddr, me: &Introduction) -> Result<Result<TcpStream, String>> {
    let stream = TcpStream::connect_timeout(&address, CONNECT_PATIENCE)?;
    keep_alive(&stream)?;
    stream.set_read_timeout(Some(CONNECT_PATIENCE))?;
    message::send(&stream, &Up::Hello(me.clone()))?;
    match message::receive(&stream, MAX_GREETING_BYTES)? {
        Some(Down::Welcome) => Ok(Ok(stream)),
        Some(Down::Unlike(why)) => Ok(Err(why)),
        _ => bail!("that is not rank 0"),
    }
}
