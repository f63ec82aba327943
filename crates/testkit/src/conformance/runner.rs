//! Sends the cases and checks the replies.

use super::{
    case::{Case, Outcome},
    corpus,
    replies::{StrictReply, excerpt, parse},
};
use crate::{
    http::PATIENCE,
    tls::{TlsStream, Version},
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream, ToSocketAddrs},
};

/// The request after each case. It ends the connection, so that every case has an end.
const LAST: &[u8] = b"GET /last HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";

/// The size in bytes above which a case is sent in pieces of several bytes rather than byte by byte.
const BYTES_MAX: usize = 1 << 10;

/// How the bytes are divided into writes.
#[derive(Clone, Copy, Debug)]
pub enum Segmentation {
    /// All bytes in one write.
    Whole,
    /// In pieces of half a case; the last piece contains the request after the case.
    Halves,
    /// Byte by byte; long cases in pieces of 997 bytes.
    Bytes,
}

/// Checks the server at `address`, which serves a [`super::Site`], against the corpus, and reports all
/// faults at once.
///
/// # Panics
/// If there is any fault; the message has all faults and `setting`.
pub fn check(address: impl ToSocketAddrs + Copy, pieces: Segmentation, setting: &str) {
    let connect = || {
        let socket = TcpStream::connect(address).expect("the server accepts");
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        socket
    };
    let finish = |socket: &mut TcpStream| {
        let _ = socket.shutdown(Shutdown::Write);
    };
    check_with(connect, finish, false, pieces, setting);
}

/// Does the same as [`check`] over TLS. Each write is a record, and a connection that ends without
/// close_notify is a fault, except after an incomplete request, which the server aborts.
///
/// # Panics
/// As [`check`].
pub fn check_over_tls(
    address: impl ToSocketAddrs + Copy,
    version: Version,
    pieces: Segmentation,
    setting: &str,
) {
    let connect = || {
        let socket = TcpStream::connect(address).expect("the server accepts");
        TlsStream::new(socket, version)
    };
    check_with(connect, TlsStream::finish, true, pieces, setting);
}

fn check_with<S: Read + Write>(
    connect: impl Fn() -> S,
    finish: impl Fn(&mut S),
    is_tls: bool,
    pieces: Segmentation,
    setting: &str,
) {
    let mut faults = Vec::new();
    let cases = corpus::all(&connect, is_tls);
    for case in &cases {
        let stream = talk(connect(), &finish, case, pieces);
        if let Err(fault) = judge(case, &stream) {
            let sent = excerpt(&case.send);
            let got = excerpt(&stream);
            faults.push(format!("{}: {fault}\n  sent {sent}\n  got  {got}", case.name));
        }
    }
    let count = faults.len();
    assert!(count == 0, "{setting}: {count} faults\n{}", faults.join("\n"));
}

/// Sends a case and returns every byte that the server sends until it closes the connection.
fn talk<S: Read + Write>(
    mut socket: S,
    finish: impl Fn(&mut S),
    case: &Case,
    pieces: Segmentation,
) -> Vec<u8> {
    let mut bytes = case.send.to_vec();
    let is_last = match case.outcome {
        Outcome::Open => false,
        Outcome::Closed => requests_close(case) && !matches!(pieces, Segmentation::Whole),
        Outcome::Truncated => true,
    };
    if !is_last {
        bytes.extend_from_slice(LAST);
    }
    let piece = match pieces {
        Segmentation::Whole => bytes.len(),
        Segmentation::Halves => case.send.len().div_ceil(2),
        Segmentation::Bytes if bytes.len() > BYTES_MAX => 997,
        Segmentation::Bytes => 1,
    };
    for piece in bytes.chunks(piece.max(1)) {
        // The server may refuse the request and close before all bytes are sent.
        if socket.write_all(piece).is_err() {
            break;
        }
    }
    if case.outcome == Outcome::Truncated {
        finish(&mut socket);
    }
    let mut stream = Vec::new();
    // A reset is a fault: it can destroy the reply.
    match socket.read_to_end(&mut stream) {
        // The server aborts an incomplete request, and says so by an end without close_notify.
        Err(error)
            if case.outcome == Outcome::Truncated && error.kind() == ErrorKind::UnexpectedEof => {}
        Err(error) => stream.extend_from_slice(format!("[{error}]").as_bytes()),
        Ok(_) => {}
    }
    stream
}

/// Returns whether the case is a request after which the client must not send anything (RFC 9112
/// §9.6). Later bytes reach a closed socket; the server must ignore bytes in the same segment.
fn requests_close(case: &Case) -> bool {
    let text = String::from_utf8_lossy(&case.send).to_ascii_lowercase();
    text.contains("close") || text.contains("http/1.0")
}

fn judge(case: &Case, stream: &[u8]) -> Result<(), String> {
    let is_head = |index: usize| case.replies.get(index).is_some_and(|expected| expected.is_head);
    let replies = parse(stream, is_head)?;
    let mut expected: Vec<u16> = case.replies.iter().map(|expected| expected.status).collect();
    if case.outcome == Outcome::Open {
        expected.push(200);
    }
    let got: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    if got != expected {
        return Err(format!("{got:?} instead of {expected:?}"));
    }
    let (last, before) = match (&case.outcome, &replies[..]) {
        (_, []) => return Ok(()),
        (Outcome::Truncated, _) => (None, &replies[..]),
        (_, [before @ .., last]) => (Some(last), before),
    };
    if let Some(last) = last {
        if last.field("connection") != Some("close") {
            return Err("the last reply does not say close".into());
        }
        if case.outcome == Outcome::Open && last.body != b"last" {
            return Err("the request behind it was not answered".into());
        }
    }
    for reply in before {
        if reply.field("connection").is_some_and(|value| !value.eq_ignore_ascii_case("keep-alive"))
        {
            return Err("a reply before the last says close".into());
        }
    }
    case.expectations.iter().try_for_each(|want| judge_want(want, &replies))
}

/// Checks one requirement: the reply must have the field `name: value`, must not have `!name`, or has
/// the content `=text`. `n#` before it selects the reply with index n; otherwise the first reply to
/// the case is checked.
fn judge_want(want: &str, replies: &[StrictReply]) -> Result<(), String> {
    let (index, want) = match want.split_once('#') {
        Some((index, want)) => (index.parse().unwrap(), want),
        None => (0, want),
    };
    let reply: &StrictReply = &replies[index];
    if let Some(text) = want.strip_prefix('=') {
        let body = String::from_utf8_lossy(&reply.body);
        return if body == text { Ok(()) } else { Err(format!("content {body:?}, not {text:?}")) };
    }
    if let Some(name) = want.strip_prefix('!') {
        return match reply.field(name) {
            Some(value) => Err(format!("there is {name}: {value}")),
            None => Ok(()),
        };
    }
    let (name, value) = want.split_once(": ").expect("NAME: VALUE");
    match reply.field(name) {
        Some(found) if found == value => Ok(()),
        found => Err(format!("{name} is {found:?}, not {value:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, panic, thread};

    /// The server of this test sends the same reply to every request and then closes.
    #[test]
    fn a_faulty_server_is_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                let fields = "Date: x\r\nETag: x\r\nLast-Modified: x\r\nConnection: close\r\n";
                let length = "Content-Length: 12\r\n\r\n<p>index</p>";
                let _ = write!(socket, "HTTP/1.1 200 OK\r\n{fields}{length}");
                let _ = socket.shutdown(Shutdown::Write);
                let _ = socket.read_to_end(&mut Vec::new());
            }
        });
        let report = panic::catch_unwind(|| check(address, Segmentation::Whole, "the wrong one"));
        let report = *report.expect_err("no fault was reported").downcast::<String>().unwrap();
        assert!(report.starts_with("the wrong one: "), "{report}");
        for case in ["CL.TE: [200] instead of [400]", "HEAD of nothing: "] {
            assert!(report.contains(case), "no {case} in {report}");
        }
    }
}
