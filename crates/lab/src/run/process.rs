//! A child process that is killed when its handle is dropped.

use super::interrupt::Interrupt;
use crate::{format, sys};
use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::{
    collections::VecDeque,
    ffi::OsString,
    io::{self, BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// The longest line that a child may write to stdout. The generator writes its whole result as one line.
const MAX_LINE_BYTES: u64 = 16 << 20;
/// The number of unread lines of stdout that are queued; a child that writes more is blocked.
const MAX_QUEUED_LINES: usize = 1_024;
/// The number of last lines of stderr that are stored to explain a failure.
const STDERR_LINES: usize = 20;
/// The interval at which waits check for Ctrl-C.
const GRAIN: Duration = Duration::from_millis(20);

/// The scheduling of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// Default scheduling.
    Fair,
    /// A real-time policy: the child runs before all other processes as soon as it is runnable.
    First,
}

/// A running child. Dropping it always kills and reaps it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    what: &'static str,
    command: String,
    lines: Receiver<std::io::Result<String>>,
    stderr: Arc<Mutex<VecDeque<String>>>,
    stderr_reader: Option<thread::JoinHandle<()>>,
    ending: Ending,
}

/// The way in which a child is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// SIGKILL.
    Killed,
    /// SIGTERM, so that the child can end its own children. If it does not end, it is killed with its
    /// process group.
    Terminate,
}

/// The time that a child may take to end after SIGTERM.
const END: Duration = Duration::from_secs(5);

impl Process {
    /// Starts `program`, whose first element is the executable. `what` is its name in error messages.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(what: &'static str, program: &[OsString]) -> anyhow::Result<Self> {
        Self::spawn_with(what, program, Scheduling::Fair)
    }

    /// Starts `program` like [`Process::spawn`], with the given scheduling.
    ///
    /// # Errors
    /// When it cannot be started; for [`Scheduling::First`] also when this process may not set that scheduling.
    pub fn spawn_with(
        what: &'static str,
        program: &[OsString],
        scheduling: Scheduling,
    ) -> anyhow::Result<Self> {
        Self::begin(what, program, scheduling, Ending::Killed)
    }

    /// Starts a server that has its own workers and ends them on SIGTERM.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn_peer(what: &'static str, program: &[OsString]) -> anyhow::Result<Self> {
        Self::begin(what, program, Scheduling::Fair, Ending::Terminate)
    }

    fn begin(
        what: &'static str,
        program: &[OsString],
        scheduling: Scheduling,
        ending: Ending,
    ) -> anyhow::Result<Self> {
        let line = format::command_line(program);
        let (executable, arguments) = program.split_first().context("an empty command line")?;
        let mut command = Command::new(executable);
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The child has its own process group: on Ctrl-C the laboratory decides in which order the children
        // end.
        command.process_group(0);
        let at_our_end = if ending == Ending::Terminate { Signal::TERM } else { Signal::KILL };
        pollux_sys::end_with_parent(&mut command, at_our_end.as_raw());
        if scheduling == Scheduling::First {
            sys::goes_first(&mut command);
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {line}"))?;
        let (sender, lines) = sync_channel(MAX_QUEUED_LINES);
        let stdout = child.stdout.take().context("no stdout")?;
        thread::spawn(move || read_lines(stdout, &sender));
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        let last_lines = Arc::clone(&stderr);
        let source = child.stderr.take().context("no stderr")?;
        let stderr_reader = Some(thread::spawn(move || keep_last_lines(source, &last_lines)));
        Ok(Self { child, what, command: line, lines, stderr, stderr_reader, ending })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The command line, quoted for a shell.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32).context("pid 0")?;
        kill_process(pid, signal).with_context(|| format!("{} (pid {})", self.what, self.pid()))
    }

    /// Returns the next line of stdout; `None` at the end of the output.
    ///
    /// # Errors
    /// When no line arrives within `timeout`, on Ctrl-C, or when the line is too long.
    pub fn line(&self, timeout: Duration, interrupt: &Interrupt) -> anyhow::Result<Option<String>> {
        let deadline = Instant::now() + timeout;
        loop {
            interrupt.check()?;
            match self.lines.recv_timeout(GRAIN) {
                Ok(line) => return Ok(Some(line.with_context(|| self.complaint("stdout"))?)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                    bail!("{}", self.complaint(&format!("wrote nothing for {timeout:?}")))
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Returns the rest of stdout, and the exit status.
    ///
    /// # Errors
    /// When it does not end within `timeout`, or on Ctrl-C.
    pub fn output(
        &mut self,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> anyhow::Result<(ExitStatus, String)> {
        let deadline = Instant::now() + timeout;
        let mut text = String::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(line) = self.line(left, interrupt)? else { break };
            text.push_str(&line);
            text.push('\n');
        }
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok((status, text));
            }
            interrupt.check()?;
            thread::sleep(Duration::from_millis(1));
        }
        bail!("{}", self.complaint("closed its stdout but does not end"))
    }

    /// Returns the exit status if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Returns the last lines that the process wrote to stderr.
    pub fn stderr(&self) -> String {
        let lines = self.stderr.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Returns a message with `problem`, the name of the process, its exit status, and its last output on
    /// stderr.
    pub fn complaint(&self, problem: &str) -> String {
        let stderr = self.stderr();
        let stderr =
            if stderr.is_empty() { String::new() } else { format!("; it wrote: {stderr}") };
        format!("{} {problem}{stderr}", self.what)
    }

    /// Waits until all of stderr has been read. Call it only for a process that has ended.
    pub fn drain_stderr(&mut self) {
        if let Some(reader) = self.stderr_reader.take() {
            let _ = reader.join();
        }
    }

    /// Kills and reaps the process.
    fn end(&mut self) {
        if self.ending == Ending::Terminate {
            let _ = self.signal(Signal::TERM);
            let deadline = Instant::now() + END;
            while self.ended().is_none() && Instant::now() < deadline {
                // Discard the rest of its output: a full queue would block the process.
                while self.lines.try_recv().is_ok() {}
                thread::sleep(Duration::from_millis(2));
            }
            // Until the process has been reaped, its id cannot belong to another process group.
            if let (None, Some(group)) = (self.ended(), Pid::from_raw(self.child.id() as i32)) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        // Both calls fail only if the process has already been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn read_lines(stdout: impl Read, lines: &SyncSender<std::io::Result<String>>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = String::new();
        let line = match reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line) {
            Ok(0) => return,
            Ok(_) if line.len() as u64 == MAX_LINE_BYTES && !line.ends_with('\n') => {
                Err(std::io::Error::other(format!("a line of more than {MAX_LINE_BYTES} bytes")))
            }
            Ok(_) => Ok(line.trim_end_matches('\n').to_owned()),
            Err(error) => Err(error),
        };
        let last = line.is_err();
        if lines.send(line).is_err() || last {
            return;
        }
    }
}

fn keep_last_lines(stderr: impl Read, last_lines: &Mutex<VecDeque<String>>) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        // Very long lines are split, so that they need no unbounded buffer.
        match reader.by_ref().take(4_096).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let mut lines = last_lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if lines.len() == STDERR_LINES {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
    }
}

/// The path of taskset(1), with which the programs of others are bound to a CPU.
///
/// # Errors
/// When it is not installed; the error names its package.
pub fn find_taskset() -> io::Result<PathBuf> {
    pollux_sys::require_program("taskset", "util-linux")
}

/// Returns `program` as a command that runs with all its children on `cpu`.
pub fn pinned(cpu: u32, program: &[OsString]) -> Vec<OsString> {
    let words = ["taskset".into(), "-c".into(), OsString::from(cpu.to_string())];
    [&words, program].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Process {
        let words = ["sh", "-c", script].map(OsString::from);
        Process::spawn("the script", &words).unwrap()
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn lines_then_the_end_then_the_status() {
        let mut process = sh("echo one; echo two; echo oh >&2; exit 3");
        let (status, text) = process.output(LONG, &Interrupt::never()).unwrap();
        process.drain_stderr();
        assert_eq!((status.code(), text.as_str()), (Some(3), "one\ntwo\n"));
        assert_eq!(process.complaint("failed"), "the script failed; it wrote: oh");
    }

    #[test]
    fn a_dropped_process_is_dead_and_reaped() {
        let process = sh("exec sleep 1000");
        let pid = process.pid();
        assert!(std::fs::exists(format!("/proc/{pid}")).unwrap());
        drop(process);
        assert!(!std::fs::exists(format!("/proc/{pid}")).unwrap(), "not even a zombie is left");
    }

    #[test]
    fn a_panic_kills_too() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let result = thread::spawn(move || {
            let process = sh("exec sleep 1000");
            sender.send(process.pid()).unwrap();
            panic!("on purpose");
        })
        .join();
        assert!(result.is_err());
        let pid = receiver.recv().unwrap();
        assert!(!std::fs::exists(format!("/proc/{pid}")).unwrap());
    }

    #[test]
    fn a_silent_process_is_given_up() {
        let process = sh("exec sleep 1000");
        let error = process.line(Duration::from_millis(50), &Interrupt::never()).unwrap_err();
        assert_eq!(error.to_string(), "the script wrote nothing for 50ms");
    }

    #[test]
    fn an_interrupt_ends_a_wait() {
        let process = sh("exec sleep 1000");
        let interrupt = Interrupt::never();
        interrupt.raise();
        let error = process.line(LONG, &interrupt).unwrap_err();
        assert!(error.is::<super::super::interrupt::Interruption>());
    }

    #[test]
    fn a_pinned_process_has_one_cpu() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..1024).find(|&cpu| allowed.is_set(cpu)).unwrap();
        let words = ["grep", "Cpus_allowed_list", "/proc/self/status"].map(OsString::from);
        let mut process = Process::spawn("grep", &pinned(cpu as u32, &words)).unwrap();
        let (_, text) = process.output(LONG, &Interrupt::never()).unwrap();
        assert_eq!(text, format!("Cpus_allowed_list:\t{cpu}\n"));
    }
}
