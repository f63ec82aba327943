//! Where the remarks of a guestbook are stored.

use pollux_guestbook::redis::Url;
use std::{num::NonZeroUsize, path::PathBuf, str::FromStr};

/// Where the remarks of a guestbook are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// In a file of this host: `file:PATH`.
    File(PathBuf),
    /// On a Redis server: `redis://…` or `unix:///…`.
    Redis(Url),
}

/// How connections to a Redis server are managed. ZeroHTTPd's iterative and preforked servers keep
/// one; its other servers open one for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreConnections {
    /// One for each request; it is closed after the request.
    PerRequest,
    /// This number for each worker. The number of concurrent requests on one connection has no
    /// limit.
    Pooled(NonZeroUsize),
}

/// The maximum number of connections that one worker keeps.
const POOL_MAX: usize = 1024;

impl FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("file:") {
            Some("") => Err("file: names no file: file:PATH".to_owned()),
            Some(path) => Ok(Self::File(path.into())),
            None => {
                text.parse().map(Self::Redis).map_err(|error: pollux_guestbook::redis::UrlError| {
                    format!("{error}; a file of this host is file:PATH")
                })
            }
        }
    }
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Redis(url) => write!(f, "{url}"),
        }
    }
}

impl Default for StoreConnections {
    fn default() -> Self {
        Self::Pooled(const { NonZeroUsize::new(8).expect("8 is not 0") })
    }
}

impl FromStr for StoreConnections {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pooled =
            |count: usize| NonZeroUsize::new(count).filter(|count| count.get() <= POOL_MAX);
        let read = match text.split_once(':') {
            None if text == "per-request" => Some(Self::PerRequest),
            None if text == "one" => pooled(1).map(Self::Pooled),
            Some(("pooled", count)) => count.parse().ok().and_then(pooled).map(Self::Pooled),
            _ => None,
        };
        read.ok_or_else(|| {
            format!("expected per-request, one, or pooled:N with N from 1 to {POOL_MAX}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_and_policies_are_read() {
        assert_eq!("file:/a".parse(), Ok(Store::File("/a".into())));
        assert!(matches!("redis://a".parse(), Ok(Store::Redis(_))));
        assert!("file:".parse::<Store>().is_err());
        assert!("/a".parse::<Store>().unwrap_err().contains("file:PATH"));
        assert_eq!("per-request".parse(), Ok(StoreConnections::PerRequest));
        assert_eq!("pooled:8".parse(), Ok(StoreConnections::default()));
        for wrong in ["", "pooled", "pooled:0", "pooled:1025", "one:1", "many"] {
            assert!(wrong.parse::<StoreConnections>().is_err(), "{wrong}");
        }
    }
}
