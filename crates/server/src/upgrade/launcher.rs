//! A process that starts successors for a server which may not execute programs itself.
//!
//! It is forked before the server enters its sandbox, and stays outside of the sandbox. A successor
//! must not inherit the sandbox, because its configuration may need other files and ports, and
//! because the kernel allows at most 16 nested Landlock domains. The launcher starts only the
//! program that the server was started from, with the same arguments, and ends with the server.

use anyhow::{Context, bail};
use pollux_sys::{self as sys, OwnFileTables};
use rustix::process::{Pid, WaitOptions, waitpid};
use socket2::SockRef;
use std::{
    io::{self, IoSlice},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    path::Path,
    process::{Child, ExitStatus},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// How long the launcher may take to answer. Its longest request is to start a program.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest message, in bytes; a longer reason is cut.
const MESSAGE_MAX: usize = 4 << 10;

/// The name of the launcher's process.
const NAME: &std::ffi::CStr = c"pollux-launcher";

/// A request is one byte and the number of the request. `START` also carries the descriptor of the
/// successor's channel.
const START: u8 = b's';
const STATUS: u8 = b'?';
const KILL: u8 = b'k';
/// A reply is one byte, the number of its request, and a value: a process ID, an error message or an
/// exit status.
const STARTED: u8 = b'p';
const FAILED: u8 = b'f';
const RUNNING: u8 = b'r';
const ENDED: u8 = b'e';

/// The number of bytes before the value of a reply.
const HEAD: usize = 5;

/// The launcher of this server.
static LAUNCHER: Mutex<Option<Launcher>> = Mutex::new(None);

struct Launcher {
    socket: OwnedFd,
    process: Option<Pid>,
    /// The number of the last request.
    number: u32,
}

/// Starts the launcher of this server. The process must have one thread.
///
/// # Errors
/// The errors of fork(2) and socketpair(2).
pub(crate) fn start(promise: OwnFileTables) -> anyhow::Result<()> {
    // The path is read now, because /proc/self/exe does not follow a replacement of the file: an upgrade starts
    // the file that has this path then.
    let program = std::env::current_exe().context("/proc/self/exe")?;
    let (near, far) = sys::packet_pair().context("the launcher's socket")?;
    SockRef::from(&near).set_read_timeout(Some(PATIENCE)).context("SO_RCVTIMEO")?;
    let inherited = [far.as_raw_fd()];
    let process = sys::fork(promise, &inherited, move || {
        let _ = rustix::thread::set_name(NAME);
        serve(&far, &program);
        0
    })
    .context("the launcher of upgrades")?;
    *LAUNCHER.lock().unwrap_or_else(PoisonError::into_inner) =
        Some(Launcher { socket: near, process: Pid::from_raw(process), number: 0 });
    Ok(())
}

/// Ends the launcher, if there is one, and waits for its process, so that it does not outlive the
/// server.
pub(crate) fn end() {
    let launcher = LAUNCHER.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(Launcher { socket, process, .. }) = launcher else { return };
    drop(socket);
    if process.is_some() {
        let _ = waitpid(process, WaitOptions::empty());
    }
}

/// Returns whether this server has a launcher, and so may not start programs itself.
pub(crate) fn exists() -> bool {
    LAUNCHER.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// A successor that the launcher has started.
#[derive(Debug)]
pub(super) struct SuccessorProcess {
    pid: u32,
}

impl SuccessorProcess {
    /// Starts the server's program, which inherits `channel`.
    ///
    /// # Errors
    /// The program cannot be executed, or the launcher does not answer.
    pub(super) fn start(channel: BorrowedFd<'_>) -> anyhow::Result<Self> {
        match request(START, Some(channel)).context("the launcher of upgrades")? {
            (STARTED, value) => {
                let pid = value.try_into().map(u32::from_le_bytes).ok().context("no process ID")?;
                Ok(Self { pid })
            }
            (_, reason) => bail!("{}", String::from_utf8_lossy(&reason)),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the exit status of the successor, if it has ended.
    ///
    /// # Errors
    /// The launcher does not answer.
    pub(super) fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        match request(STATUS, None)? {
            (ENDED, value) => {
                let status = value.try_into().map(i32::from_le_bytes).unwrap_or_default();
                Ok(Some(ExitStatus::from_raw(status)))
            }
            _ => Ok(None),
        }
    }

    /// Kills the successor, and waits for its end.
    ///
    /// # Errors
    /// The launcher does not answer.
    pub(super) fn kill(&self) -> io::Result<()> {
        request(KILL, None).map(drop)
    }
}

fn request(what: u8, channel: Option<BorrowedFd<'_>>) -> io::Result<(u8, Vec<u8>)> {
    let mut launcher = LAUNCHER.lock().unwrap_or_else(PoisonError::into_inner);
    launcher.as_mut().ok_or(io::ErrorKind::NotConnected)?.request(what, channel)
}

impl Launcher {
    fn request(&mut self, what: u8, channel: Option<BorrowedFd<'_>>) -> io::Result<(u8, Vec<u8>)> {
        self.number = self.number.wrapping_add(1);
        let (socket, number) = (self.socket.as_fd(), self.number.to_le_bytes());
        let request = [&[what][..], &number[..]].concat();
        match channel {
            Some(channel) => sys::send_with_descriptor(socket, &[IoSlice::new(&request)], channel)?,
            None => sys::send(socket, &request, false)?,
        };
        let mut buffer = vec![0; MESSAGE_MAX];
        loop {
            let (len, _) = sys::receive_with_descriptor(socket, &mut buffer).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::WouldBlock => io::Error::other("it does not answer in time"),
                    _ => error,
                }
            })?;
            let Some((head, value)) = buffer[..len].split_at_checked(HEAD) else {
                return Err(io::Error::other("it has ended"));
            };
            // Skip a reply that came too late for an earlier request.
            if head[1..] == number {
                return Ok((head[0], value.to_vec()));
            }
        }
    }
}

/// Runs in the launcher: handles one request after another until the server has ended.
fn serve(socket: &OwnedFd, program: &Path) {
    let mut child: Option<Child> = None;
    let mut buffer = [0; 8];
    loop {
        let (len, channel) = match sys::receive_with_descriptor(socket.as_fd(), &mut buffer) {
            Ok(received) => received,
            Err(_) => return,
        };
        // Nothing is received when the server has ended.
        let Some((what, number)) = buffer[..len].split_first() else { return };
        let (kind, value) = match (*what, channel) {
            (START, Some(channel)) => {
                // The previous successor has ended and is reaped here; or it has taken over, and
                // this server ends soon.
                if let Some(mut former) = child.take() {
                    let _ = former.try_wait();
                }
                match super::successor::command(program, channel.as_fd()).spawn() {
                    Ok(started) => {
                        let pid = started.id().to_le_bytes();
                        child = Some(started);
                        (STARTED, pid.to_vec())
                    }
                    Err(error) => {
                        let reason = format!("{} cannot be started: {error}", program.display());
                        (FAILED, reason.into_bytes())
                    }
                }
            }
            (KILL, None) => {
                if let Some(mut child) = child.take() {
                    let _ = child.kill();
                    let _ = child.wait();
                }
                (ENDED, Vec::new())
            }
            _ => match child.as_mut().map(Child::try_wait) {
                Some(Ok(Some(status))) => (ENDED, status.into_raw().to_le_bytes().to_vec()),
                _ => (RUNNING, Vec::new()),
            },
        };
        let mut reply = [&[kind][..], number, &value[..]].concat();
        reply.truncate(MESSAGE_MAX);
        if sys::send(socket.as_fd(), &reply, false).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn launcher(patience: Duration) -> (Launcher, OwnedFd) {
        let (near, far) = sys::packet_pair().unwrap();
        SockRef::from(&near).set_read_timeout(Some(patience)).unwrap();
        (Launcher { socket: near, process: None, number: 0 }, far)
    }

    /// Regression: the next request got the late reply, and so a wrong process ID.
    #[test]
    fn a_late_reply_is_not_taken_for_the_reply_to_the_next_request() {
        let (mut launcher, far) = launcher(Duration::from_millis(20));
        let error = launcher.request(START, None).unwrap_err();
        assert!(error.to_string().contains("in time"), "{error}");
        for (kind, number) in [(STARTED, 1), (RUNNING, 2)] {
            sys::send(far.as_fd(), &[kind, number, 0, 0, 0, 7], false).unwrap();
        }
        assert_eq!(launcher.request(STATUS, None).unwrap(), (RUNNING, vec![7]));
        drop(far);
        assert!(launcher.request(STATUS, None).is_err());
    }

    #[test]
    fn each_request_is_answered_under_its_number() {
        let (mut launcher, far) = launcher(PATIENCE);
        let serves = thread::spawn(move || serve(&far, Path::new("/nonexistent/pollux")));
        let (channel, _other) = sys::packet_pair().unwrap();
        assert_eq!(launcher.request(STATUS, None).unwrap().0, RUNNING);
        let (kind, reason) = launcher.request(START, Some(channel.as_fd())).unwrap();
        assert_eq!(kind, FAILED);
        assert!(String::from_utf8(reason).unwrap().contains("/nonexistent/pollux"));
        assert_eq!(launcher.request(KILL, None).unwrap(), (ENDED, Vec::new()));
        drop(launcher);
        serves.join().unwrap();
    }
}
