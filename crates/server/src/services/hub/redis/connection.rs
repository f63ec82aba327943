//! One connection to Redis. Every operation has a deadline.

use super::resp::{self, Reply, ReplyError};
use pollux_guestbook::redis::{Address, Url, put_command};
use socket2::SockRef;
use std::{
    io::{self, BufReader, Read, Write},
    mem::MaybeUninit,
    net::{Shutdown, TcpStream, ToSocketAddrs},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// The maximum time for connecting, for each address of the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum time for a reply. A slower server counts as unreachable.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RedisError {
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// An error that the server replied.
    #[error("Redis replied: {0}")]
    Refused(String),
    #[error("Redis sent an unexpected reply to {0}")]
    Unexpected(&'static str),
}

impl From<io::Error> for RedisError {
    fn from(error: io::Error) -> Self {
        Self::Reply(error.into())
    }
}

impl RedisError {
    /// Returns whether the error persists until an operator changes something, so that a retry is of no use.
    pub(super) fn is_permanent(&self) -> bool {
        const TEMPORARY: [&str; 9] = [
            "LOADING",
            "BUSY",
            "MASTERDOWN",
            "TRYAGAIN",
            "CLUSTERDOWN",
            "READONLY",
            "MISCONF",
            "OOM",
            "ERR max number of clients",
        ];
        match self {
            Self::Refused(text) => !TEMPORARY.iter().any(|start| text.starts_with(start)),
            Self::Reply(ReplyError::Protocol(_)) | Self::Unexpected(_) => true,
            Self::Reply(_) => false,
        }
    }
}

/// A socket of either kind.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => UnixStream::connect(path).map(Self::Unix),
            Address::Tcp(host, port) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Self::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    /// Shuts the socket down, which wakes a thread that waits for it.
    pub(super) fn shut_down(&self) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// A socket whose calls end at a deadline, however slowly bytes arrive.
#[derive(Debug)]
struct DeadlineSocket {
    socket: Socket,
    deadline: Instant,
}

impl DeadlineSocket {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "Redis does not reply in time"));
        }
        Ok(Some(left))
    }
}

/// Replaces the error of a socket's timeout, which is EAGAIN (socket(7)), by one that names the timeout.
fn as_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "Redis does not reply in time")
        }
        _ => error,
    }
}

impl Read for DeadlineSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(left)?;
                stream.read(buffer).map_err(as_timeout)
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(left)?;
                stream.read(buffer).map_err(as_timeout)
            }
        }
    }
}

impl Write for DeadlineSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left()?;
        match &mut self.socket {
            Socket::Tcp(stream) => {
                stream.set_write_timeout(left)?;
                stream.write(bytes).map_err(as_timeout)
            }
            Socket::Unix(stream) => {
                stream.set_write_timeout(left)?;
                stream.write(bytes).map_err(as_timeout)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection that has logged in.
#[derive(Debug)]
pub(super) struct RedisConnection {
    stream: BufReader<DeadlineSocket>,
    reply_bytes: usize,
}

impl RedisConnection {
    /// Connects, logs in and selects the database. `reply_bytes` is the maximum length of a reply.
    ///
    /// # Errors
    /// There is no server, or it refuses the login.
    pub(super) fn open(url: &Url, reply_bytes: usize) -> Result<Self, RedisError> {
        let socket = Socket::connect(&url.address)?;
        let timed = DeadlineSocket { socket, deadline: Instant::now() };
        let mut connection =
            Self { stream: BufReader::with_capacity(64 << 10, timed), reply_bytes };
        if url.user.is_some() || url.password.is_some() {
            let password = url.password.as_deref().unwrap_or_default().as_bytes();
            match &url.user {
                Some(user) => connection.command(&[b"AUTH", user.as_bytes(), password])?,
                None => connection.command(&[b"AUTH", password])?,
            };
        }
        if url.database != 0 {
            connection.command(&[b"SELECT", url.database.to_string().as_bytes()])?;
        }
        Ok(connection)
    }

    /// Returns a second descriptor of the socket, so that another thread can shut the socket down.
    pub(super) fn socket(&self) -> io::Result<Socket> {
        self.stream.get_ref().socket.try_clone()
    }

    /// Returns whether the server has closed the connection, as Redis does with one that is idle for longer than
    /// its setting `timeout`. To be called while no reply is expected; does not wait.
    pub(super) fn has_ended(&self) -> bool {
        let socket = match &self.stream.get_ref().socket {
            Socket::Tcp(stream) => SockRef::from(stream),
            Socket::Unix(stream) => SockRef::from(stream),
        };
        let mut byte = [MaybeUninit::<u8>::uninit()];
        let outcome = socket.recv_with_flags(&mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT);
        // Bytes would be no reply to the next command either.
        !matches!(outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Carries out one command.
    ///
    /// # Errors
    /// No reply arrives in time, or the reply is an error.
    pub(super) fn command(&mut self, words: &[&[u8]]) -> Result<Reply, RedisError> {
        self.command_within(words, REPLY_TIMEOUT)
    }

    /// Carries out one command whose reply must arrive within `timeout`.
    pub(super) fn command_within(
        &mut self,
        words: &[&[u8]],
        timeout: Duration,
    ) -> Result<Reply, RedisError> {
        let mut out = Vec::new();
        put_command(&mut out, words);
        self.send(&out, timeout)?;
        match self.receive()? {
            Reply::Error(text) => Err(RedisError::Refused(text)),
            reply => Ok(reply),
        }
    }

    /// Sends commands, whose replies must arrive within `timeout`.
    ///
    /// # Errors
    /// The connection fails.
    pub(super) fn send(&mut self, commands: &[u8], timeout: Duration) -> Result<(), RedisError> {
        let timed = self.stream.get_mut();
        timed.deadline = Instant::now() + timeout;
        Ok(timed.write_all(commands)?)
    }

    /// Returns the next reply, which may be an error of the server.
    ///
    /// # Errors
    /// The connection fails.
    pub(super) fn receive(&mut self) -> Result<Reply, RedisError> {
        Ok(resp::read(&mut self.stream, self.reply_bytes)?)
    }
}
