//! The server in this process, over real sockets: the content that it serves, on every mechanism, and
//! the cost of a request.

mod costs;
mod listeners;
mod log;
mod mechanisms;
mod protocol;
mod site;

use pollux_server::{Server, Settings, config::Listen};
use pollux_testkit::http::Client;
use std::{fs, net::SocketAddr, path::Path, time::Duration};
use tempfile::TempDir;

/// A server for one test, and its site.
struct Fixture {
    directory: TempDir,
    server: Server,
}

impl Fixture {
    /// Starts a server for `files`, with the configuration that `change` adjusts.
    fn new(files: &[(&str, &[u8])], change: impl FnOnce(&mut Settings)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            write(directory.path(), name, content);
        }
        let mut config = Settings::new(directory.path());
        change(&mut config);
        let server = Server::start(config).unwrap();
        Self { directory, server }
    }

    fn path(&self) -> &Path {
        self.directory.path()
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

    /// Returns the status and the content of one GET on a new connection.
    fn get(&self, path: &str) -> (u16, String) {
        let reply = self.client().get(path);
        (reply.status, reply.text())
    }

    fn stop(self) -> pollux_server::Statistics {
        self.server.stop(Duration::from_secs(10)).unwrap()
    }
}

/// Writes a file and the directories above it.
fn write(directory: &Path, name: &str, content: &[u8]) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}
