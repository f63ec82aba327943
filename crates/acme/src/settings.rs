//! The settings of orders: names, authority, and the times between attempts.

use instant_acme::LetsEncrypt;
use rustls::pki_types::{DnsName, ServerName};
use std::{fmt, path::PathBuf, str::FromStr, time::Duration};
use url::Url;

/// The most names of one server: orders run one after another.
pub const NAMES_MAX: usize = 100;
/// The longest e-mail address (RFC 5321 §4.5.3.1.3).
pub const CONTACT_BYTES_MAX: usize = 254;

/// The settings of orders: names, authority, and the times between attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Host names in lower case; each gets a certificate of its own, so that a failing name delays no
    /// other name.
    pub names: Vec<String>,
    /// The URL of the authority's directory, as [`directory_url`] gives it.
    pub directory: String,
    /// The address to which the authority may send mail.
    pub email: Option<String>,
    /// A PEM file with the root that the directory's own certificate must have; `None` is the system's roots.
    pub root: Option<PathBuf>,
    /// The directory in which account and certificates are stored.
    pub state_dir: PathBuf,
    /// The challenges that the server can answer, the preferred one first. An attempt that fails is
    /// followed by one with the next challenge.
    pub challenges: Vec<Challenge>,
    /// The times between attempts.
    pub timing: Timing,
}

/// The times between the thread's actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The delay after the first failure; each further one doubles it.
    pub retry_first: Duration,
    /// The longest delay after a failure.
    pub retry_max: Duration,
    /// The least time between two successful orders for one name: with a wrong clock each new certificate
    /// would seem to have expired.
    pub orders_apart: Duration,
    /// The interval between two attempts to take a lock that another process holds.
    pub lock_retry: Duration,
    /// The shortest and the longest time between two queries for one certificate's renewal window. Within these bounds
    /// the authority chooses the time (RFC 9773 §4.3).
    pub window_queries: (Duration, Duration),
    /// The time from a query that failed to the next one.
    pub window_retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            retry_first: Duration::from_secs(60),
            retry_max: Duration::from_secs(6 * 3600),
            orders_apart: Duration::from_secs(3600),
            lock_retry: Duration::from_secs(5),
            window_queries: (Duration::from_secs(60), Duration::from_secs(86_400)),
            window_retry: Duration::from_secs(6 * 3600),
        }
    }
}

/// The ways in which the authority checks that a name is this server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A TLS handshake at port 443 (RFC 8737).
    TlsAlpn01,
    /// A request over plain HTTP at port 80 (RFC 8555 §8.3).
    Http01,
}

impl FromStr for Challenge {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tls-alpn-01" => Ok(Self::TlsAlpn01),
            "http-01" => Ok(Self::Http01),
            _ => Err("expected tls-alpn-01 or http-01".into()),
        }
    }
}

impl fmt::Display for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Http01 => "http-01",
        })
    }
}

/// The reason why a setting cannot be used, as a sentence with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

/// Whether a certificate for this name can be ordered. Returns it in lower case.
///
/// # Errors
/// The name is no host name, or no challenge of this crate can prove it.
pub fn check_name(name: &str) -> Result<String, SettingsError> {
    let fail = |reason: &str| Err(SettingsError(format!("{name:?}: {reason}")));
    if name.starts_with("*.") {
        return fail(
            "a certificate for a wildcard needs a DNS challenge, which is not supported: list the names, or use \
             --tls-cert with a certificate from another ACME client",
        );
    }
    match ServerName::try_from(name) {
        Ok(ServerName::DnsName(_)) if !name.contains('.') => {
            fail("an authority certifies full names only, such as www.example.org")
        }
        Ok(ServerName::DnsName(_)) if DnsName::try_from(name).is_ok() && !name.ends_with('.') => {
            Ok(name.to_ascii_lowercase())
        }
        Ok(ServerName::IpAddress(_)) => {
            fail("an address gets no certificate: expected a host name")
        }
        _ => fail("no host name; a name in another script is written in its xn-- form"),
    }
}

/// The URL of a directory: an https URL, or `letsencrypt` and `letsencrypt-staging` for the two directories of
/// Let's Encrypt.
///
/// # Errors
/// The text is neither.
pub fn directory_url(text: &str) -> Result<String, SettingsError> {
    match text {
        "letsencrypt" => return Ok(LetsEncrypt::Production.url().into()),
        "letsencrypt-staging" => return Ok(LetsEncrypt::Staging.url().into()),
        _ => {}
    }
    let is_directory =
        Url::parse(text).is_ok_and(|url| url.scheme() == "https" && url.host().is_some());
    if is_directory {
        return Ok(text.into());
    }
    Err(SettingsError(format!(
        "{text:?}: expected letsencrypt, letsencrypt-staging or the https URL of an ACME directory"
    )))
}

/// Whether this can be an e-mail address; the authority checks the rest.
///
/// # Errors
/// The text cannot be an e-mail address.
pub fn check_email(text: &str) -> Result<(), SettingsError> {
    let is_address = text
        .split_once('@')
        .is_some_and(|(user, host)| !user.is_empty() && host.contains('.') && !host.contains('@'));
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b",?&:".contains(&byte));
    if is_address && is_plain && text.len() <= CONTACT_BYTES_MAX {
        return Ok(());
    }
    Err(SettingsError(format!("{text:?}: expected an e-mail address, such as admin@example.org")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_host_names() {
        assert_eq!(check_name("WWW.Example.org").unwrap(), "www.example.org");
        for (name, part) in [
            ("*.example.org", "DNS challenge"),
            ("localhost", "full names"),
            ("127.0.0.1", "address"),
            ("::1", "address"),
            ("a b.example", "no host name"),
            ("../x.example", "no host name"),
            ("example.org.", "no host name"),
            ("", "no host name"),
        ] {
            let message = check_name(name).unwrap_err().to_string();
            assert!(message.contains(part), "{name}: {message}");
        }
    }

    #[test]
    fn directories_are_https_urls_or_known() {
        assert!(directory_url("letsencrypt").unwrap().starts_with("https://"));
        assert_ne!(directory_url("letsencrypt"), directory_url("letsencrypt-staging"));
        directory_url("https://127.0.0.1:14000/dir").unwrap();
        for text in ["", "lets-encrypt", "http://ca.example/dir", "ca.example/dir", "https://"] {
            assert!(directory_url(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn addresses_are_checked_roughly() {
        check_email("admin@example.org").unwrap();
        for text in ["", "admin", "@example.org", "a@b", "a@b.c,d@e.f", "a b@c.d", "a@b@c.d"] {
            assert!(check_email(text).is_err(), "{text:?}");
        }
    }
}
