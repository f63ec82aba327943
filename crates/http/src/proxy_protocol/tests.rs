use super::*;
use proptest::prelude::*;

fn proxied(source: &str, destination: &str) -> Header {
    Header::Proxied { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
}

#[test]
fn lines_of_version_1_are_read() {
    for (line, header) in [
        (
            "PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n",
            proxied("192.0.2.1:56324", "198.51.100.1:443"),
        ),
        ("PROXY TCP6 2001:db8::1 ::1 0 65535\r\n", proxied("[2001:db8::1]:0", "[::1]:65535")),
        ("PROXY UNKNOWN\r\n", Header::Local),
        ("PROXY UNKNOWN ff:ff 255 a b\r\n", Header::Local),
    ] {
        let bytes = format!("{line}GET / HTTP/1.1\r\n");
        assert_eq!(
            parse(bytes.as_bytes()),
            Ok(ParseStatus::Complete(header, line.len())),
            "{line}"
        );
    }
}

#[test]
fn what_is_no_header_is_refused() {
    for text in [
        "GET / HTTP/1.1\r\n",
        "PROXX",
        "PROXY  TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
        "PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n",
        "PROXY TCP4 ::1 ::1 1 2\r\n",
        "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.1\n",
        "PROXY \u{e9}",
    ] {
        assert!(parse(text.as_bytes()).is_err(), "{text:?}");
    }
    assert!(parse(&[b"PROXY UNKNOWN ".as_slice(), &[b'a'; 100]].concat()).is_err());
    let v2 = |rest: &[u8]| parse(&[V2_START.as_slice(), rest].concat());
    for rest in [
        &[0x11_u8][..],
        &[0x22],
        &[0x21, 0x11, 0, 11],
        &[0x21, 0x21, 0, 35],
        &[0x21, 0x41, 0, 0],
        &[0x21, 0x11, 0xff, 0xff],
    ] {
        assert!(v2(rest).is_err(), "{rest:x?}");
    }
    // LOCAL is accepted with any family, and its addresses are skipped.
    assert_eq!(v2(&[0x20, 0x41, 0, 1, 9]), Ok(ParseStatus::Complete(Header::Local, 17)));
    // TLVs after the addresses are skipped.
    let tlv = [&[0x21, 0x11, 0, 16][..], &[1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 0, 80], &[4, 0, 1, 0]];
    let expected = ParseStatus::Complete(proxied("1.2.3.4:9", "5.6.7.8:80"), 32);
    assert_eq!(v2(&tlv.concat()), Ok(expected));
}

fn any_header() -> impl Strategy<Value = Header> {
    let v4 = any::<(u32, u32, u16, u16)>().prop_map(|(from, to, port, other)| Header::Proxied {
        source: (Ipv4Addr::from_bits(from), port).into(),
        destination: (Ipv4Addr::from_bits(to), other).into(),
    });
    let v6 = any::<(u128, u128, u16, u16)>().prop_map(|(from, to, port, other)| Header::Proxied {
        source: (Ipv6Addr::from_bits(from), port).into(),
        destination: (Ipv6Addr::from_bits(to), other).into(),
    });
    prop_oneof![Just(Header::Local), v4, v6]
}

proptest! {
    #[test]
    fn what_is_written_is_read_and_no_part_of_it_is_enough(
        header in any_header(), is_v1: bool, behind in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = Vec::new();
        write(&mut bytes, if is_v1 { Version::V1 } else { Version::V2 }, header);
        let len = bytes.len();
        for end in 0..len {
            prop_assert_eq!(parse(&bytes[..end]), Ok(ParseStatus::Partial), "{}", end);
        }
        bytes.extend(behind);
        prop_assert_eq!(parse(&bytes), Ok(ParseStatus::Complete(header, len)));
    }

    /// Further bytes never change an earlier result, and the number of bytes to wait for is bounded.
    #[test]
    fn a_verdict_stays(start in 0_usize..3, mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let starts: [&[u8]; 3] = [b"", b"PROXY TCP4 ", V2_START];
        bytes.splice(..0, starts[start].iter().copied());
        let mut verdict = Ok(ParseStatus::Partial);
        for end in 0..=bytes.len() {
            let now = parse(&bytes[..end]);
            if verdict == Ok(ParseStatus::Partial) {
                verdict = now;
            } else {
                prop_assert_eq!(now.is_ok(), verdict.is_ok());
                if now.is_ok() {
                    prop_assert_eq!(now, verdict);
                }
            }
        }
        let whole = [bytes.as_slice(), &[b'a'; HEADER_MAX]].concat();
        prop_assert_ne!(parse(&whole), Ok(ParseStatus::Partial));
    }
}
