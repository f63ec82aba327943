//! A client of a server's control socket.

use crate::{message::say, print::has_reader, usage::UsageError};
use anyhow::Context;
use pollux_server::{
    admin::{ControlEvent, ControlRequest, ErrorKind},
    config::SOCKET_PATH_BYTES,
};
use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// The time for which a server may be silent; it may have to search its whole cache.
const PATIENCE: Duration = Duration::from_secs(120);
/// The maximum size of a line in bytes. A response has at most 64 KiB of fields, and JSON needs at
/// most six bytes for each byte.
const LINE_MAX: u64 = 1 << 20;
/// The exit status if no complete answer comes from the server.
const NO_ANSWER: u8 = 3;

/// The reason why there is no answer, or only a part of one.
pub(crate) enum ControlError {
    /// No server listens at the socket.
    Absent(PathBuf, io::Error),
    /// The connection failed, or the server sent an invalid reply.
    Broken(String),
    /// The server refuses the request.
    Rejected(ErrorKind, String),
    /// The answer cannot be written to standard output.
    Output(io::Error),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(path, error) => {
                let why = match error.kind() {
                    io::ErrorKind::NotFound => "there is no such socket",
                    io::ErrorKind::ConnectionRefused => "no server listens there any more",
                    io::ErrorKind::PermissionDenied => {
                        "permission denied: only the user that started the server may open it"
                    }
                    _ => return write!(f, "--control {}: {error}", path.display()),
                };
                let remedy = "`pollux serve --control PATH` makes one";
                write!(f, "--control {}: {why} ({remedy})", path.display())
            }
            Self::Broken(why) => write!(f, "the server's answer is not whole: {why}"),
            Self::Rejected(_, message) => f.write_str(message),
            Self::Output(error) => write!(f, "standard output: {error}"),
        }
    }
}

/// Returns the path of `--control`. The parser cannot require a flag that may be given before or after the name of a
/// subcommand.
///
/// # Errors
/// It is missing.
pub(crate) fn path_of(control: Option<PathBuf>) -> Result<PathBuf, UsageError> {
    let missing = "--control PATH is missing: name the server's control socket";
    control.ok_or_else(|| UsageError::new(missing))
}

/// Returns the exit status of a command whose exchange with the server has this outcome.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn exit_code(outcome: Result<(), ControlError>) -> anyhow::Result<ExitCode> {
    match outcome {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(ControlError::Output(error)) => {
            has_reader(Err(error)).context("standard output")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            say(format_args!("pollux: {error}"));
            Ok(ExitCode::from(NO_ANSWER))
        }
    }
}

/// Connects to a UNIX socket. The standard library's message for a path that is too long names a constant of C.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => io::Error::new(
            error.kind(),
            format!("the path of a socket has at most {SOCKET_PATH_BYTES} bytes"),
        ),
        _ => error,
    })
}

/// A connection to a server.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    pub(crate) fn connect(path: &Path) -> Result<Self, ControlError> {
        let open = || {
            let stream = connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let stream = open().map_err(|error| ControlError::Absent(path.into(), error))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub(crate) fn send(&mut self, request: &ControlRequest) -> Result<(), ControlError> {
        let mut line = serde_json::to_vec(request).map_err(|error| broken(&error))?;
        line.push(b'\n');
        // A server that refuses a client sends an error and closes the connection without reading.
        // The error can still be read.
        let _ = self.stream.get_mut().write_all(&line);
        Ok(())
    }

    /// Receives the next event, with its line.
    pub(crate) fn event(&mut self) -> Result<(String, ControlEvent), ControlError> {
        let mut line = String::new();
        let mut limited = self.stream.by_ref().take(LINE_MAX);
        limited.read_line(&mut line).map_err(|error| broken(&error))?;
        if !line.ends_with('\n') {
            return Err(ControlError::Broken("it ends too early".into()));
        }
        let event = serde_json::from_str(&line).map_err(|error| broken(&error))?;
        Ok((line, event))
    }
}

fn broken(error: &dyn fmt::Display) -> ControlError {
    ControlError::Broken(error.to_string())
}
