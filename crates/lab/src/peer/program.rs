//! The other servers: their names, their programs and the versions of these.

use anyhow::Context as _;
use pollux_sys::find_program;
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// A server other than Pollux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// nginx; as a front end with proxy_cache.
    Nginx,
    /// h2o, for files.
    H2o,
    /// lighttpd, for files.
    Lighttpd,
    /// Apache with a process for each connection (mpm_prefork).
    ApachePrefork,
    /// Apache with a thread for each connection (mpm_worker).
    ApacheWorker,
    /// Apache with a thread for each request (mpm_event); as a front end with mod_cache.
    ApacheEvent,
    /// Varnish, a front end.
    Varnish,
    /// HAProxy with its cache, a front end.
    Haproxy,
    /// Squid, a front end.
    Squid,
    /// Apache Traffic Server, a front end.
    TrafficServer,
}

impl Peer {
    /// Every peer.
    pub const ALL: [Self; 10] = [
        Self::Nginx,
        Self::H2o,
        Self::Lighttpd,
        Self::ApachePrefork,
        Self::ApacheWorker,
        Self::ApacheEvent,
        Self::Varnish,
        Self::Haproxy,
        Self::Squid,
        Self::TrafficServer,
    ];

    /// Returns the name in experiments, tables and raw data.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::H2o => "h2o",
            Self::Lighttpd => "lighttpd",
            Self::ApachePrefork => "apache-prefork",
            Self::ApacheWorker => "apache-worker",
            Self::ApacheEvent => "apache-event",
            Self::Varnish => "varnish",
            Self::Haproxy => "haproxy",
            Self::Squid => "squid",
            Self::TrafficServer => "traffic-server",
        }
    }

    /// Whether it can be configured for HTTPS.
    pub fn has_tls(self) -> bool {
        matches!(self, Self::Nginx | Self::H2o | Self::Haproxy)
    }

    /// Returns the name of the peer's program.
    fn program_name(self) -> &'static str {
        match self {
            Self::ApachePrefork | Self::ApacheWorker | Self::ApacheEvent => "apache2",
            Self::Varnish => "varnishd",
            Self::TrafficServer => "traffic_server",
            other => other.name(),
        }
    }

    /// Returns the path of the peer's program.
    ///
    /// # Errors
    /// When it is not installed; the message says how to install it.
    pub fn program(self) -> anyhow::Result<PathBuf> {
        let name = self.program_name();
        find_program(name)
            .with_context(|| format!("{name} is not installed: run `scripts/setup peers`"))
    }

    /// Returns the first line that the program prints about its version.
    pub fn version(self) -> String {
        let flag = match self {
            Self::Varnish => "-V",
            Self::TrafficServer => "--version",
            _ => "-v",
        };
        self.program().map_or_else(|_| NOT_FOUND.into(), |program| version_line(&program, flag))
    }
}

/// The text in place of the version of a program that cannot be started.
const NOT_FOUND: &str = "not found";

/// Returns the first line that `program flag` prints, on stdout or stderr.
pub fn version_line(program: &Path, flag: &str) -> String {
    let Ok(output) = Command::new(program).arg(flag).output() else { return NOT_FOUND.into() };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or("").trim().to_owned()
}
