//! Requests as suites, scanners and attackers send them, against a server of this process: the corpus
//! of `pollux_testkit::conformance`, on every mechanism and in every architecture that threads can
//! have. In those of processes the program is held to it (`crates/cli/tests/suite/architectures`).

mod ends;
mod files;

use pollux_event::{MechanismSpec, registry};
use pollux_server::{
    Config, Server,
    config::{Architecture, Discipline, LargeFile, Listen, MechanismChoice},
};
use pollux_testkit::{
    conformance::{Segmentation, Site, check},
    http::Client,
};
use std::{net::SocketAddr, path::Path, thread};

const DISCIPLINES: [Discipline; 2] = [Discipline::Eager, Discipline::PerState];

/// A server in this process.
struct Served(Server);

impl Served {
    /// Serves `directory` with the program's defaults, and as `change` configures it.
    fn start(directory: &Path, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(directory);
        // As the program does.
        config.own_file_tables = Some(pollux_testkit::own_file_tables());
        change(&mut config);
        Self(Server::start(config).expect("the server starts"))
    }

    /// Serves it by this mechanism.
    fn by(directory: &Path, mechanism: &MechanismSpec, interest: Discipline) -> Self {
        let served = Self::start(directory, |config| {
            config.mechanism = MechanismChoice::Named(mechanism.clone());
            config.interest = interest;
        });
        assert_eq!(served.0.mechanism(), mechanism);
        served
    }

    fn address(&self) -> SocketAddr {
        match &self.0.addresses()[0] {
            Listen::Tcp(address) => *address,
            other => panic!("{other} is no TCP address"),
        }
    }

    fn client(&self) -> Client {
        Client::connect(self.address())
    }
}

/// The mechanisms that this kernel offers.
fn mechanisms() -> Vec<MechanismSpec> {
    let all = registry::ALL.iter().map(|description| description.name.parse().unwrap());
    let offered = all.filter(|spec| match registry::probe(spec) {
        Ok(()) => true,
        Err(reason) => {
            eprintln!("skipped: {spec}: {reason}");
            false
        }
    });
    offered.collect()
}

/// The corpus on each mechanism of this kernel, in both disciplines.
#[test]
fn the_corpus_on_every_mechanism() {
    let site = Site::make();

    let mechanisms = mechanisms();
    assert!(mechanisms.len() >= 4, "only {mechanisms:?}");
    thread::scope(|scope| {
        for mechanism in &mechanisms {
            for interest in DISCIPLINES {
                let site = &site;
                scope.spawn(move || {
                    let server = Served::by(&site.root(), mechanism, interest);
                    let setting = format!("{mechanism}, {interest:?}");
                    check(server.address(), Segmentation::Whole, &setting);
                });
            }
        }
    });
}

/// However the bytes come, the replies are the same: one byte a segment, and halves.
#[test]
fn the_corpus_in_pieces() {
    let site = Site::make();

    thread::scope(|scope| {
        for interest in DISCIPLINES {
            for mechanism in ["epoll", "epoll-et"] {
                let site = &site;
                scope.spawn(move || {
                    let server = Served::by(&site.root(), &mechanism.parse().unwrap(), interest);
                    for pieces in [Segmentation::Bytes, Segmentation::Halves] {
                        let setting = format!("{mechanism}, {interest:?}, {pieces:?}");
                        check(server.address(), pieces, &setting);
                    }
                });
            }
        }
    });
}

/// Whichever thread serves a connection, the replies are the same.
#[test]
fn the_corpus_in_every_architecture_of_threads() {
    let site = Site::make();

    thread::scope(|scope| {
        for architecture in
            [Architecture::Iterative, Architecture::Threaded, Architecture::Prethreaded]
        {
            let site = &site;
            scope.spawn(move || {
                let server =
                    Served::start(&site.root(), |config| config.architecture = architecture);
                assert_eq!(server.0.architecture(), architecture);
                for pieces in [Segmentation::Whole, Segmentation::Halves] {
                    check(server.address(), pieces, &format!("{architecture}, {pieces:?}"));
                }
            });
        }
    });
}

/// No cache, several workers, the other way to send large files: nothing of it may show.
#[test]
fn the_corpus_whatever_the_configuration() {
    let site = Site::make();

    let held_to_it = |setting: &str, change: fn(&mut Config)| {
        let server = Served::start(&site.root(), change);
        check(server.address(), Segmentation::Whole, setting);
    };
    held_to_it("no cache", |config| config.site.cache_bytes = 0);
    held_to_it("three workers", |config| config.workers = 3);
    held_to_it("TCP_CORK", |config| config.large_file = LargeFile::Cork);
}
