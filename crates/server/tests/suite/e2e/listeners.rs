//! The files of UNIX listeners: a server removes the file that it created, and no other file.

use pollux_server::{
    Server, Settings,
    config::{Architecture, Listen},
};
use std::{
    fs,
    net::TcpListener,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    time::Duration,
};

const ARCHITECTURES: [Architecture; 2] = [Architecture::Event, Architecture::Prethreaded];

fn config(architecture: Architecture, listen: Vec<Listen>) -> Settings {
    let mut config = Settings::new(".");
    config.architecture = architecture;
    config.pool = (architecture != Architecture::Event).then_some(2);
    config.listen = listen;
    config
}

fn started(architecture: Architecture, path: &Path) -> Server {
    Server::start(config(architecture, vec![Listen::Unix(path.into())])).unwrap()
}

/// Regression: the file was removed only if the caller waited for the server, and not if the start
/// failed half way.
#[test]
fn the_file_of_a_unix_listener_goes_with_the_server_however_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    for architecture in ARCHITECTURES {
        let server = started(architecture, &path);
        UnixStream::connect(&path).unwrap();
        drop(server);
        assert!(!path.exists(), "{architecture}: dropped");

        let server = started(architecture, &path);
        UnixStream::connect(&path).unwrap();
        server.stop(Duration::from_secs(10)).unwrap();
        assert!(!path.exists(), "{architecture}: stopped");

        let listen = [Listen::Unix(path.clone()), Listen::Tcp(taken.local_addr().unwrap())];
        Server::start(config(architecture, listen.into())).unwrap_err();
        assert!(!path.exists(), "{architecture}: its other address is in use");
    }
}

/// Regression: a server that ended removed the file that another server had created at that path in
/// the meantime, such as its own next generation.
#[test]
fn what_another_has_put_in_its_place_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    for architecture in ARCHITECTURES {
        for is_waited_for in [false, true] {
            let server = started(architecture, &path);
            fs::remove_file(&path).unwrap();
            let next = UnixListener::bind(&path).unwrap();
            if is_waited_for {
                server.stop(Duration::from_secs(10)).unwrap();
            } else {
                drop(server);
            }
            UnixStream::connect(&path).unwrap();
            drop(next);
            fs::remove_file(&path).unwrap();
        }
    }
}
