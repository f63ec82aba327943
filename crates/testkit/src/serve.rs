//! `pollux serve` as a process under test.

use crate::{
    http::{Client, PATIENCE},
    pairs::poll_within,
    wait::{becomes_true, ended_within, wait_until},
};
use rustix::event::PollFlags;
use serde_json::Value;
use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::{
        fd::OwnedFd,
        unix::{fs::FileExt, process::ExitStatusExt},
    },
    path::Path,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

/// How long a server may take to print its next line. This includes a start, or a shutdown within the
/// grace period, on a busy machine.
const LINE_PATIENCE: Duration = Duration::from_secs(120);

/// A running server, killed when it is dropped.
#[derive(Debug)]
pub struct Serve {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// The server's standard error, in a file without a name.
    stderr: File,
    listening: Value,
}

impl Serve {
    /// Starts `binary serve directory --json --listen 127.0.0.1:0 arguments` and waits until it
    /// listens.
    pub fn start(binary: &str, directory: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(binary);
        command.arg("serve").arg(directory).args(["--json", "--listen", "127.0.0.1:0"]);
        command.args(arguments);
        Self::start_command(command)
    }

    /// Does the same as [`Serve::start`], with a soft and hard limit on open files.
    pub fn start_limited(
        open_files: u32,
        binary: &str,
        directory: &Path,
        arguments: &[&str],
    ) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &open_files.to_string(), binary]);
        command.arg("serve").arg(directory).args(["--json", "--listen", "127.0.0.1:0"]);
        command.args(arguments);
        Self::start_command(command)
    }

    /// Starts `command`, which must become such a server, and waits until it listens.
    pub fn start_command(mut command: Command) -> Self {
        let stderr = tempfile::tempfile().expect("a temporary file");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().expect("a copy of a descriptor"))
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut serve = Self { child, stdout, stderr, listening: Value::Null };
        serve.listening = serve.line();
        assert_eq!(serve.listening["event"], "listening", "{}", serve.listening);
        serve
    }

    /// Returns the JSON line that the server printed when it was ready.
    pub fn listening(&self) -> &Value {
        &self.listening
    }

    /// Returns the first address of the server.
    pub fn address(&self) -> &str {
        self.listening["addresses"][0].as_str().expect("an address")
    }

    /// Opens a new connection to the server.
    pub fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// Returns the server's output on standard error so far.
    pub fn stderr_text(&self) -> String {
        let len = self.stderr.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = vec![0; len as usize];
        self.stderr.read_exact_at(&mut bytes, 0).expect("a temporary file can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the process ID of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the server.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the server runs");
    }

    /// Sends a signal to the server and waits until the server has received it. Two pending signals of
    /// the same number would be merged by the kernel.
    pub fn signal_and_wait(&self, signal: rustix::process::Signal) {
        self.signal(signal);
        wait_until(&format!("the server to receive {signal:?}"), || !self.is_pending(signal));
    }

    /// Returns whether a signal to the whole process is pending.
    fn is_pending(&self, signal: rustix::process::Signal) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
        let pending = u64::from_str_radix(line.trim(), 16).unwrap();
        pending >> (signal.as_raw() - 1) & 1 == 1
    }

    /// Stops the server (SIGSTOP) and waits until all of its threads are stopped. SIGCONT resumes it.
    pub fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
        wait_until("all threads of the server to be stopped", || self.stands_still());
    }

    fn stands_still(&self) -> bool {
        let mut tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().flatten();
        tasks.all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        })
    }

    /// Returns the current statistics of the server (SIGUSR1).
    pub fn statistics(&mut self) -> Value {
        self.signal(rustix::process::Signal::USR1);
        let line = self.line();
        assert_eq!(line["event"], "statistics", "{line}");
        line
    }

    /// Reads the statistics repeatedly until `is_so` accepts them.
    pub fn wait_until(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let is_reached = becomes_true(PATIENCE, || {
            last = self.statistics();
            is_so(&last)
        });
        assert!(is_reached, "waited {PATIENCE:?} in vain for {what}: {last}");
        last
    }

    /// Stops the server with SIGTERM; returns its exit status and its last statistics.
    pub fn stop(mut self) -> (ExitStatus, Value) {
        self.signal(rustix::process::Signal::TERM);
        self.wait()
    }

    /// Waits for the end of the server; returns its exit status and its last statistics.
    pub fn wait(&mut self) -> (ExitStatus, Value) {
        let last = self.line();
        (self.wait_for_end(), last)
    }

    /// Waits until a successor has taken over: a process that the server has started and that prints
    /// to the same standard output. Skips the last statistics of processes that end in the meantime.
    pub fn next_process(&mut self) -> Process {
        let mut listening = self.line();
        while listening["event"] == "statistics" {
            listening = self.line();
        }
        assert_eq!(listening["event"], "listening", "{listening}");
        let pid = listening["pid"].as_i64().expect("the number of a process") as i32;
        let pid = rustix::process::Pid::from_raw(pid).expect("the number of a process");
        let descriptor = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        Process { pid, descriptor: descriptor.expect("it runs"), listening }
    }

    /// Returns the statistics line that the next process prints at its end.
    pub fn last_statistics(&mut self) -> Value {
        let line = self.line();
        assert_eq!(line["event"], "statistics", "{line}");
        line
    }

    /// Waits for the end of the server, after which other processes may still print. Returns its exit
    /// status.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let status = ended_within(PATIENCE, &mut self.child);
        status.unwrap_or_else(|| panic!("the server does not end within {PATIENCE:?}"))
    }

    /// Returns whether the server still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Returns the resident anonymous memory of the server in bytes (VmRSS without file mappings).
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    fn line(&mut self) -> Value {
        if self.stdout.buffer().is_empty() {
            let has_said = poll_within(self.stdout.get_ref(), PollFlags::IN, LINE_PATIENCE);
            assert!(!has_said.is_empty(), "the server says nothing for {LINE_PATIENCE:?}");
        }
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line of JSON");
        serde_json::from_str(&line).unwrap_or_else(|error| {
            panic!("{line:?}: {error}; the server has ended: {:?}", self.child.try_wait())
        })
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprint!("{}", self.stderr_text());
        }
    }
}

/// A process that a [`Serve`] has started; killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    pid: rustix::process::Pid,
    descriptor: OwnedFd,
    listening: Value,
}

impl Process {
    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Returns the JSON line that the process printed when it had taken over.
    pub fn listening(&self) -> &Value {
        &self.listening
    }

    /// Sends a signal to the process, unless it has ended.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let _ = rustix::process::pidfd_send_signal(&self.descriptor, signal);
    }

    /// Waits for the end of the process.
    pub fn wait(&self) {
        let ends = poll_within(&self.descriptor, PollFlags::IN, PATIENCE);
        assert!(!ends.is_empty(), "process {} does not end", self.pid());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(rustix::process::Signal::KILL);
    }
}

/// Describes how a process ended, for messages.
pub fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("exit code {:?}", status.code()),
    }
}
