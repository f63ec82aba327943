//! Redis URLs: the address of a server, and the login.

use std::{borrow::Cow, path::PathBuf, str::FromStr};

/// The default port of Redis.
const PORT: u16 = 6379;

/// The maximum length of a socket's path (`sun_path` of unix(7) without its NUL).
const UNIX_PATH_MAX: usize = 107;

/// A Redis URL: `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`, or
/// `unix:///PATH[?db=DB&user=USER&password=PASSWORD]` (also written `redis+unix://`).
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// The address of the server.
    pub address: Address,
    /// The ACL user; `None` means `default`.
    pub user: Option<String>,
    /// The password. A user without one logs in with an empty password, as the ACL rule `nopass`
    /// expects.
    pub password: Option<String>,
    /// The number of the database.
    pub database: u32,
}

/// The address of a Redis server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host name or address, and a port.
    Tcp(String, u16),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// The reason why a text is not a valid Redis URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// The scheme is missing or not supported.
    #[error("a Redis URL begins with redis:// or unix:// (redis://HOST:PORT/DB, unix:///PATH)")]
    Scheme,
    /// `rediss://` requires TLS.
    #[error("rediss:// requires TLS, which is not supported for stores; use redis:// or unix://")]
    Tls,
    /// The host or the path is missing.
    #[error("the Redis URL names no {0}")]
    Missing(&'static str),
    /// A part is invalid.
    #[error("the Redis URL has no valid {0}: {1}")]
    Invalid(&'static str, String),
    /// The user or the password is invalid. The error does not show it.
    #[error("the Redis URL has no valid {0}: / ? # @ and % in it are percent-encoded")]
    Login(&'static str),
}

impl std::fmt::Debug for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Url({self})")
    }
}

/// Without the login, for logs and messages.
impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.address {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "redis://[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "redis://{host}:{port}"),
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
        }?;
        match (&self.address, self.database) {
            (_, 0) => Ok(()),
            (Address::Tcp(..), database) => write!(f, "/{database}"),
            (Address::Unix(_), database) => write!(f, "?db={database}"),
        }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        match scheme {
            "redis" => tcp(rest),
            "unix" | "redis+unix" => unix(rest),
            "rediss" => Err(UrlError::Tls),
            _ => Err(UrlError::Scheme),
        }
    }
}

fn tcp(rest: &str) -> Result<Url, UrlError> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    // A slash before the `@` is an unencoded slash of the password. The error shows no part of the URL.
    if path.contains('@') {
        return Err(UrlError::Login("password"));
    }
    if authority.contains(['?', '#']) || path.contains(['?', '#', '/']) {
        return Err(UrlError::Invalid("database", path.to_owned()));
    }
    // The login ends at the last `@`, because a password may contain `@`.
    let (login, address) = match authority.rsplit_once('@') {
        Some((login, address)) => (Some(login), address),
        None => (None, authority),
    };
    let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
        Some((user, password)) => (login_part("user", user)?, login_part("password", password)?),
        None => (None, None),
    };
    let (host, port) = host_and_port(address)?;
    let database = if path.is_empty() { 0 } else { number(path)? };
    Ok(Url { address: Address::Tcp(host, port), user, password, database })
}

fn host_and_port(address: &str) -> Result<(String, u16), UrlError> {
    let (host, port) = match address.strip_prefix('[') {
        Some(v6) => {
            let (host, after) =
                v6.split_once(']').ok_or_else(|| UrlError::Invalid("host", address.to_owned()))?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(UrlError::Invalid("port", after.to_owned())),
            }
        }
        None => match address.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        },
    };
    if host.is_empty() {
        return Err(UrlError::Missing("host"));
    }
    let invalid = || UrlError::Invalid("port", port.unwrap_or_default().to_owned());
    let port = match port {
        None => PORT,
        Some(port) => port.parse().ok().filter(|&port| port != 0).ok_or_else(invalid)?,
    };
    Ok((host.to_owned(), port))
}

fn unix(rest: &str) -> Result<Url, UrlError> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err(UrlError::Missing("path"));
    }
    if !path.starts_with('/') {
        return Err(UrlError::Invalid("path", format!("{path} (write three slashes: unix:///…)")));
    }
    let path = percent_decoded(path).ok_or_else(|| UrlError::Invalid("path", path.to_owned()))?;
    if path.len() > UNIX_PATH_MAX {
        let why = format!("{path} is longer than {UNIX_PATH_MAX} bytes");
        return Err(UrlError::Invalid("path", why));
    }
    let mut url =
        Url { address: Address::Unix(path.into()), user: None, password: None, database: 0 };
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "db" => url.database = number(&value)?,
            "user" => url.user = Some(value.into_owned()),
            "password" => url.password = Some(value.into_owned()),
            _ => return Err(UrlError::Invalid("parameter", key.into_owned())),
        }
    }
    Ok(url)
}

fn number(text: &str) -> Result<u32, UrlError> {
    text.parse().map_err(|_| UrlError::Invalid("database", text.to_owned()))
}

/// Percent-decodes a part of the login; an empty text becomes `None`.
fn login_part(what: &'static str, text: &str) -> Result<Option<String>, UrlError> {
    let percent_decoded = percent_decoded(text).ok_or(UrlError::Login(what))?;
    Ok(Some(percent_decoded).filter(|text| !text.is_empty()))
}

/// Percent-decodes; `None` if the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn urls_as_redis_clients_accept_them() {
        let plain = url("redis://127.0.0.1");
        assert_eq!(plain.address, Address::Tcp("127.0.0.1".into(), 6379));
        assert_eq!((plain.user, plain.password, plain.database), (None, None, 0));
        let whole = url("redis://ada:p%40ss:w@db.example:7000/3");
        assert_eq!(whole.address, Address::Tcp("db.example".into(), 7000));
        assert_eq!(whole.user.as_deref(), Some("ada"));
        assert_eq!(whole.password.as_deref(), Some("p@ss:w"));
        assert_eq!(whole.database, 3);
        assert_eq!(url("redis://:secret@[::1]:1/").password.as_deref(), Some("secret"));
        assert_eq!(url("redis://[::1]").address, Address::Tcp("::1".into(), 6379));
        let unix = url("unix:///run/redis.sock?db=2&password=x%26y");
        assert_eq!(unix.address, Address::Unix("/run/redis.sock".into()));
        assert_eq!((unix.password.as_deref(), unix.database), (Some("x&y"), 2));
        assert_eq!(url("redis+unix:///a").address, Address::Unix("/a".into()));
    }

    #[test]
    fn invalid_urls_are_rejected() {
        let error = |text: &str| text.parse::<Url>().unwrap_err();
        assert_eq!(error("127.0.0.1:6379"), UrlError::Scheme);
        assert_eq!(error("http://a/"), UrlError::Scheme);
        assert_eq!(error("rediss://a/"), UrlError::Tls);
        assert_eq!(error("redis:///0"), UrlError::Missing("host"));
        assert_eq!(error("unix://"), UrlError::Missing("path"));
        assert!(matches!(error("unix://run/a"), UrlError::Invalid("path", _)));
        assert!(matches!(error("redis://a:0"), UrlError::Invalid("port", _)));
        assert!(matches!(error("redis://a:65536"), UrlError::Invalid("port", _)));
        assert!(matches!(error("redis://a/x"), UrlError::Invalid("database", _)));
        assert!(matches!(error("redis://a/1/2"), UrlError::Invalid("database", _)));
        assert!(matches!(error("unix:///a?port=1"), UrlError::Invalid("parameter", _)));
    }

    #[test]
    fn a_user_may_have_no_password() {
        for text in ["redis://ada@a", "redis://ada:@a", "unix:///a?user=ada"] {
            let url = url(text);
            assert_eq!((url.user.as_deref(), url.password), (Some("ada"), None), "{text}");
        }
    }

    #[test]
    fn a_too_long_socket_path_is_rejected() {
        let longest = format!("unix:///{}", "a".repeat(UNIX_PATH_MAX - 1));
        assert!(longest.parse::<Url>().is_ok());
        assert!(format!("{longest}a").parse::<Url>().is_err());
    }

    #[test]
    fn a_password_is_never_shown() {
        for text in ["redis://:secret%ff@a", "redis://ada:sec/ret@a", "redis://:secret/1@a/0"] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains("password") && !error.contains("ret"), "{text}: {error}");
        }
        let url = url("redis://ada:secret@a:1/2");
        assert_eq!(url.to_string(), "redis://a:1/2");
        assert!(!format!("{url:?}").contains("secret"));
    }
}
