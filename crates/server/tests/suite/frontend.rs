//! The front end over real sockets: requests that are forwarded, requests that are refused, and
//! responses when an origin misbehaves.

mod bodies;
mod cache;
mod counts;
mod ends;
mod every;
mod forwarding;
mod handover;
mod limits;
mod misbehaving;
mod peers;
mod tls;
mod tunnels;

use pollux_server::{
    Server, Settings,
    config::{Listen, MechanismChoice},
    settings::FrontendConfig,
};
use pollux_testkit::{
    http::{Client, PATIENCE, Reply},
    wait_until,
};
use std::{
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The engines under test, by mechanism: one of every kind (level, edge, scanning, ring).
const ENGINES: [&str; 4] = ["epoll", "epoll-et", "poll", "uring-poll"];

/// A front end that also serves one file of its own.
struct Fixture {
    directory: TempDir,
    server: Server,
}

impl Fixture {
    /// Starts a front end for these origins, each `[/PREFIX=]URL`.
    fn new(origins: &[&str], change: impl FnOnce(&mut Settings, &mut FrontendConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), "of the site").unwrap();
        let mut config = Settings::new(directory.path());
        let mut frontend =
            FrontendConfig::new(origins.iter().map(|origin| origin.parse().unwrap()).collect());
        change(&mut config, &mut frontend);
        config.frontend = Some(Arc::new(frontend));
        Self { directory, server: Server::start(config).unwrap() }
    }

    /// Starts a front end for one origin, with default settings.
    fn before(origin: &str) -> Self {
        Self::new(&[origin], |_, _| {})
    }

    fn address(&self) -> SocketAddr {
        match &self.server.addresses()[0] {
            Listen::Tcp(address) => *address,
            other => panic!("{other} is no TCP address"),
        }
    }

    fn client(&self) -> Client {
        Client::connect(self.address())
    }

    fn get(&self, path: &str) -> Reply {
        self.client().get(path)
    }

    fn stop(self) -> pollux_server::Statistics {
        self.server.stop(Duration::from_secs(10)).unwrap()
    }
}

/// Configures one of [`ENGINES`].
fn serve_with(config: &mut Settings, engine: &str) {
    config.mechanism = MechanismChoice::Named(engine.parse().unwrap());
}

/// Runs `test` with each engine, all at once, because the tests mostly wait.
fn on_every_engine(test: impl Fn(&str) + Sync) {
    thread::scope(|scope| {
        for engine in ENGINES {
            let test = &test;
            let thread = thread::Builder::new().name(engine.into());
            thread.spawn_scoped(scope, move || test(engine)).unwrap();
        }
    });
}

/// Returns the status and the error type of a reply that the front end made itself.
fn error(reply: &Reply) -> (u16, String) {
    let status = reply.field("proxy-status").unwrap_or_default();
    (reply.status, status.split("error=").nth(1).unwrap_or_default().to_owned())
}
