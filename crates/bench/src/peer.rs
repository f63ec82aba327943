//! The servers that the benchmark compares, and how it starts each: pinned to one CPU, as a
//! [`Server`] of the laboratory.
//!
//! Third-party servers are configured as in the laboratory's experiments ([`pollux_lab::peer`]).

use crate::scenario::CONNECTIONS;
use anyhow::Context as _;
use pollux_lab::{
    floor,
    peer::{self, Port, Role, SetUp, version_line},
    run::{interrupt::Interrupt, server::Server},
};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// One of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The bare epoll loop of `pollux lab floor`, with a one-byte reply.
    Floor,
    /// The same with a 6 KiB reply.
    Floor6k,
    /// `pollux lab floor --threads`: a bare thread for each connection.
    FloorThreads,
    /// `pollux serve --mechanism epoll-et`.
    Pollux,
    /// `pollux serve --architecture prethreaded`, a thread for each connection.
    Prethreaded,
    /// `pollux serve --architecture preforked`, a process for each connection.
    Preforked,
    /// As [`Peer::Pollux`], with the binary of another build ([`Testbed::against`]).
    PolluxBefore,
    /// A third-party server.
    Other(peer::Peer),
}

/// nginx.
pub(crate) const NGINX: Peer = Peer::Other(peer::Peer::Nginx);
/// h2o.
pub(crate) const H2O: Peer = Peer::Other(peer::Peer::H2o);
/// lighttpd.
pub(crate) const LIGHTTPD: Peer = Peer::Other(peer::Peer::Lighttpd);

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
            Peer::Other(other) => other.name(),
        }
    }
}

/// The paths and settings of the programs and files.
#[derive(Debug)]
pub(crate) struct Testbed {
    /// The binary `pollux`.
    pub(crate) pollux: PathBuf,
    /// Another build of it.
    pub(crate) against: Option<PathBuf>,
    /// The document root, with `1.txt` and `6k.txt`.
    pub(crate) documents: PathBuf,
    /// The directory for configuration files, logs and process ids.
    pub(crate) scratch: PathBuf,
    /// The CPU of the servers.
    pub(crate) cpu: u32,
    /// Ctrl-C.
    pub(crate) interrupt: Interrupt,
}

impl Testbed {
    /// The binary that a variant of Pollux runs.
    fn binary(&self, peer: Peer) -> &Path {
        match (&self.against, peer) {
            (Some(before), Peer::PolluxBefore) => before,
            _ => &self.pollux,
        }
    }
}

/// The documents' names and lengths.
pub(crate) const DOCUMENTS: [(&str, usize); 2] = [("1.txt", 1), ("6k.txt", 6 * 1024)];

/// The path of the first document, for requests to which any document is a good answer.
pub(crate) const PATH: &str = "/1.txt";

/// Starts `peer` and waits until it answers.
pub(crate) fn start(peer: Peer, testbed: &Testbed) -> anyhow::Result<Server> {
    let pool = CONNECTIONS.to_string();
    let set_up = match peer {
        Peer::Floor => return floor(testbed, DOCUMENTS[0], &[]),
        Peer::Floor6k => return floor(testbed, DOCUMENTS[1], &[]),
        Peer::FloorThreads => return floor(testbed, DOCUMENTS[0], &["--threads", &pool]),
        Peer::Pollux | Peer::PolluxBefore => {
            serve(peer, testbed, ["--mechanism", "epoll-et", "--workers", "1"])?
        }
        Peer::Prethreaded | Peer::Preforked => {
            serve(peer, testbed, ["--architecture", peer.name(), "--pool", &pool])?
        }
        Peer::Other(other) => {
            let setup = peer::PeerSetup {
                documents: &testbed.documents,
                scratch: &testbed.scratch,
                tls: None,
            };
            other.set_up(Role::Files, setup)?
        }
    };
    Server::start_peer(peer.name(), &set_up, testbed.cpu, PATH, &testbed.interrupt)
}

/// Starts `pollux lab floor` with a reply whose content is as long as `document`.
fn floor(testbed: &Testbed, document: (&str, usize), more: &[&str]) -> anyhow::Result<Server> {
    let (name, length) = document;
    let reply = testbed.scratch.join(format!("floor-{name}"));
    fs::write(&reply, floor::reply(length)).with_context(|| reply.display().to_string())?;
    let mut program: Vec<OsString> = vec![testbed.pollux.clone().into()];
    program.extend(["lab", "floor"].into_iter().chain(more.iter().copied()).map(OsString::from));
    program.push(reply.into());
    Server::start_floor(&program, testbed.cpu, &testbed.interrupt)
}

/// The command line of `pollux serve`: the options that all variants of Pollux have, then `more`.
fn serve(peer: Peer, testbed: &Testbed, more: [&str; 4]) -> anyhow::Result<SetUp> {
    let port = Port::reserve()?;
    let listen = port.address().to_string();
    let mut program: Vec<OsString> = vec![testbed.binary(peer).into()];
    program.extend(["serve", "--keep-alive", "600s", "--listen", &listen].map(OsString::from));
    program.push(testbed.documents.clone().into());
    program.extend(more.map(OsString::from));
    Ok(SetUp { program, port, is_tls: false })
}

/// The version line that the program of `peer` prints.
pub(crate) fn version(peer: Peer, testbed: &Testbed) -> String {
    match peer {
        Peer::Other(other) => other.version(),
        ours => version_line(testbed.binary(ours), "--version"),
    }
}
