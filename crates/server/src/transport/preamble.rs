//! Reads a PROXY protocol header, which precedes the client's bytes.
//!
//! Bytes are peeked at before they are received, so that the bytes after the header stay in the socket, for
//! HTTP or for TLS.

use super::listener;
use pollux_http::proxy_protocol::{HEADER_MAX, Header, ParseStatus, parse};
use pollux_sys as sys;
use std::{io, os::fd::BorrowedFd};

/// The progress of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preamble {
    /// The header is incomplete, and the socket is empty.
    Waiting,
    /// The header is complete, and was received from the socket.
    Complete(Header),
}

/// The received part of an incomplete header.
#[derive(Debug, Default)]
pub(crate) struct PreambleBytes(pub(crate) Vec<u8>);

/// Receives a header, or a part of it. `held` is the part that was received before.
///
/// # Errors
/// UnexpectedEof when the peer has closed its side; InvalidData when it sends no header; the errors of
/// recv(2).
pub(crate) fn read(socket: BorrowedFd<'_>, held: &mut Vec<u8>) -> io::Result<Preamble> {
    let mut buffer = [0; HEADER_MAX];
    loop {
        let before = held.len();
        let count = match sys::peek_now(socket, &mut buffer[..HEADER_MAX - before]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Preamble::Waiting);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        held.extend_from_slice(&buffer[..count]);
        let status =
            parse(held).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let taken = match status {
            ParseStatus::Complete(_, len) => len - before,
            ParseStatus::Partial => count,
        };
        take(socket, &mut buffer[..taken])?;
        if let ParseStatus::Complete(header, _) = status {
            return Ok(Preamble::Complete(canonical(header)));
        }
        if held.len() == HEADER_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Returns the header with the addresses in the form that those of sockets have: a balancer with IPv6 may
/// write the IPv4 address of a client as ::ffff:192.0.2.1, and the log and origins would see two clients.
fn canonical(header: Header) -> Header {
    match header {
        Header::Local => Header::Local,
        Header::Proxied { source, destination } => Header::Proxied {
            source: listener::canonical(source),
            destination: listener::canonical(destination),
        },
    }
}

/// Receives bytes that were peeked at.
fn take(socket: BorrowedFd<'_>, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match sys::recv_now(socket, bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read as _, Write as _},
        os::{fd::AsFd, unix::net::UnixStream},
    };

    #[test]
    fn what_follows_the_header_stays_in_the_socket() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let mut held = Vec::new();
        let mut read = |near: &UnixStream| read(near.as_fd(), &mut held);
        assert_eq!(read(&near).unwrap(), Preamble::Waiting);
        far.write_all(b"PROXY UNK").unwrap();
        assert_eq!(read(&near).unwrap(), Preamble::Waiting);
        far.write_all(b"NOWN\r\nGET").unwrap();
        assert_eq!(read(&near).unwrap(), Preamble::Complete(Header::Local));
        let mut rest = [0; 3];
        near.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"GET");
    }

    /// Regression: the log and origins got ::ffff:192.0.2.1.
    #[test]
    fn an_ipv4_address_in_the_form_of_an_ipv6_address_is_ipv4() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"PROXY TCP6 ::ffff:192.0.2.1 2001:db8::1 4000 80\r\n").unwrap();
        let header = Header::Proxied {
            source: "192.0.2.1:4000".parse().unwrap(),
            destination: "[2001:db8::1]:80".parse().unwrap(),
        };
        assert_eq!(read(near.as_fd(), &mut Vec::new()).unwrap(), Preamble::Complete(header));
    }

    #[test]
    fn what_is_no_header_and_an_early_end_are_errors() {
        for (bytes, kind) in [
            (b"GET / HTTP/1.1\r\n".as_slice(), io::ErrorKind::InvalidData),
            (b"PROXY TCP4", io::ErrorKind::UnexpectedEof),
        ] {
            let (near, mut far) = UnixStream::pair().unwrap();
            far.write_all(bytes).unwrap();
            drop(far);
            assert_eq!(read(near.as_fd(), &mut Vec::new()).unwrap_err().kind(), kind);
        }
    }
}
