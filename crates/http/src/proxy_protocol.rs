//! The PROXY protocol, versions 1 and 2: a header that a load balancer sends before the bytes of a
//! client, so that the server learns the client's address.
//!
//! Source: "The PROXY protocol, versions 1 & 2", Willy Tarreau, haproxy.org/download/3.0/doc/proxy-protocol.txt.
//!
//! A header does not prove its origin: read it only from trusted sources.

use std::{
    fmt,
    io::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// The longest header that is accepted. Version 1 has at most 107 bytes; version 2 may have extensions
/// (TLVs), for which balancers use some hundred bytes.
pub const HEADER_MAX: usize = 2048;

/// The longest line of version 1, with CRLF (§2.1).
const V1_MAX: usize = 107;
const V1_START: &[u8] = b"PROXY ";
const V2_START: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The fixed part of version 2.
const V2_FIXED: usize = 16;

/// The version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One line of text.
    V1,
    /// Binary.
    V2,
}

/// The content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The connection is the sender's own, such as a health check, or the client's address is not an IP
    /// address: the address of the connection itself is the client's address.
    Local,
    /// The connection stands for one from `source` to `destination`.
    Proxied {
        /// The client's address.
        source: SocketAddr,
        /// The address to which the client connected.
        destination: SocketAddr,
    },
}

/// The result of parsing the bytes that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseStatus {
    /// The header is complete and has this many bytes; the bytes after it are the client's.
    Complete(Header, usize),
    /// All bytes belong to the header, and more are needed.
    Partial,
}

/// The error for bytes that are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderError(&'static str);

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a PROXY protocol header: {}", self.0)
    }
}

impl std::error::Error for HeaderError {}

/// Reads the header at the beginning of `bytes`.
///
/// # Errors
/// These bytes cannot become a header, or it would be longer than [`HEADER_MAX`].
pub fn parse(bytes: &[u8]) -> Result<ParseStatus, HeaderError> {
    let begins = |start: &[u8]| {
        let common = bytes.len().min(start.len());
        bytes[..common] == start[..common]
    };
    if begins(V2_START) {
        parse_v2(bytes)
    } else if begins(V1_START) {
        parse_v1(bytes)
    } else {
        Err(HeaderError("neither version's signature"))
    }
}

fn parse_v1(bytes: &[u8]) -> Result<ParseStatus, HeaderError> {
    let window = &bytes[..bytes.len().min(V1_MAX)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        if window.len() == V1_MAX {
            return Err(HeaderError("the line does not end within 107 bytes"));
        }
        text_of(window.strip_suffix(b"\r").unwrap_or(window))?;
        return Ok(ParseStatus::Partial);
    };
    let line = text_of(&bytes[..end])?;
    let mut words = line.split(' ').skip(1);
    let family = words.next();
    if family == Some("UNKNOWN") {
        // The rest of the line is ignored (§2.1).
        return Ok(ParseStatus::Complete(Header::Local, end + 2));
    }
    let mut word = || words.next().ok_or(HeaderError("the line is too short"));
    let (source, destination) = (word()?, word()?);
    let ports = (port(word()?)?, port(word()?)?);
    if words.next().is_some() {
        return Err(HeaderError("the line is too long"));
    }
    let address = |text: &str| -> Result<IpAddr, HeaderError> {
        let parsed = match family {
            Some("TCP4") => text.parse::<Ipv4Addr>().map(IpAddr::from).ok(),
            Some("TCP6") => text.parse::<Ipv6Addr>().map(IpAddr::from).ok(),
            _ => None,
        };
        parsed.ok_or(HeaderError("no address of the family that it names"))
    };
    let header = Header::Proxied {
        source: (address(source)?, ports.0).into(),
        destination: (address(destination)?, ports.1).into(),
    };
    Ok(ParseStatus::Complete(header, end + 2))
}

fn text_of(line: &[u8]) -> Result<&str, HeaderError> {
    let is_printable = line.iter().all(|byte| (b' '..=b'~').contains(byte));
    let text = str::from_utf8(line).ok().filter(|_| is_printable);
    text.ok_or(HeaderError("a byte that no line has"))
}

fn port(text: &str) -> Result<u16, HeaderError> {
    let is_plain = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| is_plain).ok_or(HeaderError("no port number"))
}

fn parse_v2(bytes: &[u8]) -> Result<ParseStatus, HeaderError> {
    let Some(&version_command) = bytes.get(12) else { return Ok(ParseStatus::Partial) };
    if version_command >> 4 != 2 {
        return Err(HeaderError("another version than 2"));
    }
    let is_local = match version_command & 0xf {
        0 => true,
        1 => false,
        _ => return Err(HeaderError("neither LOCAL nor PROXY")),
    };
    let Some(&[family, length_high, length_low]) = bytes.get(13..V2_FIXED) else {
        return Ok(ParseStatus::Partial);
    };
    let length = usize::from(u16::from_be_bytes([length_high, length_low]));
    let len = V2_FIXED + length;
    if len > HEADER_MAX {
        return Err(HeaderError("it is longer than 2048 bytes"));
    }
    // 1 and 2 are IPv4 and IPv6, each over TCP (1) or UDP (2); 3 is AF_UNIX, 0 is unspecified.
    let room = match (is_local, family) {
        (true, _) => 0,
        (false, 0x11) => 12,
        (false, 0x21) => 36,
        (false, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => 0,
        _ => return Err(HeaderError("a family that there is not")),
    };
    if length < room {
        return Err(HeaderError("it is too short for its addresses"));
    }
    let Some(rest) = bytes.get(V2_FIXED..len) else { return Ok(ParseStatus::Partial) };
    let header = match room {
        12 => addresses::<4>(rest),
        36 => addresses::<16>(rest),
        _ => Some(Header::Local),
    };
    let header = header.ok_or(HeaderError("it is too short for its addresses"))?;
    Ok(ParseStatus::Complete(header, len))
}

fn addresses<const N: usize>(bytes: &[u8]) -> Option<Header>
where
    IpAddr: From<[u8; N]>,
{
    let (source, rest) = bytes.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let (source_port, rest) = rest.split_first_chunk::<2>()?;
    let (destination_port, _) = rest.split_first_chunk::<2>()?;
    Some(Header::Proxied {
        source: (IpAddr::from(*source), u16::from_be_bytes(*source_port)).into(),
        destination: (IpAddr::from(*destination), u16::from_be_bytes(*destination_port)).into(),
    })
}

/// Writes a header. Addresses of two families are both written as IPv6.
pub fn write(out: &mut Vec<u8>, version: Version, header: Header) {
    let header = match header {
        Header::Proxied { source, destination } if source.is_ipv4() != destination.is_ipv4() => {
            let v6 = |address: SocketAddr| match address.ip() {
                IpAddr::V4(v4) => (v4.to_ipv6_mapped(), address.port()).into(),
                IpAddr::V6(_) => address,
            };
            Header::Proxied { source: v6(source), destination: v6(destination) }
        }
        same => same,
    };
    match version {
        Version::V1 => write_v1(out, header),
        Version::V2 => write_v2(out, header),
    }
}

fn write_v1(out: &mut Vec<u8>, header: Header) {
    // Writing into a Vec cannot fail.
    let _ = match header {
        Header::Local => write!(out, "PROXY UNKNOWN\r\n"),
        Header::Proxied { source, destination } => {
            let family = if source.is_ipv4() { 4 } else { 6 };
            let (from, to) = (source.ip(), destination.ip());
            let ports = (source.port(), destination.port());
            write!(out, "PROXY TCP{family} {from} {to} {} {}\r\n", ports.0, ports.1)
        }
    };
}

fn write_v2(out: &mut Vec<u8>, header: Header) {
    out.extend_from_slice(V2_START);
    let Header::Proxied { source, destination } = header else {
        return out.extend_from_slice(&[0x20, 0, 0, 0]);
    };
    let (family, length) = if source.is_ipv4() { (0x11, 12) } else { (0x21, 36) };
    out.extend_from_slice(&[0x21, family, 0, length]);
    for address in [source, destination] {
        match address.ip() {
            IpAddr::V4(v4) => out.extend_from_slice(&v4.octets()),
            IpAddr::V6(v6) => out.extend_from_slice(&v6.octets()),
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

#[cfg(test)]
mod tests;
