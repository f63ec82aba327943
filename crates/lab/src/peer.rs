//! Other servers, as their documentation advises to set them up: one worker, no access log, connections
//! kept for as many requests as they allow.
//!
//! All such configurations are here: the laboratory's experiments and the bench (`pollux-bench`) start the
//! same ones. A peer that is not installed is reported as missing, and nothing replaces it.

mod apache;
mod h2o;
mod haproxy;
mod lighttpd;
mod nginx;
mod squid;
#[cfg(test)]
mod tests;
mod traffic_server;
mod varnish;

use crate::experiment::Encryption;
use anyhow::{Context as _, bail};
use pollux_sys::find_program;
use rustix::net;
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    os::{fd::OwnedFd, unix::fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

/// One of the servers.
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

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It serves the files of [`PeerSetup::documents`].
    Files,
    /// It caches what an origin answers, over connections that are kept.
    Front {
        /// The origin.
        origin: SocketAddr,
    },
}

/// Where it runs.
#[derive(Clone, Copy, Debug)]
pub struct PeerSetup<'a> {
    /// The document root.
    pub documents: &'a Path,
    /// A directory of its own, for configuration, logs and process ids.
    pub scratch: &'a Path,
    /// It serves https with these; plain http without.
    pub tls: Option<PeerTls<'a>>,
}

/// How a peer serves https.
#[derive(Clone, Copy, Debug)]
pub struct PeerTls<'a> {
    /// Certificate and key, in one file or two (PEM).
    pub files: &'a TlsFiles,
    /// Whether the server or the kernel encrypts.
    pub encryption: Encryption,
}

/// A certificate that signs itself, in files.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Both, one behind the other.
    pub both: PathBuf,
}

impl TlsFiles {
    /// Makes one for the loopback, below `directory`.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn write(directory: &Path) -> anyhow::Result<Self> {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let (certificate, key) = pollux_tls::self_signed_pem(names)?;
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            fs::write(&path, text).with_context(|| path.display().to_string())?;
            anyhow::Ok(path)
        };
        Ok(Self {
            certificate: write("tls.pem", &certificate)?,
            key: write("tls.key", &key)?,
            both: write("tls.both", &format!("{certificate}{key}"))?,
        })
    }
}

/// A program with its arguments.
type CommandLine = Vec<OsString>;

/// A peer that is ready to be started: its files are written.
#[derive(Debug)]
pub struct SetUp {
    /// The program with its arguments. It stays in the foreground, and ends with its workers at SIGTERM.
    pub program: CommandLine,
    /// Where it will listen: its own until it does.
    pub port: Port,
    /// Whether it speaks https there.
    pub is_tls: bool,
}

impl Peer {
    /// Every one.
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

    /// The name in experiments, tables and raw data.
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

    /// Whether it can be set up for https.
    pub fn has_tls(self) -> bool {
        matches!(self, Self::Nginx | Self::H2o | Self::Haproxy)
    }

    /// The name of its program.
    fn program_name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::H2o => "h2o",
            Self::Lighttpd => "lighttpd",
            Self::ApachePrefork | Self::ApacheWorker | Self::ApacheEvent => "apache2",
            Self::Varnish => "varnishd",
            Self::Haproxy => "haproxy",
            Self::Squid => "squid",
            Self::TrafficServer => "traffic_server",
        }
    }

    /// Its program.
    ///
    /// # Errors
    /// When it is not installed; with what installs it.
    pub fn program(self) -> anyhow::Result<PathBuf> {
        let name = self.program_name();
        find_program(name)
            .with_context(|| format!("{name} is not installed: run `scripts/setup peers`"))
    }

    /// The first line that the program prints of its version.
    pub fn version(self) -> String {
        let flag = match self {
            Self::Varnish => "-V",
            Self::TrafficServer => "--version",
            _ => "-v",
        };
        self.program().map_or_else(|_| NOT_FOUND.into(), |program| version_line(&program, flag))
    }

    /// Writes its configuration.
    ///
    /// # Errors
    /// When it is not installed, is not made for the role, or its files cannot be written.
    pub fn set_up(self, role: Role, place: PeerSetup<'_>) -> anyhow::Result<SetUp> {
        let executable = self.program()?;
        let can_have_tls = self.has_tls() && role == Role::Files;
        if place.tls.is_some() && !can_have_tls {
            bail!("{} is not set up for https in this role here", self.name());
        }
        let port = Port::reserve()?;
        let input = ConfigInput { peer: self, executable, address: port.address(), role, place };
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
        Ok(SetUp { program, port, is_tls: place.tls.is_some() })
    }
}

/// What stands for the version of a program that cannot be started.
const NOT_FOUND: &str = "not found";

/// The first line that `program flag` prints, on either stream.
pub fn version_line(program: &Path, flag: &str) -> String {
    let Ok(output) = Command::new(program).arg(flag).output() else { return NOT_FOUND.into() };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or("").trim().to_owned()
}

/// What a configuration is made from.
struct ConfigInput<'a> {
    peer: Peer,
    executable: PathBuf,
    address: SocketAddr,
    role: Role,
    place: PeerSetup<'a>,
}

impl ConfigInput<'_> {
    fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.place.scratch.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// A directory below the scratch directory.
    fn directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.place.scratch.join(name);
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// A directory below the scratch directory that any user may write to.
    fn shared_directory(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.directory(name)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
        Ok(path)
    }

    /// Lets other users into the temporary directories: workers do not run as root if the user is root.
    fn open_to_workers(&self) -> anyhow::Result<()> {
        let temporary = std::env::temp_dir();
        for directory in [self.place.documents, self.place.scratch] {
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

    /// The command line with these arguments.
    fn command_line<const N: usize>(&self, arguments: [&str; N]) -> CommandLine {
        let arguments = arguments.iter().map(OsString::from);
        std::iter::once(self.executable.clone().into()).chain(arguments).collect()
    }
}

/// A port of 127.0.0.1 for a server that needs its number in advance.
///
/// As long as this value lives, the kernel gives the port to no other socket that binds to port 0. A
/// released port could be taken by another server before the intended one listens there. A server that
/// binds to the number with SO_REUSEADDR, as all servers do here, gets it: bind(2) allows that as long as
/// no socket listens.
#[derive(Debug)]
pub struct Port {
    _socket: OwnedFd,
    address: SocketAddr,
}

impl Port {
    /// One that the kernel chooses.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    pub fn reserve() -> anyhow::Result<Self> {
        let (family, kind) = (net::AddressFamily::INET, net::SocketType::STREAM);
        let socket = net::socket_with(family, kind, net::SocketFlags::CLOEXEC, None)?;
        net::sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        let address = SocketAddr::try_from(net::getsockname(&socket)?)?;
        Ok(Self { _socket: socket, address })
    }

    /// It, with its host.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
