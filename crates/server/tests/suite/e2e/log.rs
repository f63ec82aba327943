//! The access log.

use super::Fixture;
use pollux_server::config::{LogConfig, LogTarget};
use socket2::{Domain, Socket, Type};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

/// The server reads a client's address when it writes the log line. The line must have the address of
/// its own client, even if the server handled other clients in between.
#[test]
fn each_line_names_its_own_client() {
    let logs = tempfile::tempdir().unwrap();
    let path = logs.path().join("log");
    let fixture = Fixture::new(&[], |config| {
        config.log = LogConfig::clf(LogTarget::File(path.clone()));
    });
    let mut clients = [1, 2, 3].map(|number| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, number], 0)).into()).unwrap();
        socket.connect(&fixture.address().into()).unwrap();
        (number, TcpStream::from(socket))
    });
    for round in 0..2 {
        for (number, client) in &mut clients {
            // In the second round, two requests arrive in one iteration of the event loop.
            let request = format!("GET /{number} HTTP/1.1\r\nHost: test\r\n\r\n");
            client.write_all(request.repeat(1 + round).as_bytes()).unwrap();
        }
    }
    for (_, client) in &mut clients {
        client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        client.read_to_end(&mut Vec::new()).unwrap();
    }
    drop(clients);
    fixture.stop();
    let text = fs::read_to_string(path).unwrap();
    for number in [1, 2, 3] {
        let own = |line: &&str| line.contains(&format!("\"GET /{number} HTTP"));
        let lines: Vec<_> = text.lines().filter(own).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines.iter().all(|line| line.starts_with(&format!("127.0.0.{number} "))), "{text}");
    }
}
