//! PROXY protocol headers: in pieces a header means what it means at once; what it says is written and
//! read again as the same.

use pollux_http::proxy_protocol::{HEADER_MAX, Header, ParseStatus, Version, parse, write};

/// The input is what a balancer sends, and the client behind it.
pub fn check(data: &[u8]) {
    let whole = parse(data);
    // The shortest beginning that decides, which must be what all of it says.
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
        // The fault: the header is taken for one byte longer.
        let total = total + usize::from(crate::planted());
        assert_eq!(parse(&written), Ok(ParseStatus::Complete(same_family(header), total)));
    }
}

/// Both addresses of a header have one family, by its grammar.
fn same_family(header: Header) -> Header {
    if let Header::Proxied { source, destination } = header {
        assert_eq!(source.is_ipv4(), destination.is_ipv4());
    }
    header
}
