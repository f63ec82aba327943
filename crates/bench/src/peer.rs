//! The servers that are compared: how each is set up and started, one worker, pinned.
//!
//! Those that are not ours are set up as in the laboratory's experiments ([`pollux_lab::peer`]).

use crate::{process::Running, scenario::CONNECTIONS};
use anyhow::bail;
use pollux_lab::peer;
use serde::Serialize;
use std::{
    net::SocketAddr,
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
    /// The example `floor_threads`: a bare thread for each connection.
    FloorThreads,
    /// `pollux serve --mechanism epoll-et`.
    Pollux,
    /// `pollux serve --architecture prethreaded`, a thread for each connection.
    Prethreaded,
    /// `pollux serve --architecture preforked`, a process for each connection.
    Preforked,
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
            Peer::FloorThreads => "floor-threads",
            Peer::Pollux => "pollux",
            Peer::Prethreaded => "prethreaded",
            Peer::Preforked => "preforked",
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
    /// The example `floor_threads`.
    pub(crate) floor_threads: PathBuf,
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
    let mut port = peer::Port::reserve()?;
    let address = port.address();
    let mut command = Command::new("taskset");
    command.arg("-c").arg(place.cpu.to_string());
    match peer {
        Peer::Floor => command.arg(&place.floor).args([address.to_string(), "1".into()]),
        Peer::Floor6k => command.arg(&place.floor).args([address.to_string(), "6144".into()]),
        Peer::FloorThreads => {
            command.arg(&place.floor_threads).args([address.to_string(), CONNECTIONS.to_string()])
        }
        Peer::Pollux | Peer::PolluxBefore => serve(command.arg(place.binary(peer)), address, place)
            .args(["--mechanism", "epoll-et", "--workers", "1"]),
        Peer::Prethreaded | Peer::Preforked => serve(command.arg(&place.pollux), address, place)
            .args(["--architecture", peer.name(), "--pool", &CONNECTIONS.to_string()]),
        Peer::Nginx | Peer::H2o | Peer::Lighttpd => {
            let there = peer::Place { documents: &place.documents, scratch: &place.scratch };
            let set_up = elsewhere(peer)?.set_up(peer::Role::Files, there)?;
            port = set_up.port;
            command.args(set_up.program).envs(set_up.environment)
        }
    };
    Running::start(peer.name(), command, port.address(), &place.scratch)
}

/// The flags that all of ours have.
fn serve<'c>(command: &'c mut Command, address: SocketAddr, place: &Place) -> &'c mut Command {
    let listen = address.to_string();
    command.args(["serve", "--keep-alive", "600s", "--listen", &listen]).arg(&place.documents)
}

/// The version line that each program prints of itself.
pub(crate) fn version(peer: Peer, place: &Place) -> String {
    match peer {
        Peer::Floor | Peer::Floor6k | Peer::FloorThreads => "of this checkout".into(),
        Peer::Pollux | Peer::Prethreaded | Peer::Preforked | Peer::PolluxBefore => {
            first_line(place.binary(peer), "--version")
        }
        Peer::Nginx | Peer::H2o | Peer::Lighttpd => {
            elsewhere(peer).map_or_else(|error| error.to_string(), peer::Peer::version)
        }
    }
}

/// A server that is not ours, as the laboratory sets it up.
fn elsewhere(peer: Peer) -> anyhow::Result<peer::Peer> {
    Ok(match peer {
        Peer::Nginx => peer::Peer::Nginx,
        Peer::H2o => peer::Peer::H2o,
        Peer::Lighttpd => peer::Peer::Lighttpd,
        ours => bail!("{} is ours", ours.name()),
    })
}

/// The first line that `program flag` prints on either stream.
pub(crate) fn first_line(program: &Path, flag: &str) -> String {
    let Ok(output) = Command::new(program).arg(flag).output() else {
        return "not found".into();
    };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or("").trim().to_owned()
}
