//! Runs one guest, from QEMU's start to its end.

use crate::{
    Streams,
    console::Console,
    frame::{Decoder, Frame},
    process::{self, Supervisor},
    qemu,
};
use anyhow::Context;
use rustix::event::{PollFd, PollFlags};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// How long the console may still produce output after the command's end.
const CONSOLE_LIMIT: Duration = Duration::from_secs(20);
/// A write of this size to a pipe that poll(2) calls writable does not block (PIPE_BUF).
const WRITE_MAX: usize = 4096;
/// The maximum of stored messages of QEMU, in bytes.
const MESSAGES_MAX: usize = 64 << 10;
const TICK: Duration = Duration::from_millis(500);
/// How long a kernel may be silent before it has run anything: while it boots it prints only warnings.
/// The whole boot usually takes ten seconds; a minute is long.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_secs(180);

/// How the guest ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GuestEnd {
    /// The command ended with this status.
    Exit(i32),
    /// The time limit was reached.
    TimedOut,
    /// The guest could not be set up, or stopped before the command's end.
    Failed(String),
}

/// The result of a run.
pub(crate) struct GuestReport {
    pub(crate) end: GuestEnd,
    pub(crate) console: Console,
    /// The time from QEMU's start to the command's start, if the command was started.
    pub(crate) boot: Option<Duration>,
    /// Whether the kernel stopped making progress before that.
    pub(crate) stood_still: bool,
}

/// A running QEMU; it is killed when this value is dropped.
struct Qemu {
    child: Child,
    frames: UnixStream,
    console: File,
    messages: File,
}

impl Qemu {
    fn start(mut command: Command) -> anyhow::Result<Qemu> {
        let (ours, theirs) = UnixStream::pair().context("socket pair for the guest")?;
        command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // In a process group of its own: a terminal's Ctrl-C is sent only to us, and we end QEMU.
            .process_group(0);
        pollux_sys::end_with_parent(&mut command, libc::SIGKILL);
        let mut child = command.spawn().with_context(|| format!("start {}", qemu::PROGRAM))?;
        // The `Command` holds the guest's end of the socket: it must be dropped so that we notice
        // QEMU's end.
        drop(command);
        let console = child.stdout.take().context("QEMU's output is a pipe")?;
        let messages = child.stderr.take().context("QEMU's messages are a pipe")?;
        let qemu = Qemu {
            child,
            frames: ours,
            console: File::from(OwnedFd::from(console)),
            messages: File::from(OwnedFd::from(messages)),
        };
        for fd in [qemu.frames.as_fd(), qemu.console.as_fd(), qemu.messages.as_fd()] {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        Ok(qemu)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes for one of the caller's streams that are not written yet.
struct OutputBuffer<'a> {
    file: &'a File,
    bytes: Vec<u8>,
    at: usize,
}

impl OutputBuffer<'_> {
    fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn put(&mut self, bytes: Vec<u8>) {
        (self.bytes, self.at) = (bytes, 0);
    }

    fn write_some(&mut self) -> io::Result<()> {
        let end = self.bytes.len().min(self.at + WRITE_MAX);
        match (&mut &*self.file).write(&self.bytes[self.at..end]) {
            Ok(n) => self.at += n,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl GuestReport {
    /// Whether the kernel crashed or stopped before anything was run in the guest or loaded into it.
    pub(crate) fn is_stillborn(&self) -> bool {
        self.boot.is_none()
            && matches!(self.end, GuestEnd::Failed(_))
            && (self.stood_still || self.console.died_without_modules())
    }
}

/// Boots the machine and follows it to its end. Ends a kernel that is silent for `silence` before it
/// has run anything or loaded a foreign module.
///
/// # Errors
/// QEMU cannot be started, a signal arrived, the caller's streams cannot be written, or the guest sends
/// invalid frames. QEMU has ended in every case.
pub(crate) fn run(
    supervisor: &Supervisor,
    command: Command,
    marker: &str,
    timeout: Duration,
    silence: Option<Duration>,
    streams: &Streams,
    mut log: Option<File>,
) -> anyhow::Result<GuestReport> {
    let start = Instant::now();
    let mut heard_at = start;
    let mut stood_still = false;
    let mut qemu = Qemu::start(command)?;
    let mut state = RunState {
        console: Console::new(marker),
        decoder: Decoder::default(),
        out: OutputBuffer { file: &streams.stdout, bytes: Vec::new(), at: 0 },
        err: OutputBuffer { file: &streams.stderr, bytes: Vec::new(), at: 0 },
        boot: None,
        end: None,
        messages: Vec::new(),
    };
    let mut exited_at = None;
    let mut frames_open = true;
    let mut console_open = true;
    loop {
        supervisor.check()?;
        state.take_frames(start)?;
        let now = Instant::now();
        if state.end.is_some() && state.is_written() {
            let since = *exited_at.get_or_insert(now);
            let failed = matches!(state.end, Some(GuestEnd::Failed(_)));
            if state.console.is_complete() || failed || !console_open {
                break;
            }
            if now - since > CONSOLE_LIMIT {
                state.end = Some(GuestEnd::Failed(
                    "the guest's console fell silent before its last line".to_owned(),
                ));
                break;
            }
        }
        if !frames_open && !console_open && state.is_written() {
            break;
        }
        if now - start >= timeout {
            state.end = Some(GuestEnd::TimedOut);
            break;
        }
        let is_silent = silence.is_some_and(|silence| now - heard_at >= silence);
        if is_silent && state.boot.is_none() && state.end.is_none() && !state.console.is_tainted() {
            let silent_s = (now - heard_at).as_secs();
            let why = format!("the kernel printed nothing for {silent_s} s before it ran anything");
            state.end = Some(GuestEnd::Failed(why));
            stood_still = true;
            break;
        }
        let mut fds = vec![PollFd::new(&supervisor.signals, PollFlags::IN)];
        // While the caller's pipes are full, nothing is read: the guest must wait, and our memory does
        // not grow.
        if frames_open && state.is_written() {
            fds.push(PollFd::new(&qemu.frames, PollFlags::IN));
        }
        for buffer in [&state.out, &state.err].into_iter().filter(|buffer| !buffer.is_empty()) {
            fds.push(PollFd::new(buffer.file, PollFlags::OUT));
        }
        if console_open {
            fds.push(PollFd::new(&qemu.console, PollFlags::IN));
        }
        process::wait(&mut fds, TICK.min(timeout.saturating_sub(now - start)))?;
        drop(fds);

        state.write_some()?;
        if frames_open && state.is_written() {
            frames_open = read_some(&mut qemu.frames, |bytes| state.decoder.push(bytes))?;
        }
        if console_open {
            console_open = read_some(&mut qemu.console, |bytes| {
                heard_at = now;
                state.console.push(bytes);
                if let Some(file) = &mut log {
                    let _ = file.write_all(bytes);
                }
            })?;
        }
        read_some(&mut qemu.messages, |bytes| {
            if state.messages.len() < MESSAGES_MAX {
                state.messages.extend_from_slice(bytes);
            }
        })?;
    }
    drop(qemu);
    state.console.finish();
    let end = state.end.unwrap_or_else(|| {
        let messages = String::from_utf8_lossy(&state.messages);
        let why = if messages.trim().is_empty() { "QEMU printed nothing" } else { messages.trim() };
        GuestEnd::Failed(format!("the guest ended before the command did ({why})"))
    });
    Ok(GuestReport { end, console: state.console, boot: state.boot, stood_still })
}

struct RunState<'a> {
    console: Console,
    decoder: Decoder,
    out: OutputBuffer<'a>,
    err: OutputBuffer<'a>,
    boot: Option<Duration>,
    end: Option<GuestEnd>,
    messages: Vec<u8>,
}

impl RunState<'_> {
    fn is_written(&self) -> bool {
        self.out.is_empty() && self.err.is_empty()
    }

    fn write_some(&mut self) -> anyhow::Result<()> {
        for (name, buffer) in [("output", &mut self.out), ("error", &mut self.err)] {
            if !buffer.is_empty() && is_writable(buffer.file)? {
                buffer.write_some().with_context(|| format!("write to standard {name}"))?;
            }
        }
        Ok(())
    }

    /// Processes the received frames, up to the next one whose output must be written first.
    fn take_frames(&mut self, start: Instant) -> anyhow::Result<()> {
        while self.is_written()
            && let Some(frame) = self.decoder.next()?
        {
            match frame {
                Frame::Ready(release) => {
                    tracing::debug!(release, "guest is up");
                    self.boot = Some(start.elapsed());
                }
                Frame::Stdout(bytes) => self.out.put(bytes),
                Frame::Stderr(bytes) => self.err.put(bytes),
                Frame::Exit(code) => self.end = Some(GuestEnd::Exit(code)),
                Frame::Fatal(why) => self.end = Some(GuestEnd::Failed(why)),
            }
        }
        Ok(())
    }
}

fn is_writable(file: &File) -> anyhow::Result<bool> {
    let mut fds = [PollFd::new(file, PollFlags::OUT)];
    process::wait(&mut fds, Duration::ZERO)?;
    Ok(!fds[0].revents().is_empty())
}

/// Reads the available bytes, in pieces, up to a bound; false at the end of the stream.
fn read_some(from: &mut impl Read, mut take: impl FnMut(&[u8])) -> anyhow::Result<bool> {
    let mut buffer = [0; 65536];
    for _ in 0..16 {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(n) => take(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A killed QEMU resets the socket.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error).context("read from QEMU"),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(script: &str, silence: Option<Duration>) -> GuestReport {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let nowhere = || File::options().write(true).open("/dev/null").unwrap();
        let streams = Streams { stdout: nowhere(), stderr: nowhere() };
        let supervisor = Supervisor::new().unwrap();
        let timeout = Duration::from_secs(6);
        run(&supervisor, command, "end", timeout, silence, &streams, None).unwrap()
    }

    #[test]
    fn a_kernel_that_stands_still_is_ended_before_its_time() {
        let second = Some(Duration::from_secs(1));
        let report =
            ran("echo '[    0.827714] mtrr: inconsistent settings'; exec sleep 99", second);
        assert!(report.is_stillborn(), "{:?}", report.end);
        assert!(
            matches!(&report.end, GuestEnd::Failed(why) if why.contains("the kernel printed nothing for"))
        );
        // A guest that prints is not silent, and without a limit it may be silent.
        let talks = "while echo still here; do sleep 0.2; done";
        let longer = Some(Duration::from_secs(4));
        for (script, silence) in [(talks, longer), ("exec sleep 99", None)] {
            let report = ran(script, silence);
            assert_eq!((&report.end, report.is_stillborn()), (&GuestEnd::TimedOut, false));
        }
        // A start after which a module may have acted is not repeated.
        let taint =
            "echo '[ 1.0] devpoll: loading out-of-tree module taints kernel.'; exec sleep 99";
        assert_eq!(ran(taint, longer).end, GuestEnd::TimedOut);
    }
}
