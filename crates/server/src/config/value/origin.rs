//! Origins, and the processes that connections are handed over to.

use super::listen::socket_path;
use pollux_http::host::Authority;
use pollux_tls::ServerName;
use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr};

/// An origin, and the path of the requests that it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteConfig {
    /// Requests for this path and for paths below it go to the origin, even if there are files with
    /// these paths. `None` stands for the requests that match no other route and no file.
    pub prefix: Option<String>,
    /// The origin.
    pub origin: Origin,
}

/// A process that takes over connections, and the path of the requests, as in [`RouteConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoverConfig {
    /// The same as [`RouteConfig::prefix`].
    pub prefix: Option<String>,
    /// The address at which the process listens: a UNIX socket of type SOCK_SEQPACKET.
    pub path: PathBuf,
}

/// A server for requests that this one does not answer itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    Tcp {
        /// A host name or an IP address; an IPv6 address has no brackets.
        host: String,
        /// The port.
        port: u16,
        /// Whether the scheme is `https`. The host is then the name that the certificate must have.
        is_tls: bool,
    },
    /// `unix:PATH`.
    Unix(PathBuf),
}

/// The `Host` field that an origin receives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostPolicy {
    /// The value that the client sent.
    #[default]
    Client,
    /// The authority of the origin's URL.
    Origin,
    /// This value.
    Named(String),
}

/// How `Forwarded` (RFC 7239), `X-Forwarded-*` and `X-Real-IP` are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedPolicy {
    /// The fields of the request are replaced by those of this server.
    #[default]
    Replace,
    /// This server's values are appended to those of the request: for a proxy behind trusted proxies.
    Append,
    /// The fields of the request are forwarded unchanged.
    Keep,
    /// The fields are removed, and origins get no information about the client.
    Remove,
}

/// The names for which [`is_proxy_name`] returns true.
pub(crate) const PROXY_NAMES: &str =
    "a name has A-Z, a-z, 0-9 and -._~!$&'*+^|%, and begins with one of A-Z or a-z";

/// Returns whether a proxy can have this name in the field `Via` (RFC 9110 §7.6.3).
pub(crate) fn is_proxy_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'*+^|%".contains(&byte);
    name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.bytes().all(is_token)
}

impl FromStr for RouteConfig {
    type Err = String;

    /// Parses `URL` or `/PREFIX=URL`.
    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Ok(Self { prefix: None, origin: text.parse()? });
        }
        let (prefix, url) = text.split_once('=').ok_or("expected /PREFIX=URL")?;
        Ok(Self { prefix: Some(read_prefix(prefix)?), origin: url.parse()? })
    }
}

/// Parses a prefix: `/api/` is the same as `/api`, which stands for the path and for all paths
/// below it.
fn read_prefix(prefix: &str) -> Result<String, String> {
    let is_path = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    if !prefix.bytes().all(is_path) || prefix.contains("//") || prefix.contains("/.") {
        return Err(format!("the prefix {prefix:?} has other than letters, digits and /-._~"));
    }
    Ok(prefix.trim_end_matches('/').into())
}

impl FromStr for HandoverConfig {
    type Err = String;

    /// Parses `unix:PATH` or `/PREFIX=unix:PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        const WANTED: &str = "expected unix:PATH or /PREFIX=unix:PATH: only to a process on this host can \
                              an open connection be handed over";
        let (prefix, rest) = match text.split_once('=') {
            Some((prefix, rest)) if text.starts_with('/') => (Some(read_prefix(prefix)?), rest),
            _ => (None, text),
        };
        match rest.strip_prefix("unix:") {
            Some(path) => Ok(Self { prefix, path: socket_path(path)? }),
            None => Err(WANTED.into()),
        }
    }
}

impl FromStr for Origin {
    type Err = String;

    /// Parses `http://HOST[:PORT]`, `https://HOST[:PORT]` or `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return socket_path(path).map(Self::Unix);
        }
        let (is_tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => {
                return Err(format!(
                    "{text:?}: expected http://HOST:PORT, https://HOST:PORT or unix:PATH"
                ));
            }
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err("an origin's URL has no path: requests keep their own".into());
        }
        let parsed = Authority::parse(authority.as_bytes())
            .ok_or_else(|| format!("{authority:?} is no HOST:PORT"))?;
        let host = String::from_utf8_lossy(parsed.host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if is_tls && ServerName::try_from(&*host).is_err() {
            return Err(format!("{host:?} is no name that a certificate can have"));
        }
        match parsed.port.unwrap_or(usual_port(is_tls)) {
            0 => Err("port 0 is nobody's".into()),
            port => Ok(Self::Tcp { host, port, is_tls }),
        }
    }
}

impl Origin {
    /// Returns its `Host`: the authority of its URL, without the default port of the scheme (RFC
    /// 9110 §7.2).
    pub(crate) fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port, is_tls } => {
                let host = match host.parse::<IpAddr>() {
                    Ok(IpAddr::V6(address)) => format!("[{address}]"),
                    _ => host.clone(),
                };
                if *port == usual_port(*is_tls) { host } else { format!("{host}:{port}") }
            }
            Self::Unix(_) => "localhost".into(),
        }
    }

    /// Returns the name that its certificate must have, if the server uses TLS for it.
    pub(crate) fn tls_name(&self) -> Option<ServerName<'static>> {
        match self {
            Self::Tcp { host, is_tls: true, .. } => ServerName::try_from(host.clone()).ok(),
            Self::Tcp { is_tls: false, .. } | Self::Unix(_) => None,
        }
    }
}

/// Returns the default port of the scheme.
fn usual_port(is_tls: bool) -> u16 {
    if is_tls { 443 } else { 80 }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { is_tls, .. } => {
                write!(f, "http{}://{}", if *is_tls { "s" } else { "" }, self.authority())
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl fmt::Display for RouteConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(prefix) = &self.prefix {
            write!(f, "{}=", if prefix.is_empty() { "/" } else { prefix })?;
        }
        self.origin.fmt(f)
    }
}

impl FromStr for HostPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "client" => Self::Client,
            "origin" => Self::Origin,
            name => Self::Named(name.into()),
        })
    }
}

impl fmt::Display for HostPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Origin => "origin",
            Self::Named(name) => name,
        })
    }
}

impl fmt::Display for ForwardedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replace => "replace",
            Self::Append => "append",
            Self::Keep => "keep",
            Self::Remove => "remove",
        })
    }
}

impl FromStr for ForwardedPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "replace" => Ok(Self::Replace),
            "append" => Ok(Self::Append),
            "keep" => Ok(Self::Keep),
            "remove" => Ok(Self::Remove),
            _ => Err("expected replace, append, keep or remove".into()),
        }
    }
}
