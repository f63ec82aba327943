//! The targets and the formats of log lines.

use super::listen::socket_path;
use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

/// The maximum number of fields in a line of JSON.
const FIELDS_MAX: usize = 64;
/// Fields of a request that are never logged, because a reader of the log could log in with them.
const SECRET: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "x-api-key"];
/// The socket of the system logger (syslog(3)).
const SYSLOG: &str = "/dev/log";
/// The socket of journald's own protocol.
const JOURNALD: &str = "/run/systemd/journal/socket";

/// The target of log lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// A file, appended to.
    File(PathBuf),
    /// A datagram socket that accepts syslog messages.
    Syslog(PathBuf),
    /// A datagram socket that accepts journald entries.
    Journald(PathBuf),
}

impl LogTarget {
    /// Returns whether a text is not the name of a file.
    pub(crate) fn is_special(text: &str) -> bool {
        !matches!(text.parse(), Ok(Self::File(_)))
    }
}

impl FromStr for LogTarget {
    type Err = String;

    /// Parses `-`, `syslog[:PATH]`, `journald[:PATH]` or the path of a file.
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.split_once(':') {
            _ if text == "-" => Self::Stdout,
            _ if text == "syslog" => Self::Syslog(SYSLOG.into()),
            _ if text == "journald" => Self::Journald(JOURNALD.into()),
            Some(("syslog", path)) => Self::Syslog(socket_path(path)?),
            Some(("journald", path)) => Self::Journald(socket_path(path)?),
            _ => Self::File(text.into()),
        })
    }
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("-"),
            Self::File(path) => path.display().fmt(f),
            Self::Syslog(path) => write!(f, "syslog:{}", path.display()),
            Self::Journald(path) => write!(f, "journald:{}", path.display()),
        }
    }
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Common Log Format.
    #[default]
    Clf,
    /// Common Log Format, then Referer and User-Agent.
    Combined,
    /// A JSON object.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "clf" => Ok(Self::Clf),
            "combined" => Ok(Self::Combined),
            "json" => Ok(Self::Json),
            _ => Err("expected clf, combined or json".into()),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clf => "clf",
            Self::Combined => "combined",
            Self::Json => "json",
        })
    }
}

/// A member of a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogField {
    /// The time at which the line was written, in UTC.
    Time,
    /// The address of the client.
    Client,
    /// The name of the user whose password the request contained.
    User,
    /// The host and port that the request names.
    Host,
    /// The method.
    Method,
    /// The target: path and query.
    Target,
    /// `HTTP/1.1` or `HTTP/1.0`.
    Protocol,
    /// The status of the response.
    Status,
    /// The number of bytes of content that were sent.
    Bytes,
    /// Milliseconds from the head of the request to the end of the response.
    DurationMs,
    /// `Referer`.
    Referer,
    /// `User-Agent`.
    UserAgent,
    /// `X-Request-Id`, as it is sent to origins.
    RequestId,
    /// `traceparent`.
    Traceparent,
    /// Any other field of the request; its name is in lower case.
    Header(String),
}

/// The fields with a fixed name.
const NAMED: [(&str, LogField); 14] = [
    ("time", LogField::Time),
    ("client", LogField::Client),
    ("user", LogField::User),
    ("host", LogField::Host),
    ("method", LogField::Method),
    ("target", LogField::Target),
    ("protocol", LogField::Protocol),
    ("status", LogField::Status),
    ("bytes", LogField::Bytes),
    ("duration_ms", LogField::DurationMs),
    ("referer", LogField::Referer),
    ("user_agent", LogField::UserAgent),
    ("request_id", LogField::RequestId),
    ("traceparent", LogField::Traceparent),
];

impl LogField {
    /// Returns the default fields of a line.
    pub fn usual() -> Vec<Self> {
        let all = NAMED.into_iter().map(|(_, field)| field);
        all.filter(|field| *field != Self::Traceparent).collect()
    }

    /// Returns the name of the request's field that this field shows, if it shows one.
    pub(crate) fn header(&self) -> Option<&str> {
        match self {
            Self::Referer => Some("referer"),
            Self::UserAgent => Some("user-agent"),
            Self::Traceparent => Some("traceparent"),
            Self::Header(name) => Some(name),
            _ => None,
        }
    }
}

impl FromStr for LogField {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((_, field)) = NAMED.into_iter().find(|(name, _)| *name == text) {
            return Ok(field);
        }
        let Some(name) = text.strip_prefix("header:") else {
            let names: Vec<_> = NAMED.iter().map(|(name, _)| *name).collect();
            return Err(format!("expected {} or header:NAME", names.join(", ")));
        };
        let name = name.to_ascii_lowercase();
        if SECRET.contains(&&*name) {
            return Err(format!("{name} is a secret of the client and never goes to a log"));
        }
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        {
            return Err(format!("{name:?} is no field name"));
        }
        Ok(Self::Header(name))
    }
}

impl fmt::Display for LogField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, NAMED.iter().find(|(_, field)| field == self)) {
            (Self::Header(name), _) => write!(f, "header:{name}"),
            (_, Some((name, _))) => f.write_str(name),
            (_, None) => Ok(()),
        }
    }
}

/// The log of slow requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowLog {
    /// The target of the lines.
    pub target: LogTarget,
    /// A request that takes this long or longer is slow.
    pub threshold: Duration,
}

/// The logs of requests: targets, format and fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogConfig {
    /// The target for the lines of all requests.
    pub access: Option<LogTarget>,
    /// The log for slow requests.
    pub slow: Option<SlowLog>,
    /// The format of the lines.
    pub format: LogFormat,
    /// The members of a line of JSON.
    pub fields: Vec<LogField>,
}

impl LogConfig {
    /// Returns a configuration that logs all requests in Common Log Format.
    pub fn clf(target: LogTarget) -> Self {
        Self { access: Some(target), ..Self::default() }
    }

    /// Returns whether there is no log.
    pub(crate) fn is_off(&self) -> bool {
        self.access.is_none() && self.slow.is_none()
    }

    /// Returns whether a line contains more of a request than its first line.
    pub(crate) fn needs_head(&self) -> bool {
        !self.is_off() && self.format != LogFormat::Clf
    }

    /// Returns the targets.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &LogTarget> {
        self.access.iter().chain(self.slow.iter().map(|slow| &slow.target))
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// A line of JSON would have no member or too many, or both logs have the same target.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.format != LogFormat::Json || (1..=FIELDS_MAX).contains(&self.fields.len()),
            "--log-fields: a line of JSON has 1 to {FIELDS_MAX} fields"
        );
        let targets: Vec<_> = self.targets().collect();
        anyhow::ensure!(
            targets.len() < 2 || targets[0] != targets[1],
            "--access-log and --slow-log name the same target: name another one for the slow log"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_and_fields_are_read_and_shown() {
        for (text, shown) in [
            ("-", "-"),
            ("a/b.log", "a/b.log"),
            ("./syslog", "./syslog"),
            ("syslog", "syslog:/dev/log"),
            ("syslog:/run/s", "syslog:/run/s"),
            ("journald", "journald:/run/systemd/journal/socket"),
        ] {
            let target: LogTarget = text.parse().unwrap();
            assert_eq!(target.to_string(), shown);
            assert_eq!(LogTarget::is_special(text), !text.contains(['/', '.']) || text.len() == 13);
        }
        for text in ["time", "duration_ms", "user_agent", "header:accept-language"] {
            assert_eq!(text.parse::<LogField>().unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("agent", "user_agent"),
            ("header:Cookie", "secret"),
            ("header:", "no field name"),
            ("header:a b", "no field name"),
        ] {
            let error = text.parse::<LogField>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn the_two_logs_have_different_targets() {
        let slow = |target| Some(SlowLog { target, threshold: Duration::from_secs(1) });
        let file = || LogTarget::File("a".into());
        let mut config = LogConfig { slow: slow(file()), ..LogConfig::clf(LogTarget::Stdout) };
        config.check().unwrap();
        config.access = Some(file());
        assert!(config.check().unwrap_err().to_string().contains("same target"));
    }
}
