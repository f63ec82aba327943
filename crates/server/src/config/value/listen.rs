//! The addresses that a server listens on.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

/// The maximum length of the path of a UNIX socket in bytes (unix(7)).
pub const SOCKET_PATH_BYTES: usize = 107;

/// Parses the path of a UNIX socket. The kernel refuses a longer path at each connect(2), bind(2) or sendto(2).
pub(super) fn socket_path(path: &str) -> Result<PathBuf, String> {
    if path.is_empty() {
        Err("expected a path after the colon".into())
    } else if path.contains('\0') {
        Err("the path of a socket has no NUL".into())
    } else if path.len() > SOCKET_PATH_BYTES {
        Err(format!("the path of a socket has at most {SOCKET_PATH_BYTES} bytes"))
    } else {
        Ok(path.into())
    }
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP. Port 0 lets the kernel choose.
    Tcp(SocketAddr),
    /// A UNIX stream socket at a path. The path is removed at the end.
    Unix(PathBuf),
    /// Sockets that the service manager has opened and passed under this name (LISTEN_FDS and
    /// LISTEN_FDNAMES, sd_listen_fds(3)); without a name, all sockets that were passed. All workers
    /// share them.
    Passed(Option<String>),
}

impl FromStr for Listen {
    type Err = String;

    /// Parses `ADDRESS:PORT`, `[ADDRESS]:PORT`, `:PORT` (all addresses), `NAME:PORT`, `unix:PATH`,
    /// `systemd` or `systemd:NAME`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("unix: expected a path after it".into())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        if let Some(name) = text.strip_prefix("systemd") {
            match name.strip_prefix(':') {
                _ if name.is_empty() => return Ok(Self::Passed(None)),
                Some("") => return Err("systemd: expected the name of a socket after it".into()),
                Some(name) => return Ok(Self::Passed(Some(name.into()))),
                None => {}
            }
        }
        let full = if text.starts_with(':') { format!("[::]{text}") } else { text.to_owned() };
        if let Ok(address) = full.parse() {
            return Ok(Self::Tcp(address));
        }
        let wanted = "wanted ADDRESS:PORT, [IPV6]:PORT, :PORT, unix:PATH or systemd:NAME";
        let (name, port) = full.rsplit_once(':').unwrap_or((&full, ""));
        let port = port.parse().map_err(|_| format!("invalid socket address; {wanted}"))?;
        let found =
            pollux_sys::resolve(name, port).map_err(|error| format!("{error}; {wanted}"))?;
        found.first().copied().map(Self::Tcp).ok_or_else(|| format!("{text:?} has no address"))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Passed(Some(name)) => write!(f, "systemd:{name}"),
            Self::Passed(None) => f.write_str("systemd"),
        }
    }
}
