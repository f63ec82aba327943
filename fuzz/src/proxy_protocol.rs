//! PROXY protocol headers: a header has the same meaning in pieces and as a whole, and a header that is written has
//! the same meaning when it is read again.

use pollux_http::proxy_protocol::{HEADER_MAX, Header, ParseStatus, Version, parse, write};

/// The input is the bytes that a balancer sends, and after them those of the client.
pub fn check(data: &[u8]) {
    let whole = parse(data);
    // The shortest prefix that decides. Its result must be that of the whole input.
    let decided = (0..=data.len().min(HEADER_MAX))
        .map(|end| parse(&data[..end]))
        .find(|status| *status != Ok(ParseStatus::Partial));
    match decided {
        None => assert!(whole == Ok(ParseStatus::Partial) && data.len() < HEADER_MAX),
        Some(Err(_)) => assert!(whole.is_err()),
        Some(status) => assert_eq!(whole, status),
    }
    let Ok(ParseStatus::Complete(header, len)) = whole else { return };
    assert!(len <= HEADER_MAX && len <= data.len());
    for version in [Version::V1, Version::V2] {
        let mut written = Vec::new();
        write(&mut written, version, header);
        let total = written.len();
        written.extend_from_slice(&data[len..]);
        // The planted fault: the header is treated as one byte longer.
        let total = total + usize::from(crate::planted());
        assert_eq!(parse(&written), Ok(ParseStatus::Complete(same_family(header), total)));
    }
}

/// By the grammar of a header both of its addresses have the same family.
fn same_family(header: Header) -> Header {
    if let Header::Proxied { source, destination } = header {
        assert_eq!(source.is_ipv4(), destination.is_ipv4());
    }
    header
}
