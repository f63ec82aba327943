//! The access log of processes: one of them writes, all others send it their lines.
//!
//! Over a pair of sockets that keep messages apart, so that lines of different processes never mix.
//! The queue is the kernel's; when it is full, lines are dropped and counted, as with a thread. So is
//! a single line that is longer than a message can be (some 200 KB): a request's head of that length
//! has to be allowed first (`--max-header`).

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

/// A message that is no lines: none begin with it.
const REOPEN: &[u8] = b"\0";
/// Lines that begin with this byte are of the slow log; no line itself does.
const SLOW: u8 = 1;
/// Longer messages are not sent: the kernel's default for a socket's queue is less.
const MESSAGE_BYTES: usize = 256 << 10;

/// The access log, seen from the supervising process.
#[derive(Debug)]
pub(crate) struct LogProcess {
    config: Arc<LogConfig>,
    /// Where lines arrive. Held here too, so that nothing is lost when the writer is replaced.
    far: OwnedFd,
    near: Arc<OwnedFd>,
}

impl LogProcess {
    /// As [`LogProcess::new`]; `None` where nothing is logged.
    ///
    /// # Errors
    /// As [`LogProcess::new`].
    pub(crate) fn of(config: &LogConfig) -> anyhow::Result<Option<Self>> {
        (!config.is_off()).then(|| Self::new(config)).transpose()
    }

    /// Nobody writes yet; but it is known that the targets can be written to.
    ///
    /// # Errors
    /// When a file cannot be opened for appending, or there are no sockets left.
    pub(crate) fn new(config: &LogConfig) -> anyhow::Result<Self> {
        drop(Sinks::open(config)?);
        let (far, near) = pollux_sys::packet_pair()?;
        Ok(Self { config: Arc::new(config.clone()), far, near: Arc::new(near) })
    }

    /// Where processes get their ends from. They keep [`LogProcess::near`] open.
    pub(crate) fn source(&self) -> LogSource {
        LogSource {
            config: self.config.clone(),
            // What the process that writes loses, it reports itself.
            lost: Arc::default(),
            way: Way::Process(self.near.clone()),
        }
    }

    /// The end to send on.
    pub(crate) fn near(&self) -> BorrowedFd<'_> {
        self.near.as_fd()
    }

    /// The end that the writer keeps open.
    pub(crate) fn far(&self) -> BorrowedFd<'_> {
        self.far.as_fd()
    }

    /// Ends the sending side: the writer ends when it has written everything that was sent.
    pub(crate) fn end(&self) {
        let _ = shutdown(&self.near, Shutdown::Write);
    }

    /// The life of the process that writes. Returns what it ends with: 0 when all that was ever sent is
    /// written ([`LogProcess::end`]).
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

    /// Has the file opened anew, behind all lines that were handed over before.
    pub(crate) fn reopen(&self) {
        if !send(&self.near, REOPEN) {
            tracing::warn!(
                "access log: the writer is behind, so it is not reopened; request it again"
            );
        }
    }
}

/// Sends whole lines of a log. Returns whether they were taken.
pub(super) fn send_lines(socket: &OwnedFd, kind: Kind, mut lines: Vec<u8>) -> bool {
    if kind == Kind::Slow {
        lines.insert(0, SLOW);
    }
    send(socket, &lines)
}

/// Sends a message. Returns whether it was taken.
fn send(socket: &OwnedFd, lines: &[u8]) -> bool {
    // Not counted, as what a thread is handed is not.
    send_message(socket, lines, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
}

/// The next message; `None` behind the last one.
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
        message if message == REOPEN => Some(Message::Reopen),
        [SLOW, lines @ ..] => Some(Message::Lines(Kind::Slow, lines.to_vec())),
        lines => Some(Message::Lines(Kind::Access, lines.to_vec())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::LogTarget, log::Entry, time::clock::Clock};
    use std::{
        path::Path,
        thread,
        time::{Duration, Instant},
    };

    fn lines_in(path: &Path) -> usize {
        std::fs::read_to_string(path).unwrap().lines().count()
    }

    fn entry(request: &[u8]) -> Entry<'_> {
        Entry { request, status: 200, len: 1, elapsed_ms: 0, record: None }
    }

    #[test]
    fn lines_of_several_never_mix_and_all_arrive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let config = LogConfig::clf(LogTarget::File(path.clone()));
        let log = LogProcess::new(&config).unwrap();
        let moved = directory.path().join("moved");
        let deadline = Instant::now() + Duration::from_secs(30);
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
                                // As often as it takes: on a busy machine the writer may be behind.
                                while Instant::now() < deadline {
                                    let dropped = end.dropped();
                                    end.write(Clock::start().date(), &entry(line.as_bytes()));
                                    end.hand_over();
                                    if end.dropped() == dropped {
                                        break;
                                    }
                                    thread::sleep(Duration::from_millis(1));
                                }
                            }
                        })
                    })
                    .collect();
                senders.into_iter().for_each(|sender| sender.join().unwrap());
                if round == 0 {
                    std::fs::rename(path, &moved).unwrap();
                    // A queue that is full takes no word to open the file anew either.
                    while lines_in(&moved) < 200 && Instant::now() < deadline {
                        thread::sleep(Duration::from_millis(1));
                    }
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
