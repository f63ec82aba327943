//! The access log for worker processes: one process writes, and all others send their lines to it.
//!
//! The lines go through a pair of sockets that preserves message boundaries, so that lines of
//! different processes never mix. The kernel holds the queue. If it is full, lines are dropped and
//! counted, as with a thread. A single line that is longer than the largest message (some 200 KB)
//! is dropped, too; a request's head of that length must first be allowed (`--max-header`).

use super::{Kind, LogSource, Message, Sinks, Way, write_each};
use crate::config::LogConfig;
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown, recv, send as send_message, shutdown},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, atomic::AtomicU64},
};

/// The message that requests to open the file again. No line begins with this byte.
const REOPEN: &[u8] = b"\0";
/// The first byte of a message with lines of the slow log. No line begins with this byte.
const SLOW: u8 = 1;
/// The maximum size of a message in bytes; the kernel's default for a socket's queue is smaller.
const MESSAGE_BYTES: usize = 256 << 10;

/// The access log, seen from the supervising process.
#[derive(Debug)]
pub(crate) struct LogProcess {
    config: Arc<LogConfig>,
    /// The end at which lines arrive. It is also held here, so that no lines are lost when the
    /// writer is replaced.
    far: OwnedFd,
    near: Arc<OwnedFd>,
}

impl LogProcess {
    /// Does the same as [`LogProcess::new`]; returns `None` if nothing is logged.
    ///
    /// # Errors
    /// The errors of [`LogProcess::new`].
    pub(crate) fn of(config: &LogConfig) -> anyhow::Result<Option<Self>> {
        (!config.is_off()).then(|| Self::new(config)).transpose()
    }

    /// Checks that the targets can be written, and creates the sockets. No process writes yet.
    ///
    /// # Errors
    /// A file cannot be opened for appending, or there are no sockets left.
    pub(crate) fn new(config: &LogConfig) -> anyhow::Result<Self> {
        drop(Sinks::open(config)?);
        let (far, near) = pollux_sys::packet_pair()?;
        Ok(Self { config: Arc::new(config.clone()), far, near: Arc::new(near) })
    }

    /// Returns a source of writers for worker processes, which must keep [`LogProcess::near`] open.
    pub(crate) fn source(&self) -> LogSource {
        LogSource {
            config: self.config.clone(),
            // The process that writes reports lost lines itself.
            lost: Arc::default(),
            way: Way::Process(self.near.clone()),
        }
    }

    /// Returns the end that sends.
    pub(crate) fn near(&self) -> BorrowedFd<'_> {
        self.near.as_fd()
    }

    /// Returns the end that the writer keeps open.
    pub(crate) fn far(&self) -> BorrowedFd<'_> {
        self.far.as_fd()
    }

    /// Closes the sending side. The writer then ends when it has written everything that was sent.
    pub(crate) fn end(&self) {
        let _ = shutdown(&self.near, Shutdown::Write);
    }

    /// Runs the process that writes. Returns its exit status: 0 if everything that was ever sent is
    /// written (see [`LogProcess::end`]).
    pub(crate) fn write(&self) -> u8 {
        let sinks = match Sinks::open(&self.config) {
            Ok(sinks) => sinks,
            Err(error) => {
                tracing::error!("{error:#}; lines wait, and are lost when too many do");
                return 1;
            }
        };
        let mut buffer = vec![0; MESSAGE_BYTES];
        let mut status = 0;
        let next = || {
            receive(&self.far, &mut buffer).unwrap_or_else(|error| {
                tracing::error!("access log: {error}");
                status = 1;
                None
            })
        };
        write_each(next, &self.config, sinks, &AtomicU64::new(0));
        status
    }

    /// Opens the file again, after all lines that were sent before are written.
    pub(crate) fn reopen(&self) {
        if !send(&self.near, REOPEN) {
            tracing::warn!(
                "access log: the writer is behind, so it is not reopened; request it again"
            );
        }
    }
}

/// Sends whole lines of a log. Returns whether the socket accepted them.
pub(super) fn send_lines(socket: &OwnedFd, kind: Kind, mut lines: Vec<u8>) -> bool {
    if kind == Kind::Slow {
        lines.insert(0, SLOW);
    }
    send(socket, &lines)
}

/// Sends a message. Returns whether the socket accepted it.
fn send(socket: &OwnedFd, lines: &[u8]) -> bool {
    // This system call is not counted, just as sending to a thread is not.
    send_message(socket, lines, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
}

/// Receives the next message; returns `None` after the last one.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<Message>> {
    let received = loop {
        match recv(socket, &mut *buffer, RecvFlags::empty()) {
            Ok((received, _)) => break received,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    Ok(match &buffer[..received] {
        [] => None,
        message if message == REOPEN => Some(Message::Reopen(None)),
        [SLOW, lines @ ..] => Some(Message::Lines(Kind::Slow, lines.to_vec())),
        lines => Some(Message::Lines(Kind::Access, lines.to_vec())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::LogTarget, log::LogEntry, time::clock::Clock};
    use pollux_testkit::wait_until;
    use std::{path::Path, thread};

    fn lines_in(path: &Path) -> usize {
        std::fs::read_to_string(path).unwrap().lines().count()
    }

    fn entry(request: &[u8]) -> LogEntry<'_> {
        LogEntry { request, status: 200, len: 1, elapsed_ms: 0, record: None }
    }

    #[test]
    fn lines_of_several_never_mix_and_all_arrive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let config = LogConfig::clf(LogTarget::File(path.clone()));
        let log = LogProcess::new(&config).unwrap();
        let moved = directory.path().join("moved");
        thread::scope(|scope| {
            let (source, far) = (log.source(), log.far().try_clone_to_owned().unwrap());
            let sinks = Sinks::open(&config).unwrap();
            let writer = scope.spawn(move || {
                let mut buffer = vec![0; MESSAGE_BYTES];
                let next = || receive(&far, &mut buffer).unwrap();
                write_each(next, &config, sinks, &AtomicU64::new(0));
            });
            let path = &path;
            for round in 0..2 {
                let senders: Vec<_> = (0..4)
                    .map(|_| {
                        let mut end = source.writer();
                        scope.spawn(move || {
                            let line = format!("GET /{} HTTP/1.1", "x".repeat(1000));
                            for _ in 0..50 {
                                // Repeats until the line is accepted: on a busy machine the writer
                                // may be behind.
                                wait_until("room for a line", || {
                                    let dropped = end.dropped();
                                    end.write(Clock::start().date(), &entry(line.as_bytes()));
                                    end.hand_over();
                                    end.dropped() == dropped
                                });
                            }
                        })
                    })
                    .collect();
                senders.into_iter().for_each(|sender| sender.join().unwrap());
                if round == 0 {
                    std::fs::rename(path, &moved).unwrap();
                    // A full queue would not accept the message to reopen the file, either.
                    wait_until("200 lines", || lines_in(&moved) >= 200);
                    log.reopen();
                }
            }
            log.end();
            writer.join().unwrap();
            for path in [&moved, path] {
                let text = std::fs::read_to_string(path).unwrap();
                assert_eq!(text.lines().count(), 200, "{}", path.display());
                assert!(text.lines().all(|line| line.ends_with("x HTTP/1.1\" 200 1")));
            }
        });
    }

    #[test]
    fn a_slow_reader_costs_lines_and_no_time() {
        let directory = tempfile::tempdir().unwrap();
        let log = LogProcess::new(&LogConfig::clf(LogTarget::File(directory.path().join("log"))))
            .unwrap();
        let mut end = log.source().writer();
        let line = "x".repeat(10_000);
        for _ in 0..1_000 {
            end.write(Clock::start().date(), &entry(line.as_bytes()));
            end.hand_over();
        }
        assert!((900..1_000).contains(&end.dropped()), "{}", end.dropped());
    }
}
