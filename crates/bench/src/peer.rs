//! The servers that are compared: how each is set up and started, one worker, pinned.
//!
//! Each peer is configured as its own documentation advises for static files: no access log, an
//! open-file cache where it has one, connections kept for as many requests as it allows.

use crate::process::Running;
use anyhow::{Context, bail};
use serde::Serialize;
use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
};

/// One of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    /// The bare epoll loop of `pollux-event`'s example `floor`, with a one-byte reply.
    Floor,
    /// The same with a 6 KiB reply.
    #[serde(rename = "floor-6k")]
    Floor6k,
    /// `pollux serve --mechanism epoll-et`.
    Pollux,
    /// The same of another build.
    PolluxBefore,
    /// nginx.
    Nginx,
    /// h2o.
    H2o,
    /// lighttpd.
    Lighttpd,
}

impl Peer {
    /// The name in tables and raw data.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Floor => "floor",
            Peer::Floor6k => "floor-6k",
            Peer::Pollux => "pollux",
            Peer::PolluxBefore => "pollux-before",
            Peer::Nginx => "nginx",
            Peer::H2o => "h2o",
            Peer::Lighttpd => "lighttpd",
        }
    }
}

/// Where the programs and the files are.
#[derive(Debug)]
pub(crate) struct Place {
    /// The binary `pollux`.
    pub(crate) pollux: PathBuf,
    /// Another build of it.
    pub(crate) against: Option<PathBuf>,
    /// The example `floor`.
    pub(crate) floor: PathBuf,
    /// The document root, with `1.txt` and `6k.txt`.
    pub(crate) documents: PathBuf,
    /// For configuration files, logs and process ids.
    pub(crate) scratch: PathBuf,
    /// The CPU of the servers.
    pub(crate) cpu: u32,
}

impl Place {
    /// The binary of a Pollux.
    fn binary(&self, peer: Peer) -> &Path {
        match (&self.against, peer) {
            (Some(before), Peer::PolluxBefore) => before,
            _ => &self.pollux,
        }
    }
}

/// The documents' names and lengths.
pub(crate) const DOCUMENTS: [(&str, usize); 2] = [("1.txt", 1), ("6k.txt", 6 * 1024)];

/// Starts `peer` and waits until it answers.
pub(crate) fn start(peer: Peer, place: &Place) -> anyhow::Result<Running> {
    let address = free_address()?;
    let port = address.port();
    let documents = place.documents.display();
    let scratch = place.scratch.display();
    let write = |name: &str, text: String| -> anyhow::Result<PathBuf> {
        let path = place.scratch.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    };
    let mut command = Command::new("taskset");
    command.arg("-c").arg(place.cpu.to_string());
    match peer {
        Peer::Floor => command.arg(&place.floor).args([address.to_string(), "1".into()]),
        Peer::Floor6k => command.arg(&place.floor).args([address.to_string(), "6144".into()]),
        Peer::Pollux | Peer::PolluxBefore => command
            .arg(place.binary(peer))
            .args(["serve", "--mechanism", "epoll-et", "--workers", "1", "--keep-alive"])
            .args(["600s", "--listen", &address.to_string()])
            .arg(&place.documents),
        Peer::Nginx => {
            let path = write(
                "nginx.conf",
                format!(
                    "daemon off; worker_processes 1; pid {scratch}/nginx.pid; \
                     error_log {scratch}/nginx.err crit; worker_rlimit_nofile 20000;\n\
                     events {{ worker_connections 16000; use epoll; }}\n\
                     http {{ access_log off; sendfile on; tcp_nopush on; types {{ text/plain txt; }}\n\
                     client_body_temp_path {scratch}/nginx-body; proxy_temp_path {scratch}/nginx-p;\n\
                     fastcgi_temp_path {scratch}/nginx-f; uwsgi_temp_path {scratch}/nginx-u;\n\
                     scgi_temp_path {scratch}/nginx-s;\n\
                     keepalive_timeout 600s; keepalive_requests 1000000000;\n\
                     open_file_cache max=1000 inactive=600s; open_file_cache_valid 1s;\n\
                     server {{ listen {address}; root {documents}; }} }}\n"
                ),
            )?;
            command.arg(program("nginx")?).arg("-c").arg(path).arg("-e").arg("stderr")
        }
        Peer::H2o => {
            let path = write(
                "h2o.yaml",
                format!(
                    "num-threads: 1\nmax-connections: 16000\nhttp1-request-timeout: 600\n\
                     user: {user}\npid-file: {scratch}/h2o.pid\nerror-log: {scratch}/h2o.err\n\
                     hosts:\n  default:\n    listen:\n      host: 127.0.0.1\n      port: {port}\n\
                     \x20   paths:\n      /:\n        file.dir: {documents}\n",
                    user = std::env::var("USER").unwrap_or_else(|_| "root".into()),
                ),
            )?;
            command.arg(program("h2o")?).arg("-c").arg(path)
        }
        Peer::Lighttpd => {
            let path = write(
                "lighttpd.conf",
                format!(
                    "server.document-root = \"{documents}\"\nserver.bind = \"127.0.0.1\"\n\
                     server.port = {port}\nserver.pid-file = \"{scratch}/lighttpd.pid\"\n\
                     server.errorlog = \"{scratch}/lighttpd.err\"\n\
                     server.event-handler = \"linux-sysepoll\"\nserver.max-fds = 20000\n\
                     server.max-connections = 10000\nserver.max-keep-alive-requests = 1000000000\n\
                     server.max-keep-alive-idle = 600\nserver.max-read-idle = 600\n\
                     mimetype.assign = ( \".txt\" => \"text/plain\" )\n"
                ),
            )?;
            command.arg(program("lighttpd")?).arg("-D").arg("-f").arg(path)
        }
    };
    Running::start(peer.name(), command, address, &place.scratch)
}

/// The version line that each program prints of itself.
pub(crate) fn version(peer: Peer, place: &Place) -> String {
    let (program, flag): (PathBuf, &str) = match peer {
        Peer::Floor | Peer::Floor6k => return "of this checkout".into(),
        Peer::Pollux | Peer::PolluxBefore => (place.binary(peer).to_owned(), "--version"),
        Peer::Nginx => (program("nginx").unwrap_or_default(), "-v"),
        Peer::H2o => (program("h2o").unwrap_or_default(), "-v"),
        Peer::Lighttpd => (program("lighttpd").unwrap_or_default(), "-v"),
    };
    first_line(&program, flag)
}

/// The first line that `program flag` prints on either stream.
pub(crate) fn first_line(program: &Path, flag: &str) -> String {
    let Ok(output) = Command::new(program).arg(flag).output() else {
        return "not found".into();
    };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or("").trim().to_owned()
}

/// The path of a server's program; Debian keeps some in sbin, which is not on everyone's PATH.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.push("/usr/sbin".into());
    match folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!("{name} is not installed: run `scripts/setup peers`"),
    }
}

/// A loopback address whose port was free a moment ago.
fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
