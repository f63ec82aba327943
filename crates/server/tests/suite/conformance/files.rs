//! Files that change while they are sent: the server sends the announced length, or ends the
//! connection.

use super::{DISCIPLINES, TestServer, mechanisms};
use pollux_event::MechanismSpec;
use pollux_server::config::Discipline;
use pollux_testkit::http::Client;
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    path::Path,
    thread,
};

/// More bytes than the sockets' buffers hold at once.
const LEN: usize = 24 << 20;

/// Begins to read a file, calls `change`, and reads on. Returns the number of received bytes of
/// content and whether the connection still serves a second request.
fn read_while(server: &TestServer, name: &str, change: impl FnOnce()) -> (usize, bool) {
    let client: Client = server.client();
    let mut socket: &TcpStream = client.socket();
    write!(socket, "GET /{name} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let mut start = [0; 4096];
    let got = read(socket, &mut start).unwrap();
    let head = start.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let text = String::from_utf8_lossy(&start[..head]);
    assert!(text.contains(&format!("Content-Length: {LEN}\r\n")), "{text}");
    change();
    let mut count = got - head;
    let mut buffer = vec![0; 1 << 16];
    while count < LEN {
        let room = buffer.len().min(LEN - count);
        match read(socket, &mut buffer[..room]) {
            Ok(0) => return (count, false),
            Ok(read) => count += read,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return (count, false),
            Err(error) => panic!("{name}: {error} after {count} bytes"),
        }
    }
    let second = b"GET /small HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
    let mut rest = Vec::new();
    let is_good = socket.write_all(second).is_ok() && socket.read_to_end(&mut rest).is_ok();
    (count, is_good && rest.starts_with(b"HTTP/1.1 200 ") && rest.ends_with(b"\r\n\r\nsmall"))
}

/// Reads, and retries after EINTR: when an io_uring that this thread has probed is closed, the
/// thread's next system call is interrupted.
fn read(mut socket: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

fn make(path: &Path) {
    File::create(path).unwrap().set_len(LEN as u64).unwrap();
}

#[test]
fn files_that_change_while_they_are_sent() {
    thread::scope(|scope| {
        for mechanism in mechanisms() {
            scope.spawn(move || {
                for interest in DISCIPLINES {
                    change_files(&mechanism, interest);
                }
            });
        }
    });
}

fn change_files(mechanism: &MechanismSpec, interest: Discipline) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["truncated", "shortened", "removed", "replaced", "growing"] {
        make(&path(name));
    }
    fs::write(path("small"), "small").unwrap();
    let server = TestServer::by(directory.path(), mechanism, interest);
    let setting = format!("{mechanism}, {interest:?}");
    let cut =
        |name: &str, len: u64| File::options().write(true).open(path(name)).unwrap().set_len(len);
    for (name, len) in [("truncated", 0), ("shortened", LEN as u64 - 1)] {
        let (count, is_good) = read_while(&server, name, || cut(name, len).unwrap());
        assert!(count < LEN && !is_good, "{setting}: {name}: {count} bytes");
    }
    let whole = (LEN, true);
    let got = read_while(&server, "removed", || fs::remove_file(path("removed")).unwrap());
    assert_eq!(got, whole, "{setting}: removed");
    let got = read_while(&server, "replaced", || {
        fs::write(path("new"), "new").unwrap();
        fs::rename(path("new"), path("replaced")).unwrap();
    });
    assert_eq!(got, whole, "{setting}: replaced");
    let got = read_while(&server, "growing", || cut("growing", 2 * LEN as u64).unwrap());
    assert_eq!(got, whole, "{setting}: growing");
}
