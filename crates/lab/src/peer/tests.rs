//! Every peer that is installed starts with the configuration that it is given, answers, and ends.

use super::*;
use crate::run::{interrupt::Interrupt, server::Server};
use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// An origin that says of everything that it may be kept; and how often it was asked for it.
fn origin() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
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
                        // Squid keeps nothing that has no Date.
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
    (address, asked)
}

fn started(peer: Peer, role: Role, place: PeerSetup<'_>) -> Option<Server> {
    let set_up = match peer.set_up(role, place) {
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
fn a_port_is_nobodys_until_its_server_asks_for_it() {
    let port = Port::reserve().unwrap();
    let refused = TcpStream::connect(port.address()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    // Who does not set SO_REUSEADDR is refused, as is everybody to whom the kernel would give it.
    let (family, kind) = (net::AddressFamily::INET, net::SocketType::STREAM);
    let other = net::socket(family, kind, None).unwrap();
    assert_eq!(net::bind(&other, &port.address()), Err(rustix::io::Errno::ADDRINUSE));
    let _listener = TcpListener::bind(port.address()).unwrap();
    TcpStream::connect(port.address()).unwrap();
}

#[test]
fn those_that_serve_files_do() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("one.txt"), "x").unwrap();
    for peer in [
        Peer::Nginx,
        Peer::H2o,
        Peer::Lighttpd,
        Peer::ApachePrefork,
        Peer::ApacheWorker,
        Peer::ApacheEvent,
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let place = PeerSetup { documents: folder.path(), scratch: scratch.path() };
        let Some(server) = started(peer, Role::Files, place) else { continue };
        assert!(server.ask("/nothing.txt").is_err(), "{}: what is not there", peer.name());
        let pids = crate::measure::processes(server.pid()).unwrap();
        drop(server);
        for pid in pids {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while fs::exists(format!("/proc/{pid}")).unwrap() {
                assert!(std::time::Instant::now() < deadline, "{}: {pid} is left", peer.name());
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }
}

/// Asked twice for the same, a front end asks its origin once.
#[test]
fn those_that_cache_do() {
    let folder = tempfile::tempdir().unwrap();
    for peer in [
        Peer::Nginx,
        Peer::ApacheEvent,
        Peer::Varnish,
        Peer::Haproxy,
        Peer::Squid,
        Peer::TrafficServer,
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let place = PeerSetup { documents: folder.path(), scratch: scratch.path() };
        let (origin, asked) = origin();
        let Some(server) = started(peer, Role::Front { origin }, place) else { continue };
        // Some have not yet opened their store when they first answer.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            let before = asked.load(Ordering::SeqCst);
            server.ask("/kept").unwrap();
            if asked.load(Ordering::SeqCst) == before {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{}: keeps nothing", peer.name());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let before = asked.load(Ordering::SeqCst);
        server.ask("/kept?anew").unwrap();
        assert_eq!(
            asked.load(Ordering::SeqCst),
            before + 1,
            "{}: takes a query for none",
            peer.name()
        );
    }
}

#[test]
fn a_role_that_a_server_has_not_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let place = PeerSetup { documents: folder.path(), scratch: folder.path() };
    let origin = SocketAddr::from(([127, 0, 0, 1], 9));
    for (peer, role) in [(Peer::Varnish, Role::Files), (Peer::H2o, Role::Front { origin })] {
        let said = format!("{:#}", peer.set_up(role, place).unwrap_err());
        assert!(said.contains("not installed") || said.contains(peer.name()), "{said}");
    }
    for peer in Peer::ALL {
        let name = serde_json::to_value(peer).unwrap();
        assert_eq!(name, peer.name(), "in experiments as in tables");
    }
}
