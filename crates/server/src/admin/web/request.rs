//! Reads the head of one request within limits of time and size.

use pollux_http::{
    Limits, Reject,
    request::{self, Method, ParseStatus, Target, Version},
};
use socket2::Socket;
use std::{
    io::{self, Read},
    time::{Duration, Instant},
};

/// The maximum size of the head in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// The time for the whole head, even if it arrives byte by byte.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);
/// The input that is discarded before a connection is closed: its maximum size in bytes, and the
/// time.
const DISCARD_BYTES_MAX: usize = 64 << 10;
const DISCARD_PATIENCE: Duration = Duration::from_millis(500);

const LIMITS: Limits = Limits { request_line: 2 << 10, header_section: 6 << 10, ..Limits::DEFAULT };

/// The parts of a request that this listener uses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PageRequest {
    /// Whether the method is HEAD; otherwise it is GET.
    pub(super) is_head: bool,
    pub(super) version: Version,
    /// The path without the query.
    pub(super) path: String,
    /// The value of the field Accept; empty if there is none.
    pub(super) accept: String,
}

/// The reason to refuse a request.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reject: Reject,
    /// Whether the method is HEAD: the response then has no content (RFC 9110 §9.3.2).
    pub(super) is_head: bool,
}

/// Reads a request. The inner error is sent as a response; the outer one means that the client has
/// disconnected.
///
/// # Errors
/// The errors of recv(2); `UnexpectedEof` if the client closed the connection before the end of the
/// head.
pub(super) fn read(socket: &Socket) -> io::Result<Result<PageRequest, Refusal>> {
    let mut head = Vec::with_capacity(1 << 10);
    let outcome = read_head(socket, &mut head)?;
    Ok(outcome.map_err(|reject| Refusal { reject, is_head: request::is_head(&head) }))
}

fn read_head(socket: &Socket, head: &mut Vec<u8>) -> io::Result<Result<PageRequest, Reject>> {
    let until = Instant::now() + HEAD_PATIENCE;
    loop {
        if head.len() >= HEAD_BYTES_MAX {
            return Ok(Err(reject(pollux_http::Status::FieldsTooLarge, "the head is too long")));
        }
        let left = until.saturating_duration_since(Instant::now());
        // A timeout of zero would mean no timeout.
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let mut buffer = [0; 2 << 10];
        let room = buffer.len().min(HEAD_BYTES_MAX - head.len());
        let mut reader = socket;
        match reader.read(&mut buffer[..room]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => head.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if is_timeout(&error) => {
                let status = pollux_http::Status::RequestTimeout;
                return Ok(Err(reject(status, "the request came too slowly")));
            }
            Err(error) => return Err(error),
        }
        match request::parse(head, &LIMITS) {
            Ok(ParseStatus::Complete { request, .. }) => return Ok(accept(&request)),
            Err(reject) => return Ok(Err(reject)),
            Ok(_) => {}
        }
    }
}

fn accept(request: &request::Request<'_>) -> Result<PageRequest, Reject> {
    let is_head = match request.method {
        Method::Get => false,
        Method::Head => true,
        _ => {
            let status = pollux_http::Status::MethodNotAllowed;
            return Err(reject(status, "this listener is read-only: use GET or HEAD"));
        }
    };
    let Target::Path { path, .. } = request.target else {
        return Err(reject(pollux_http::Status::BadRequest, "the target is no path"));
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(PageRequest {
        is_head,
        version: request.version,
        path: text(path),
        accept: request.field(b"accept").map(text).unwrap_or_default(),
    })
}

fn reject(status: pollux_http::Status, reason: &'static str) -> Reject {
    Reject { status, reason }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Discards further input of the client, within limits, until the client closes the connection.
pub(super) fn discard(socket: &Socket) {
    let until = Instant::now() + DISCARD_PATIENCE;
    let mut total = 0;
    let mut buffer = [0; 4 << 10];
    while total < DISCARD_BYTES_MAX && Instant::now() < until {
        let _ = socket.set_read_timeout(Some(DISCARD_PATIENCE));
        let mut reader = socket;
        match reader.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => total += count,
        }
    }
}
