//! Runs helper programs (apt, make, depmod). A signal or a time limit ends them.

use crate::{progress::Progress, sys};
use anyhow::{Context, bail};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process_group},
};
use std::{
    ffi::OsStr,
    fs::File,
    io::Read,
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// The maximum of stored output of one helper program; the beginning of longer output is dropped.
const OUTPUT_MAX: usize = 64 << 20;
/// The number of lines of a failed program's output that are included in the error.
const ERROR_LINES: usize = 25;
/// How often a program whose output is closed is checked for its end.
const TICK: Duration = Duration::from_millis(50);
/// How long a program may take to end after its signal before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// The program was stopped by a signal.
#[derive(Debug, thiserror::Error)]
#[error("ended by signal {0}")]
pub struct SignalError(pub i32);

/// Watches for signals while helper programs or the guest run.
pub(crate) struct Supervisor {
    pub(crate) signals: sys::EndSignals,
}

impl Supervisor {
    pub(crate) fn new() -> anyhow::Result<Supervisor> {
        Ok(Supervisor { signals: sys::EndSignals::block().context("signalfd")? })
    }

    /// Fails with [`SignalError`] when a signal has arrived.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self.signals.taken() {
            Some(signal) => Err(SignalError(signal).into()),
            None => Ok(()),
        }
    }

    /// Runs `command` to its end and returns its standard output.
    ///
    /// # Errors
    /// The program cannot be started, fails (with the end of its output), or runs longer than `limit`,
    /// or a signal arrived ([`SignalError`]); in the last two cases the program has been ended.
    pub(crate) fn run(&self, mut command: Command, limit: Duration) -> anyhow::Result<Vec<u8>> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        pollux_sys::end_with_parent(&mut command, libc::SIGTERM);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let mut streams = [
            Stream::new(child.stdout.take().map(OwnedFd::from)),
            Stream::new(child.stderr.take().map(OwnedFd::from)),
        ];
        let outcome = self.follow(&mut child, &mut streams, limit, &name);
        if outcome.is_err() {
            end_group(&mut child);
        }
        let status = outcome?;
        let [out, err] = streams.map(|stream| stream.bytes);
        if !status.success() {
            bail!("{name} failed ({status}):\n{}", last_lines(&out, &err));
        }
        Ok(out)
    }

    /// [`Supervisor::run`] with a progress line.
    pub(crate) fn run_shown(
        &self,
        what: &str,
        command: Command,
        limit: Duration,
    ) -> anyhow::Result<Vec<u8>> {
        let _progress = Progress::start(what);
        self.run(command, limit).with_context(|| what.to_owned())
    }

    fn follow(
        &self,
        child: &mut Child,
        streams: &mut [Stream; 2],
        limit: Duration,
        name: &str,
    ) -> anyhow::Result<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            self.check()?;
            let open = streams.iter().any(|stream| stream.file.is_some());
            // A grandchild may keep the pipes open after the program's end: do not wait for it.
            if let Some(status) = child.try_wait()? {
                streams.iter_mut().for_each(Stream::drain);
                return Ok(status);
            }
            if Instant::now() >= end {
                bail!("{name} did not end within {} s", limit.as_secs());
            }
            let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
            for file in streams.iter().filter_map(|stream| stream.file.as_ref()) {
                fds.push(PollFd::new(file, PollFlags::IN));
            }
            let timeout = if open { TICK * 4 } else { TICK };
            wait(&mut fds, timeout)?;
            streams.iter_mut().for_each(Stream::drain);
        }
    }
}

/// Calls poll(2) with a timeout in std's type; an interrupted wait counts as finished.
pub(crate) fn wait(fds: &mut [PollFd<'_>], timeout: Duration) -> anyhow::Result<()> {
    let timeout = Timespec::try_from(timeout).context("timeout out of range")?;
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("poll"),
    }
}

/// Ends a child that leads its own process group, and all processes of the group.
pub(crate) fn end_group(child: &mut Child) {
    let group = Pid::from_child(child);
    let _ = kill_process_group(group, Signal::TERM);
    let end = Instant::now() + GRACE;
    while Instant::now() < end {
        if !matches!(child.try_wait(), Ok(None)) {
            break;
        }
        std::thread::sleep(TICK);
    }
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
}

struct Stream {
    file: Option<File>,
    bytes: Vec<u8>,
}

impl Stream {
    fn new(fd: Option<OwnedFd>) -> Stream {
        if let Some(fd) = &fd {
            let _ = rustix::io::ioctl_fionbio(fd, true);
        }
        Stream { file: fd.map(File::from), bytes: Vec::new() }
    }

    fn drain(&mut self) {
        let mut buffer = [0; 16384];
        while let Some(file) = &mut self.file {
            match file.read(&mut buffer) {
                Ok(0) => self.file = None,
                Ok(n) => {
                    self.bytes.extend_from_slice(&buffer[..n]);
                    if self.bytes.len() > OUTPUT_MAX {
                        self.bytes.drain(..OUTPUT_MAX / 2);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => self.file = None,
            }
        }
    }
}

fn last_lines(out: &[u8], err: &[u8]) -> String {
    let text = [out, err].map(String::from_utf8_lossy).concat();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(ERROR_LINES)..].join("\n")
}

/// A command whose output is in English, regardless of the user's locale, because the output is parsed.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C.UTF-8");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> Command {
        let mut shell = command("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn output_is_returned() {
        let supervisor = Supervisor::new().unwrap();
        assert_eq!(supervisor.run(shell("printf abc; echo no >&2"), LIMIT).unwrap(), b"abc");
    }

    #[test]
    fn a_failure_shows_the_programs_output() {
        let supervisor = Supervisor::new().unwrap();
        let error = supervisor.run(shell("echo first; echo broken >&2; exit 3"), LIMIT);
        let text = format!("{:#}", error.unwrap_err());
        assert!(text.contains("exit status: 3") && text.contains("broken"), "{text}");
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_its_children() {
        let supervisor = Supervisor::new().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let script = format!("sleep 300 & echo $! > {}; wait", file.display());
        // On a busy machine the shell may take longer to start.
        let pid = [1, 5, 25].into_iter().find_map(|seconds| -> Option<u32> {
            let error = supervisor.run(shell(&script), Duration::from_secs(seconds)).unwrap_err();
            let expected = format!("did not end within {seconds} s");
            assert!(error.to_string().contains(&expected), "{error}");
            std::fs::read_to_string(&file).ok()?.trim().parse().ok()
        });
        let pid = pid.expect("the shell wrote the number of its child");
        // SIGKILL has been sent; on a busy machine the process may take some time to end.
        pollux_testkit::wait_until(&format!("the end of process {pid}"), || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
    }
}
