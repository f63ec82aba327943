//! The new process, as the running server sees it.

use super::{
    VARIABLE,
    channel::Channel,
    launcher::{self, SuccessorProcess},
    message::Message,
};
use crate::transport::role::Role;
use anyhow::{Context, bail};
use pollux_sys as sys;
use std::{
    env, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::Path,
    process::{Child, Command, ExitStatus},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::Sender,
    },
    thread,
    time::{Duration, Instant},
};

/// The number of successors that did not take over.
static FAILURES: AtomicU64 = AtomicU64::new(0);

/// Counts a successor that did not take over.
pub(crate) fn count_failure() {
    FAILURES.fetch_add(1, Relaxed);
}

/// Returns how many successors did not take over.
pub(crate) fn failures() -> u64 {
    FAILURES.load(Relaxed)
}

/// The time that a successor may need until it can serve.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// The time that a successor may need to end after its channel was closed. After it the successor
/// is killed.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// The pause between two checks whether a successor has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// The result of the transfer of a worker's idle connections.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) worker: usize,
    /// How many connections the successor has received, or why the transfer has ended.
    pub(crate) outcome: Result<u64, String>,
}

/// The channel to which workers send their reports; `None` while the main thread does not wait for
/// any.
pub(crate) type Reports = Arc<Mutex<Option<Sender<Report>>>>;

/// A listening socket that a successor is offered.
pub(crate) struct ListenerOffer<'l> {
    pub(crate) role: Role,
    /// The index of the socket in the configuration.
    pub(crate) index: u16,
    /// The address of the socket, as it is configured.
    pub(crate) configured: String,
    pub(crate) socket: BorrowedFd<'l>,
}

/// The process of a successor.
#[derive(Debug)]
enum Process {
    /// Started by this process.
    Child(Child),
    /// Started by the launcher, because this process is in a sandbox.
    Launched(SuccessorProcess),
}

/// Returns the command that starts `program` with the arguments of this process and the successor's
/// end of the channel. That end must stay open until the command has been started.
pub(super) fn command(program: &Path, channel: BorrowedFd<'_>) -> Command {
    let mut command = Command::new(program);
    command.args(env::args_os().skip(1));
    command.env(VARIABLE, channel.as_raw_fd().to_string());
    // The watchdog's time applies to the successor, too (sd_watchdog_enabled(3)).
    command.env_remove("WATCHDOG_PID");
    sys::inherit(&mut command, channel);
    command
}

impl Process {
    fn start(program: &Path, channel: BorrowedFd<'_>) -> anyhow::Result<Self> {
        if launcher::exists() {
            return SuccessorProcess::start(channel).map(Self::Launched);
        }
        let child = command(program, channel).spawn();
        child.map(Self::Child).with_context(|| format!("{} cannot be started", program.display()))
    }

    fn pid(&self) -> u32 {
        match self {
            Self::Child(child) => child.id(),
            Self::Launched(launched) => launched.pid(),
        }
    }

    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match self {
            Self::Child(child) => child.try_wait(),
            Self::Launched(launched) => launched.try_wait(),
        }
    }

    /// Kills the process, and waits for its end.
    fn kill(&mut self) {
        match self {
            Self::Child(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Self::Launched(launched) => {
                let _ = launched.kill();
            }
        }
    }
}

/// A successor that has been started. Dropping it ends its process, unless it was confirmed.
#[derive(Debug)]
pub(crate) struct Successor {
    process: Process,
    /// `None` after [`Successor::end`] has closed it.
    channel: Option<Channel>,
    is_confirmed: bool,
}

impl Successor {
    /// Starts `program` with the arguments of this process, and waits until it can serve.
    ///
    /// # Errors
    /// The reason why the successor cannot serve. Its process has ended then.
    pub(crate) fn start(program: &Path, listeners: &[ListenerOffer<'_>]) -> anyhow::Result<Self> {
        let deadline = Instant::now() + START_PATIENCE;
        let (near, far) = Channel::pair().context("the channel of the upgrade")?;
        let process = Process::start(program, far.as_fd())?;
        drop(far);
        let mut successor = Self { process, channel: Some(near), is_confirmed: false };
        match successor.prepare(listeners, deadline) {
            Ok(()) => Ok(successor),
            Err(error) => Err(match successor.end() {
                Some(status) => error.context(format!("the new process has ended ({status})")),
                None => error.context("the new process does not serve in time"),
            }),
        }
    }

    /// Returns the process ID of the successor.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn channel(&self) -> anyhow::Result<&Channel> {
        self.channel.as_ref().context("the channel of the upgrade is closed")
    }

    fn prepare(&self, listeners: &[ListenerOffer<'_>], deadline: Instant) -> anyhow::Result<()> {
        let channel = self.channel()?;
        let count = u32::try_from(listeners.len()).context("too many listeners")?;
        let sent = (|| {
            channel.send_until(&Message::Begin { listeners: count }, &[], deadline)?;
            for one in listeners {
                let (role, index) = (one.role, one.index);
                let configured = one.configured.clone();
                let message = Message::Listener { role, index, configured };
                channel.send_until(&message, &[one.socket], deadline)?;
            }
            anyhow::Ok(())
        })();
        // The reply is read even if sending has failed: a successor that has failed sends the reason.
        match (channel.expect(deadline), sent) {
            (Ok((Message::Ready, _)), Ok(())) => Ok(()),
            (Ok((Message::Failed { reason }, _)), _) => bail!(reason),
            (Ok(_), Ok(())) => bail!("the new process has sent an unexpected message"),
            (Err(error), Ok(())) | (_, Err(error)) => Err(error),
        }
    }

    /// Sends the successor the other end of a worker's channel.
    ///
    /// # Errors
    /// The successor has ended.
    pub(crate) fn give_channel(&self, channel: &Channel) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        self.channel()?.send_until(&Message::Channel, &[channel.as_fd()], deadline)
    }

    /// Sends the successor the other end of the socket for the hub's log.
    ///
    /// # Errors
    /// The successor has ended.
    pub(crate) fn give_hub(&self, socket: BorrowedFd<'_>) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        self.channel()?.send_until(&Message::Hub, &[socket], deadline)
    }

    /// Confirms to the successor that it takes over the service.
    ///
    /// # Errors
    /// The successor has ended.
    pub(crate) fn confirm(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        self.channel()?.send_until(&Message::Confirm, &[], deadline)?;
        self.is_confirmed = true;
        Ok(())
    }

    /// Ends the process. Returns its exit status if it did not have to be killed.
    fn end(&mut self) -> Option<ExitStatus> {
        // A successor ends when its channel is closed.
        self.channel = None;
        let started_at = Instant::now();
        while started_at.elapsed() < END_PATIENCE {
            match self.process.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => thread::sleep(PAUSE),
                Err(_) => break,
            }
        }
        self.process.kill();
        None
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.is_confirmed && self.channel.is_some() {
            self.end();
        }
    }
}
