//! The memory that slow and quiet clients of the front end cost. These tests are separate from the
//! other tests of the front end, whose memory would be counted too.

use pollux_server::{
    Server, Settings,
    config::{Listen, MechanismChoice},
    settings::FrontendConfig,
};
use pollux_testkit::{
    allocations::bytes_held, http::Client, origin::Origin, wait_until, wait_until_stalled,
    with_descriptors,
};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

const UPGRADE_REQUEST: &str =
    "GET /chat HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";

fn start(origin: &str, mechanism: &str) -> (Server, SocketAddr) {
    let mut config = Settings::without_files(FrontendConfig::new(vec![origin.parse().unwrap()]));
    // As in `pollux serve`: otherwise the test's own descriptors would be between the server's.
    config.own_file_tables = Some(pollux_testkit::own_file_tables());
    config.mechanism = MechanismChoice::Named(mechanism.parse().unwrap());
    let server = Server::start(config).unwrap();
    let Listen::Tcp(address) = server.addresses()[0] else { panic!("no TCP address") };
    (server, address)
}

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_slow_client_costs_no_memory_and_delays_no_other() {
    pollux_testkit::alone!(a_slow_client_costs_no_memory_and_delays_no_other);
    const CHUNK: usize = 1 << 20;
    const CHUNKS: usize = 200;
    static CONTENT: [u8; CHUNK] = [b'~'; CHUNK];
    for mechanism in ["epoll-et", "poll"] {
        let origin = Origin::start(|request| {
            if request.target() != "/large" {
                return request.ok("small");
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", CHUNK * CHUNKS);
            request.say(head) && (0..CHUNKS).all(|_| request.say(CONTENT))
        });
        let (server, address) = start(&origin.url(), mechanism);
        let mut slow = Client::connect(address);
        slow.send("GET /large HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        slow.socket().read_exact(&mut [0; 1000]).unwrap();
        let before = resident();
        wait_until_stalled(slow.socket());
        assert_eq!(Client::connect(address).get("/other").text(), "small", "{mechanism}");
        let mut stream = slow.socket().try_clone().unwrap();
        let mut all = 1000;
        let mut buffer = vec![0; 1 << 18];
        let mut most = 0;
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(received) => all += received,
                Err(error) => panic!("{mechanism}: {error} after {all} bytes"),
            }
            most = most.max(resident().saturating_sub(before));
        }
        // The count includes the head of the response.
        assert!((CHUNK * CHUNKS..CHUNK * CHUNKS + 1000).contains(&all), "{mechanism}: {all} bytes");
        assert!(most < 8 << 20, "{mechanism}: {most} bytes of memory");
        server.stop(Duration::from_secs(5)).unwrap();
    }
}

/// The maximum memory of a tunnel in bytes: two slots of 60 bytes and two registrations of 4 bytes, in
/// tables that grow by blocks and by doubling; and a small margin for allocations that other threads
/// make in the meantime.
const TUNNEL_MAX: i64 = 144;

/// An idle tunnel owns no buffer: each additional tunnel costs only its entries in two tables.
#[test]
fn thousands_of_quiet_tunnels_are_held_at_once() {
    pollux_testkit::alone!(thousands_of_quiet_tunnels_are_held_at_once);
    const TUNNELS: usize = 5000;
    // Each tunnel has four sockets: two of the server, which has its own file table where that is
    // allowed, one of the client, and one of the origin.
    let probe = || pollux_sys::own_file_table(pollux_testkit::own_file_tables(), &[]).is_ok();
    let each = if thread::spawn(probe).join().unwrap() { 2 } else { 4 };
    if let Err(reason) = with_descriptors(each * TUNNELS as u64 + 1500) {
        return eprintln!("skipped: {reason}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let origin = thread::spawn(move || {
        let mut streams = Vec::with_capacity(TUNNELS);
        for stream in listener.incoming().take(TUNNELS) {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut buffer = [0; 1024];
                let received = stream.read(&mut buffer).unwrap();
                head.extend_from_slice(&buffer[..received]);
            }
            stream.write_all(SWITCHED.as_bytes()).unwrap();
            streams.push(stream);
        }
        streams
    });
    let (server, address) = start(&url, "epoll-et");
    let mut clients = Vec::with_capacity(TUNNELS);
    let mut tenth = 0;
    for number in 0..TUNNELS {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(UPGRADE_REQUEST.as_bytes()).unwrap();
        let mut head = [0; 1024];
        let received = client.read(&mut head).unwrap();
        assert!(head[..received].starts_with(b"HTTP/1.1 101 "), "tunnel {number}");
        clients.push(client);
        if number == TUNNELS / 10 {
            tenth = bytes_held();
        }
    }
    // The difference contains both sides. The test has room for its own sockets from the start.
    let each = (bytes_held() - tenth) / (TUNNELS - TUNNELS / 10) as i64;
    eprintln!("{each} bytes for a tunnel");
    assert!((64..=TUNNEL_MAX).contains(&each), "{each} bytes for a tunnel");
    let mut streams = origin.join().unwrap();
    for number in [0, TUNNELS / 2, TUNNELS - 1] {
        streams[number].write_all(b"wake").unwrap();
        let mut got = [0; 4];
        clients[number].read_exact(&mut got).unwrap();
        assert_eq!(&got, b"wake");
    }
    assert_eq!(server.statistics().open(), TUNNELS as u64);
    drop(clients);
    wait_until("the end of the tunnels whose client is gone", || {
        let has_ended = server.statistics().open() == 0;
        drop(streams.split_off(streams.len() / 2));
        has_ended
    });
    server.stop(Duration::from_secs(5)).unwrap();
}
