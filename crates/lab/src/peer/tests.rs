//! Every installed peer starts with its configuration, answers requests, and ends.

use super::*;
use crate::{
    experiment::Encryption,
    run::{interrupt::Interrupt, server::Server},
};
use pollux_testkit::wait_until;
use rustix::net;
use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// An origin whose responses may all be cached, and the number of requests that it received.
fn origin() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, received) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&received);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let count = Arc::clone(&count);
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while stream.read(&mut byte).is_ok_and(|read| read == 1) {
                    head.push(byte[0]);
                    if head.ends_with(b"\r\n\r\n") {
                        if head.windows(5).any(|part| part == b"/kept") {
                            count.fetch_add(1, Ordering::SeqCst);
                        }
                        head.clear();
                        // Squid stores no response without a Date.
                        let now = jiff::Timestamp::now().strftime("%a, %d %b %Y %T GMT");
                        let reply = format!(
                            "HTTP/1.1 200 OK\r\nDate: {now}\r\nCache-Control: max-age=600\r\n\
                             Content-Type: text/plain\r\nContent-Length: 1\r\n\r\nx"
                        );
                        if stream.write_all(reply.as_bytes()).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    (address, received)
}

fn started(peer: Peer, role: Role, setup: PeerSetup<'_>) -> Option<Server> {
    let set_up = match peer.set_up(role, setup) {
        Ok(set_up) => set_up,
        Err(error) if peer.program().is_err() => {
            println!("skipped: {error:#}");
            return None;
        }
        Err(error) => panic!("{}: {error:#}", peer.name()),
    };
    let never = Interrupt::never();
    let usable = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| usable.is_set(cpu)).unwrap();
    Some(Server::start_peer(peer.name(), &set_up, cpu as u32, "/one.txt", &never).unwrap())
}

#[test]
fn a_port_is_reserved_until_its_server_binds_it() {
    let port = Port::reserve().unwrap();
    let refused = TcpStream::connect(port.address()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    // The kernel refuses this port to a socket without SO_REUSEADDR, and to every socket that lets the
    // kernel choose a port.
    let (family, kind) = (net::AddressFamily::INET, net::SocketType::STREAM);
    let other = net::socket(family, kind, None).unwrap();
    assert_eq!(net::bind(&other, &port.address()), Err(rustix::io::Errno::ADDRINUSE));
    let _listener = TcpListener::bind(port.address()).unwrap();
    TcpStream::connect(port.address()).unwrap();
}

#[test]
fn those_that_serve_files_do() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("one.txt"), "x").unwrap();
    for peer in [
        Peer::Nginx,
        Peer::H2o,
        Peer::Lighttpd,
        Peer::ApachePrefork,
        Peer::ApacheWorker,
        Peer::ApacheEvent,
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let setup = PeerSetup { documents: directory.path(), scratch: scratch.path(), tls: None };
        let Some(server) = started(peer, Role::Files, setup) else { continue };
        assert!(server.request("/nothing.txt").is_err(), "{}: a missing file", peer.name());
        let pids = crate::measure::processes(server.pid()).unwrap();
        drop(server);
        for pid in pids {
            wait_until(&format!("the end of {pid} of {}", peer.name()), || {
                !fs::exists(format!("/proc/{pid}")).unwrap()
            });
        }
    }
}

#[test]
fn those_that_serve_https_do() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("one.txt"), "x").unwrap();
    for peer in Peer::ALL.into_iter().filter(|peer| peer.has_tls()) {
        let scratch = tempfile::tempdir().unwrap();
        let files = TlsFiles::write(scratch.path()).unwrap();
        let tls = Some(PeerTls { files: &files, encryption: Encryption::Process });
        let setup = PeerSetup { documents: directory.path(), scratch: scratch.path(), tls };
        let Some(server) = started(peer, Role::Files, setup) else { continue };
        assert!(server.url("/one.txt").starts_with("https://"), "{}", peer.name());
        server.request("/one.txt").unwrap();
    }
    let scratch = tempfile::tempdir().unwrap();
    let files = TlsFiles::write(scratch.path()).unwrap();
    let tls = Some(PeerTls { files: &files, encryption: Encryption::Process });
    let setup = PeerSetup { documents: directory.path(), scratch: scratch.path(), tls };
    let refused = Peer::Lighttpd.set_up(Role::Files, setup).unwrap_err().to_string();
    assert!(refused.contains("not installed") || refused.contains("https"), "{refused}");
}

/// A front end that gets the same request twice forwards it to its origin once.
#[test]
fn those_that_cache_do() {
    let directory = tempfile::tempdir().unwrap();
    for peer in [
        Peer::Nginx,
        Peer::ApacheEvent,
        Peer::Varnish,
        Peer::Haproxy,
        Peer::Squid,
        Peer::TrafficServer,
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let setup = PeerSetup { documents: directory.path(), scratch: scratch.path(), tls: None };
        let (origin, received) = origin();
        let Some(server) = started(peer, Role::Front { origin }, setup) else { continue };
        // Some caches have not yet opened their store when they answer for the first time.
        wait_until(&format!("a stored response in {}", peer.name()), || {
            let before = received.load(Ordering::SeqCst);
            server.request("/kept").unwrap();
            received.load(Ordering::SeqCst) == before
        });
        let before = received.load(Ordering::SeqCst);
        server.request("/kept?anew").unwrap();
        assert_eq!(
            received.load(Ordering::SeqCst),
            before + 1,
            "{}: takes a query for none",
            peer.name()
        );
    }
}

#[test]
fn a_role_that_a_server_has_not_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let setup = PeerSetup { documents: directory.path(), scratch: directory.path(), tls: None };
    let origin = SocketAddr::from(([127, 0, 0, 1], 9));
    for (peer, role) in [(Peer::Varnish, Role::Files), (Peer::H2o, Role::Front { origin })] {
        let message = format!("{:#}", peer.set_up(role, setup).unwrap_err());
        assert!(message.contains("not installed") || message.contains(peer.name()), "{message}");
    }
    for peer in Peer::ALL {
        let name = serde_json::to_value(peer).unwrap();
        assert_eq!(name, peer.name(), "in experiments as in tables");
    }
}
