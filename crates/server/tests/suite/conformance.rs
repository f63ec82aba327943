//! Requests as test suites, scanners and attackers send them, against a server in this process: the
//! corpus of `pollux_testkit::conformance`, on every mechanism and in every architecture with threads.
//! `crates/cli/tests/suite/architectures` tests the program with the same corpus in the architectures
//! with processes.

mod ends;
mod files;
mod tls;

use pollux_event::{MechanismSpec, registry};
use pollux_server::{
    Server, Settings,
    config::{Architecture, Discipline, LargeFile, Listen, MechanismChoice},
};
use pollux_testkit::{
    conformance::{Segmentation, Site, check},
    http::Client,
};
use std::{net::SocketAddr, path::Path, thread};

const DISCIPLINES: [Discipline; 2] = [Discipline::Eager, Discipline::PerState];

/// A server in this process.
struct TestServer(Server);

impl TestServer {
    /// Serves `directory` with the program's defaults, and as `change` configures it.
    fn start(directory: &Path, change: impl FnOnce(&mut Settings)) -> Self {
        let mut config = Settings::new(directory);
        // `pollux serve` also gives its workers their own file tables.
        config.own_file_tables = Some(pollux_testkit::own_file_tables());
        change(&mut config);
        Self(Server::start(config).expect("the server starts"))
    }

    /// Serves `directory` with this mechanism.
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

/// Returns the mechanisms that this kernel offers.
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

/// Checks the corpus on each mechanism of this kernel, in both disciplines.
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
                    let server = TestServer::by(&site.root(), mechanism, interest);
                    let setting = format!("{mechanism}, {interest:?}");
                    check(server.address(), Segmentation::Whole, &setting);
                });
            }
        }
    });
}

/// The replies do not depend on how the bytes are divided into segments: single bytes, or halves.
#[test]
fn the_corpus_in_pieces() {
    let site = Site::make();

    thread::scope(|scope| {
        for interest in DISCIPLINES {
            for mechanism in ["epoll", "epoll-et"] {
                let site = &site;
                scope.spawn(move || {
                    let server =
                        TestServer::by(&site.root(), &mechanism.parse().unwrap(), interest);
                    for pieces in [Segmentation::Bytes, Segmentation::Halves] {
                        let setting = format!("{mechanism}, {interest:?}, {pieces:?}");
                        check(server.address(), pieces, &setting);
                    }
                });
            }
        }
    });
}

/// The replies do not depend on the thread that serves a connection.
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
                    TestServer::start(&site.root(), |config| config.architecture = architecture);
                assert_eq!(server.0.architecture(), architecture);
                for pieces in [Segmentation::Whole, Segmentation::Halves] {
                    check(server.address(), pieces, &format!("{architecture}, {pieces:?}"));
                }
            });
        }
    });
}

/// The replies do not depend on the configuration: no cache, several workers, the other way to send
/// large files.
#[test]
fn the_corpus_whatever_the_configuration() {
    let site = Site::make();

    let held_to_it = |setting: &str, change: fn(&mut Settings)| {
        let server = TestServer::start(&site.root(), change);
        check(server.address(), Segmentation::Whole, setting);
    };
    held_to_it("no cache", |config| config.site.cache_bytes = 0);
    held_to_it("three workers", |config| config.workers = 3);
    held_to_it("TCP_CORK", |config| config.large_file = LargeFile::Cork);
}
