//! However the bytes are cut and however slowly the peer takes the output, the output is the same.

use super::*;
use crate::{config::Config, outbox::Next, table::Class};
use proptest::prelude::*;
use std::os::unix::fs::FileExt;

/// A service with a short, a long and an open file.
fn service() -> (tempfile::TempDir, Service) {
    let directory = tempfile::tempdir().unwrap();
    for (name, len) in [("short", 1), ("long", 40_000), ("open", 300_000)] {
        let content: Vec<u8> = (0..len).map(|i| (i / 5) as u8).collect();
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    let service = Service::new(&Config::new(directory.path()), None).unwrap();
    (directory, service)
}

/// Takes up to `limit` octets; returns whether all are taken.
fn take(outbox: &mut Outbox, limit: usize, sent: &mut Vec<u8>) -> bool {
    let mut left = limit;
    loop {
        let start = sent.len();
        match outbox.next() {
            Next::Nothing => return true,
            Next::Bytes(bytes) | Next::BytesBeforeFile(bytes) => sent.extend_from_slice(bytes),
            Next::Two(first, second) => sent.extend([first, second].concat()),
            Next::File { file, offset, len } => {
                let file = std::fs::File::from(file.try_clone_to_owned().unwrap());
                sent.resize(start + len as usize, 0);
                file.read_exact_at(&mut sent[start..], offset).unwrap();
            }
        }
        sent.truncate(start + left);
        let taken = sent.len() - start;
        left -= taken;
        outbox.advance(taken);
        if left == 0 {
            return outbox.is_empty();
        }
    }
}

/// Does what an engine does: receives `pieces`, sends as much at a time as `takes` says, in turn.
fn exchange(service: &mut Service, pieces: &[&[u8]], takes: &[usize]) -> (Vec<u8>, Step) {
    let mut connection = Connection::default();
    let mut outbox = Outbox::default();
    let mut sent = Vec::new();
    let mut takes = takes.iter().copied().cycle();
    for piece in pieces {
        let mut rest = *piece;
        loop {
            let dealt_with = connection.receive(service, &mut outbox, rest);
            rest = &rest[dealt_with..];
            if !take(&mut outbox, takes.next().unwrap(), &mut sent) {
                connection.park(&mut outbox, rest);
                rest = b"";
                assert!(outbox.is_empty() && connection.has_output());
                assert_eq!(connection.class(), Class::Send);
                loop {
                    let mut parked = connection.take_parked();
                    if take(&mut parked, takes.next().unwrap(), &mut sent) {
                        break;
                    }
                    connection.put_parked(parked, 0, 1);
                }
            }
            if connection.next_step() != Step::Receive {
                return (sent, connection.next_step());
            }
            if rest.is_empty() && !connection.has_requests() {
                break;
            }
        }
    }
    (sent, connection.next_step())
}

/// `bytes` cut at these places.
fn cut<'b>(bytes: &'b [u8], places: &[usize]) -> Vec<&'b [u8]> {
    let mut places: Vec<usize> = places.iter().map(|place| place % (bytes.len() + 1)).collect();
    places.push(0);
    places.push(bytes.len());
    places.sort_unstable();
    places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).filter(|p| !p.is_empty()).collect()
}

const REQUESTS: [&str; 9] = [
    "GET /short HTTP/1.1\r\nHost: test\r\n\r\n",
    "GET /long HTTP/1.1\r\nHost: test\r\n\r\n",
    "GET /open HTTP/1.1\r\nHost: test\r\nRange: bytes=5-200004\r\n\r\n",
    "HEAD /open HTTP/1.1\r\nHost: test\r\n\r\n",
    "GET /none HTTP/1.1\r\nHost: test\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 30\r\n\r\nGET / HTTP/1.1\r\nHost: test\r\n\r\n",
    "PUT / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nGET /\r\n0\r\n\r\n",
    "GET /short HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
    "GET /short HTTP/1.1\r\n\r\n",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn any_cut_and_any_pace_give_the_same_output(
        // The last two end the connection: rarer than the others.
        requests in prop::collection::vec(prop_oneof![60 => 0..7usize, 1 => 7..9usize], 1..120),
        places in prop::collection::vec(any::<usize>(), 0..40),
        takes in prop::collection::vec(1..200_000usize, 1..12),
    ) {
        let (_directory, mut service) = service();
        let all: String = requests.iter().map(|&index| REQUESTS[index]).collect();
        let whole = exchange(&mut service, &[all.as_bytes()], &[usize::MAX >> 1]);
        let pieces = cut(all.as_bytes(), &places);
        let in_pieces = exchange(&mut service, &pieces, &takes);
        // Without the wall of numbers that prop_assert_eq would print.
        prop_assert!(whole.0 == in_pieces.0, "{} octets became {}", whole.0.len(), in_pieces.0.len());
        // What was already received behind the last request decides whether to linger.
        let is_over = |step| step != Step::Receive;
        prop_assert_eq!(is_over(whole.1), is_over(in_pieces.1));
        prop_assert_eq!(is_over(whole.1), requests.iter().any(|&index| index >= 7));
    }
}

#[test]
fn nothing_is_owned_between_requests() {
    let (_directory, mut service) = service();
    let mut connection = Connection::default();
    let mut outbox = Outbox::default();
    assert_eq!(connection.class(), Class::Header);
    for request in &REQUESTS[..7] {
        for piece in request.as_bytes().chunks(7) {
            connection.receive(&mut service, &mut outbox, piece);
            outbox.clear();
        }
        assert!(connection.is_idle() && connection.exchange.is_none(), "{request}");
        assert_eq!((connection.class(), connection.next_step()), (Class::KeepAlive, Step::Receive));
    }
    connection.receive(&mut service, &mut outbox, b"GET /");
    assert_eq!(connection.class(), Class::Header);
    assert_eq!(connection.requests(), 7);
}

#[test]
fn a_connection_is_sixteen_octets() {
    assert_eq!(size_of::<Connection>(), 16);
}
