//! The targets that lines are written to: a file, or a socket of the system's log.

use crate::{config::LogTarget, transport::early};
use anyhow::Context;
use pollux_http::date;
use std::{
    io::{self, Write},
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// A log daemon that does not answer is contacted again after this time.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// The facility daemon (3) and the severity informational (6) of RFC 5424 §6.2.1.
const PRIORITY: u32 = 3 << 3 | 6;

/// A target that lines are written to.
pub(super) enum Sink {
    Lines(LineFile),
    Datagrams(Datagrams),
}

/// Lines that could not be written.
#[derive(Debug, Default)]
pub(super) struct Loss {
    /// The number of lines.
    pub(super) lines: u64,
    /// The reason; `None` if all lines were written.
    pub(super) error: Option<io::Error>,
}

impl Sink {
    /// Opens the target; `what` names the log in an error.
    ///
    /// # Errors
    /// The file cannot be opened for appending, or no process receives messages at the socket.
    pub(super) fn open(target: &LogTarget, what: &str) -> anyhow::Result<Self> {
        let lines = |file| Self::Lines(LineFile::new(file));
        Ok(match target {
            LogTarget::Stdout => lines(Box::new(io::stdout())),
            LogTarget::File(path) => match early::take_log(path) {
                Some(file) => lines(Box::new(file)),
                None => lines(Box::new(
                    early::open_to_append(path, libc::O_CREAT)
                        .with_context(|| format!("{what} {}", path.display()))?,
                )),
            },
            LogTarget::Syslog(path) => {
                Self::Datagrams(Datagrams::open(Protocol::Syslog, path, what)?)
            }
            LogTarget::Journald(path) => {
                Self::Datagrams(Datagrams::open(Protocol::Journald, path, what)?)
            }
        })
    }

    /// Writes these lines, or as many of them as possible.
    pub(super) fn write(&mut self, lines: &[u8]) -> Loss {
        match self {
            Self::Lines(file) => file.write(lines),
            Self::Datagrams(socket) => socket.write(lines),
        }
    }
}

/// A file that contains only whole lines, even if a write fails half way (a full disk).
pub(super) struct LineFile {
    file: Box<dyn Write + Send>,
    /// The rest of a line whose beginning was written.
    rest: Vec<u8>,
}

impl LineFile {
    pub(super) fn new(file: Box<dyn Write + Send>) -> Self {
        Self { file, rest: Vec::new() }
    }

    /// Writes these lines, or as many of them as possible. The rest of a line that was cut is
    /// written as soon as possible, before any other line; the lines after it are lost.
    fn write(&mut self, lines: &[u8]) -> Loss {
        let (written, outcome) = write_part(&mut *self.file, &self.rest);
        self.rest.drain(..written);
        if let Err(error) = outcome {
            return Loss { lines: count(lines), error: Some(error) };
        }
        let (written, outcome) = write_part(&mut *self.file, lines);
        let Err(error) = outcome else {
            return Loss { lines: 0, error: self.file.flush().err() };
        };
        let mut lost = &lines[written..];
        if lines[..written].last().is_some_and(|byte| *byte != b'\n') {
            let end = lost.iter().position(|byte| *byte == b'\n').map_or(lost.len(), |at| at + 1);
            let (rest, behind) = lost.split_at(end);
            self.rest = rest.to_vec();
            lost = behind;
        }
        Loss { lines: count(lost), error: Some(error) }
    }
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Writes as much of `bytes` as possible. Returns the number of bytes that were written, and the
/// error that prevented more.
fn write_part(file: &mut dyn Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// The format of a datagram that contains a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// The format that syslog(3) of glibc sends to a local socket.
    Syslog,
    /// systemd's native protocol: lines of `FIELD=value`. A log line contains no line feed.
    Journald,
}

/// A socket to which each line is sent as a message.
pub(super) struct Datagrams {
    socket: Option<UnixDatagram>,
    protocol: Protocol,
    path: PathBuf,
    /// The time of the last attempt to connect.
    connected_at: Instant,
    message: Vec<u8>,
}

impl Datagrams {
    fn open(protocol: Protocol, path: &Path, what: &str) -> anyhow::Result<Self> {
        let socket = connect(path).with_context(|| {
            format!("{what}: nothing takes messages at the socket {}", path.display())
        })?;
        Ok(Self {
            socket: Some(socket),
            protocol,
            path: path.to_owned(),
            connected_at: Instant::now(),
            message: Vec::new(),
        })
    }

    fn write(&mut self, lines: &[u8]) -> Loss {
        let mut loss = Loss::default();
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            put_message(&mut self.message, self.protocol, line);
            if let Err(error) = self.send() {
                loss.lines += 1;
                loss.error = Some(error);
            }
        }
        loss
    }

    /// Sends the message. Connects again if the receiver may have been restarted.
    fn send(&mut self) -> io::Result<()> {
        let sent = match &self.socket {
            Some(socket) => socket.send(&self.message).map(drop),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        let Err(error) = sent else { return Ok(()) };
        let is_gone = matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::NotConnected
                | io::ErrorKind::BrokenPipe
        );
        if !is_gone || self.socket.is_none() && self.connected_at.elapsed() < RECONNECT_AFTER {
            return Err(error);
        }
        self.connected_at = Instant::now();
        self.socket = None;
        let socket = connect(&self.path)?;
        socket.send(&self.message)?;
        self.socket = Some(socket);
        Ok(())
    }
}

fn connect(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    Ok(socket)
}

/// Makes the message for a line.
fn put_message(out: &mut Vec<u8>, protocol: Protocol, line: &[u8]) {
    out.clear();
    // Writing to a Vec cannot fail.
    let _ = match protocol {
        Protocol::Syslog => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            write!(out, "<{PRIORITY}>{} pollux[{}]: ", syslog_time(now), std::process::id())
        }
        Protocol::Journald => write!(out, "PRIORITY=6\nSYSLOG_IDENTIFIER=pollux\nMESSAGE="),
    };
    out.extend_from_slice(line);
    if protocol == Protocol::Journald {
        out.push(b'\n');
    }
}

/// Returns `Nov  6 08:49:37` (RFC 3164 §4.1.2) in UTC. Daemons that receive it locally replace it
/// by their own time.
fn syslog_time(unix_second: u64) -> String {
    let date = date::format(unix_second);
    let date = String::from_utf8_lossy(&date);
    let mut words = date.split(' ').skip(1);
    let mut word = || words.next().unwrap_or_default();
    let (day, month, _year, time) = (word(), word(), word(), word());
    format!("{month} {:>2} {time}", day.trim_start_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn each_line_is_a_message_and_a_receiver_that_comes_back_gets_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let mut sink = Sink::open(&LogTarget::Syslog(path.clone()), "access log").unwrap();
        assert_eq!(sink.write(b"one\ntwo\n").lines, 0);
        let message = received(&receiver);
        assert!(message.starts_with("<30>") && message.ends_with("]: one"), "{message}");
        assert!(received(&receiver).ends_with("]: two"));
        drop(receiver);
        std::fs::remove_file(&path).unwrap();
        let loss = sink.write(b"three\nfour\n");
        assert_eq!(loss.lines, 2);
        assert!(loss.error.is_some());
        let receiver = UnixDatagram::bind(&path).unwrap();
        let Sink::Datagrams(socket) = &mut sink else { unreachable!() };
        socket.connected_at -= RECONNECT_AFTER;
        assert_eq!(sink.write(b"five\n").lines, 0);
        assert!(received(&receiver).ends_with("]: five"));

        let mut sink = Sink::open(&LogTarget::Journald(path), "access log").unwrap();
        assert_eq!(sink.write(b"six\n").lines, 0);
        assert_eq!(received(&receiver), "PRIORITY=6\nSYSLOG_IDENTIFIER=pollux\nMESSAGE=six\n");
    }

    #[test]
    fn a_socket_without_a_receiver_is_an_error_at_the_start() {
        let target = LogTarget::Syslog("/nonexistent/log".into());
        let error = Sink::open(&target, "access log").err().unwrap();
        assert!(error.to_string().contains("/nonexistent/log"), "{error:#}");
    }

    /// Regression: a server whose log was such a pipe waited for its reader before it served, and took no signal
    /// meanwhile. At a reload the thread of the log waited for ever.
    #[test]
    fn a_pipe_without_a_reader_is_an_error_and_with_one_gets_lines() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        use std::{fs::OpenOptions, io::Read, os::unix::fs::OpenOptionsExt};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let target = LogTarget::File(path.clone());
        let error = Sink::open(&target, "access log").err().unwrap();
        assert!(format!("{error:#}").contains("no process reads this pipe"), "{error:#}");
        let mut options = OpenOptions::new();
        let mut reader = options.read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let mut sink = Sink::open(&target, "access log").unwrap();
        assert_eq!(sink.write(b"one\n").lines, 0);
        let mut line = [0; 4];
        reader.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"one\n");
    }

    #[test]
    fn the_day_of_a_message_has_two_columns() {
        assert_eq!(syslog_time(784_111_777), "Nov  6 08:49:37");
    }
}
