//! Other servers, configured as their documentation recommends: one worker, no access log, and connections
//! that persist for as many requests as the server allows.
//!
//! All these configurations are here, so that the laboratory's experiments and the bench (`pollux-bench`)
//! use the same ones. A peer that is not installed is reported as missing, and no other server replaces it.

mod apache;
mod h2o;
mod haproxy;
mod lighttpd;
mod nginx;
mod port;
mod squid;
#[cfg(test)]
mod tests;
mod traffic_server;
mod varnish;

pub use port::Port;

use crate::{archive::write_into, experiment::Encryption};
use anyhow::{Context as _, bail};
use pollux_sys::find_program;
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
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

/// The role of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The peer serves the files of [`PeerSetup::documents`].
    Files,
    /// The peer caches the responses of an origin, to which it has persistent connections.
    Front {
        /// The origin.
        origin: SocketAddr,
    },
}

/// The files and directories of a peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerSetup<'a> {
    /// The document root.
    pub documents: &'a Path,
    /// A directory for this peer alone, for configuration, logs and process ids.
    pub scratch: &'a Path,
    /// Certificate and encryption for HTTPS; if absent, the peer serves plain HTTP.
    pub tls: Option<PeerTls<'a>>,
}

/// The settings of HTTPS.
#[derive(Clone, Copy, Debug)]
pub struct PeerTls<'a> {
    /// The certificate and its key, in one file or in two (PEM).
    pub files: &'a TlsFiles,
    /// Whether the server or the kernel encrypts.
    pub encryption: Encryption,
}

/// A self-signed certificate in files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
    /// The certificate, followed by the key.
    pub both: PathBuf,
}

impl TlsFiles {
    /// Creates a certificate for the loopback address, in files below `directory`.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn write(directory: &Path) -> anyhow::Result<Self> {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let (certificate, key) = pollux_tls::self_signed_pem(names)?;
        Ok(Self {
            certificate: write_into(directory, "tls.pem", &certificate)?,
            key: write_into(directory, "tls.key", &key)?,
            both: write_into(directory, "tls.both", certificate + &key)?,
        })
    }
}

/// A program with its arguments.
type CommandLine = Vec<OsString>;

/// A peer that is ready to be started: its configuration files exist.
#[derive(Debug)]
pub struct SetUp {
    /// The program with its arguments. It stays in the foreground and ends with its workers on SIGTERM.
    pub program: CommandLine,
    /// The port on which it will listen, reserved until then.
    pub port: Port,
    /// Whether it uses HTTPS on this port.
    pub is_tls: bool,
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

    /// Writes the peer's configuration.
    ///
    /// # Errors
    /// When it is not installed, does not support the role, or its files cannot be written.
    pub fn set_up(self, role: Role, setup: PeerSetup<'_>) -> anyhow::Result<SetUp> {
        let executable = self.program()?;
        let can_have_tls = self.has_tls() && role == Role::Files;
        if setup.tls.is_some() && !can_have_tls {
            bail!("{} is not set up for https in this role here", self.name());
        }
        let port = Port::reserve()?;
        let input = ConfigInput { peer: self, executable, address: port.address(), role, setup };
        let program = match self {
            Self::Nginx => nginx::set_up(&input),
            Self::H2o => h2o::set_up(&input),
            Self::Lighttpd => lighttpd::set_up(&input),
            Self::ApachePrefork | Self::ApacheWorker | Self::ApacheEvent => apache::set_up(&input),
            Self::Varnish => varnish::set_up(&input),
            Self::Haproxy => haproxy::set_up(&input),
            Self::Squid => squid::set_up(&input),
            Self::TrafficServer => traffic_server::set_up(&input),
        }?;
        Ok(SetUp { program, port, is_tls: setup.tls.is_some() })
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

/// The input for a peer's configuration.
struct ConfigInput<'a> {
    peer: Peer,
    executable: PathBuf,
    address: SocketAddr,
    role: Role,
    setup: PeerSetup<'a>,
}

impl ConfigInput<'_> {
    fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        write_into(self.setup.scratch, name, text)
    }

    /// Creates a directory below the scratch directory.
    fn directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.setup.scratch.join(name);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Creates a directory below the scratch directory to which any user may write.
    fn shared_directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.directory(name)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        Ok(path)
    }

    /// Gives other users access to the temporary directories: if the user is root, the workers run as
    /// another user.
    fn open_to_workers(&self) -> anyhow::Result<()> {
        let temporary = std::env::temp_dir();
        for directory in [self.setup.documents, self.setup.scratch] {
            for part in directory.ancestors().take_while(|part| *part != temporary) {
                if !part.starts_with(&temporary) {
                    break;
                }
                let mode = fs::metadata(part)?.permissions().mode() | 0o055;
                fs::set_permissions(part, fs::Permissions::from_mode(mode))
                    .with_context(|| part.display().to_string())?;
            }
        }
        Ok(())
    }

    fn origin(&self) -> anyhow::Result<SocketAddr> {
        match self.role {
            Role::Front { origin } => Ok(origin),
            Role::Files => bail!("{} serves no files here", self.peer.name()),
        }
    }

    fn only_files(&self) -> anyhow::Result<()> {
        match self.role {
            Role::Files => Ok(()),
            Role::Front { .. } => bail!("{} has no cache for an origin", self.peer.name()),
        }
    }

    /// Returns the command line with these arguments.
    fn command_line<const N: usize>(&self, arguments: [&str; N]) -> CommandLine {
        let arguments = arguments.iter().map(OsString::from);
        std::iter::once(self.executable.clone().into()).chain(arguments).collect()
    }
}
