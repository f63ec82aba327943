//! Replies: framing, persistence, errors, and that pieces make no difference.

use pollux_http::{
    limits,
    reply::{Decoder, MAX_FIELDS, MAX_INTERIM, Reply, ReplyError},
};
use proptest::prelude::*;

/// Reads the first reply in `wire` in pieces of `piece` bytes. Also returns how many bytes of `wire` it
/// used. The connection is closed after the last byte.
fn read(wire: &[u8], is_head: bool, piece: usize) -> Result<(Reply, usize), ReplyError> {
    let mut decoder = Decoder::new();
    decoder.begin(is_head);
    let mut at = 0;
    while at < wire.len() {
        let end = (at + piece).min(wire.len());
        let output = decoder.feed(&wire[at..end])?;
        assert!(output.consumed <= end - at);
        at += output.consumed;
        if let Some(reply) = output.reply {
            return Ok((reply, at));
        }
        assert_eq!(at, end, "without a reply all is consumed");
    }
    decoder.finish().map(|reply| (reply, at))
}

fn whole(wire: &str) -> Result<(Reply, usize), ReplyError> {
    let all = read(wire.as_bytes(), false, wire.len().max(1));
    for piece in [1, 2, 3, 7] {
        let pieces = read(wire.as_bytes(), false, piece);
        match (&all, &pieces) {
            // The split may decide which error is found first.
            (Err(_), Err(_)) => {}
            _ => assert_eq!(all, pieces, "{wire:?} in pieces of {piece}"),
        }
    }
    all
}

#[track_caller]
fn is(wire: &str, status: u16, body: u64, keep_alive: bool) {
    assert_eq!(whole(wire), Ok((Reply { status, body, keep_alive }, wire.len())), "{wire:?}");
}

#[test]
fn framing_of_rfc_9112_6_3() {
    is("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, 5, true);
    is("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, 0, true);
    is("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200, 3, true);
    is("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 200, 0, true);
    is("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc", 200, 3, false);
    is("HTTP/1.1 200 OK\r\n\r\nuntil the end", 200, 13, false);
    is("HTTP/1.1 204 No Content\r\n\r\n", 204, 0, true);
    is("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, 0, true);
    is("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", 101, 0, false);
    is(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\n\r\nHTTP/1.1 204 \r\n\r\n",
        204,
        0,
        true,
    );
}

#[test]
fn a_reply_to_head_has_no_body() {
    let wire = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 ";
    let (reply, len) = read(wire, true, wire.len()).unwrap();
    assert_eq!(reply, Reply { status: 200, body: 0, keep_alive: true });
    assert_eq!(&wire[len..], b"HTTP/1.1 ");
}

#[test]
fn persistence_of_rfc_9112_9_3() {
    let length = "Content-Length: 0\r\n\r\n";
    is(&format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{length}"), 200, 0, false);
    is(&format!("HTTP/1.1 200 OK\r\nConnection: a, Close\r\n{length}"), 200, 0, false);
    is(&format!("HTTP/1.0 200 OK\r\n{length}"), 200, 0, false);
    is(&format!("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n{length}"), 200, 0, true);
    is("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nx", 200, 1, false);
}

#[test]
fn the_status_line_of_rfc_9112_4() {
    is("HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, 0, true);
    is("HTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n", 404, 0, true);
    is("HTTP/1.5 599 a b\tc\r\nContent-Length: 0\r\n\r\n", 599, 0, true);
    for line in [
        "HTTP/2.0 200 OK\r\n",
        "HTTP/1.d 200 OK\r\n",
        "HTTP/1.1 ddd OK\r\n",
        "HTTP/1.1 2#0 OK\r\n",
        "http/1.1 200 OK\r\n",
        "HTTP/1.1  200 OK\r\n",
        "HTTP/1.1 20 OK\r\n",
        "HTTP/1.1 2000 OK\r\n",
        "HTTP/1.1 200 O\rK\r\n",
        "HTTP/1.1 200 O\0K\r\n",
        "HTTP/1.1 200OK\r\n",
        " HTTP/1.1 200 OK\r\n",
        "\r\nHTTP/1.1 200 OK\r\n",
        "<html>",
    ] {
        assert_eq!(whole(&format!("{line}\r\n")), Err(ReplyError::StatusLine), "{line:?}");
    }
}

#[test]
fn invalid_statuses_are_treated_as_5xx_rfc_9110_15() {
    for status in [0, 99, 600, 999] {
        is(&format!("HTTP/1.1 {status:03} x\r\nContent-Length: 2\r\n\r\nab"), status, 2, true);
        is(&format!("HTTP/1.1 {status:03} x\r\n\r\nab"), status, 2, false);
    }
}

/// A user agent must accept folded lines (§5.2), regardless of the split.
#[test]
fn folded_lines_are_unfolded_rfc_9112_5_2() {
    let ok = "HTTP/1.1 200 OK\r\n";
    is(&format!("{ok}A: b\r\n c\r\nContent-Length: 5\r\n\r\nhello"), 200, 5, true);
    is(&format!("{ok}Content-Length:\r\n\t 5\r\nA: b\r\n \r\n\r\nhello"), 200, 5, true);
    is(&format!("{ok}Connection: a,\r\n close\r\nContent-Length: 0\r\n\r\n"), 200, 0, false);
    // A body that begins like a folded line is content.
    is(&format!("{ok}A: b\r\n c\r\nContent-Length: 3\r\n\r\n d\r"), 200, 3, true);
    // A field inside a folded line is part of a value.
    is(&format!("{ok}A: b\r\n Content-Length: 9\r\nContent-Length: 1\r\n\r\nx"), 200, 1, true);
}

/// Browsers accept such white space, and the strict reader removes it (§5.1).
#[test]
fn white_space_before_a_colon_is_not_part_of_the_name() {
    let ok = "HTTP/1.1 200 OK\r\n";
    is(&format!("{ok}A : b\r\nContent-Length\t : 5\r\n\r\nA : b"), 200, 5, true);
    is(&format!("{ok}Transfer-Encoding : chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"), 200, 1, true);
    is(&format!("{ok}Connection : close,\r\n b\r\nContent-Length: 0\r\n\r\n"), 200, 0, false);
}

/// A recipient may recognize LF alone as the end of a line of the head, as browsers do.
#[test]
fn a_bare_lf_ends_a_line_of_the_head_rfc_9112_2_2() {
    is("HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", 200, 5, true);
    is("HTTP/1.1 200 OK\nContent-Length: 5\r\n\nhello", 200, 5, true);
    is("HTTP/1.1 200 OK\r\nContent-Length: 5\n\r\nhello", 200, 5, true);
    is("HTTP/1.1 200\n\nuntil the end", 200, 13, false);
    is("HTTP/1.1 200 OK\n\r\n", 200, 0, false);
    is("HTTP/1.1 204 No Content\r\n\n", 204, 0, true);
    is("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n1\r\na\r\n0\r\n\r\n", 200, 1, true);
    is("HTTP/1.1 100 Continue\n\nHTTP/1.1 204 No Content\n\n", 204, 0, true);
    // The other faults that a client may accept.
    is("HTTP/1.1 200 OK\nA: b\n c\nContent-Length : 5\n\nhello", 200, 5, true);
    is("HTTP/1.1 200 OK\nContent-Length:\n\t5\n \n\nhello", 200, 5, true);
    // The content that follows looks like fields.
    is("HTTP/1.1 200 OK\nContent-Length: 9\n\n a : b\n c", 200, 9, true);
    let many = "A: b\n".repeat(100);
    is(&format!("HTTP/1.1 200 OK\n{many}Content-Length: 1\n\nx"), 200, 1, true);
}

#[test]
fn contradictions_and_broken_syntax_are_refused() {
    for rest in [
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "Content-Length: 1, 1\r\n\r\na",
        "Content-Length: +1\r\n\r\na",
        "Content-Length \r\n: 1\r\n\r\na",
        "Content Length : 1\r\n\r\na",
        " A: b\r\n\r\n",
        "A\r\n : b\r\n\r\n",
        "Transfer-Encoding: chunked, gzip\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\n\n1\nx\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\n\n0\r\n\n",
        "A: b\rContent-Length: 1\n\na",
        " A: b\n\n",
        "Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
    ] {
        let got = whole(&format!("HTTP/1.1 200 OK\r\n{rest}"));
        assert!(matches!(got, Err(ReplyError::Syntax(_))), "{rest:?}: {got:?}");
    }
    let old = whole("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert!(matches!(old, Err(ReplyError::Syntax(_))), "{old:?}");
}

#[test]
fn a_premature_close_is_detected() {
    assert_eq!(whole(""), Err(ReplyError::Empty));
    for wire in [
        "H",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r",
        "HTTP/1.1 100 Continue\r\n\r\n",
    ] {
        assert_eq!(whole(wire), Err(ReplyError::Truncated), "{wire:?}");
    }
}

#[test]
fn interim_replies_and_heads_are_bounded() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\n";
    let last = "HTTP/1.1 204 No Content\r\n\r\n";
    let most = interim.repeat(MAX_INTERIM as usize);
    is(&format!("{most}{last}"), 204, 0, true);
    assert_eq!(whole(&format!("{most}{interim}{last}")), Err(ReplyError::TooManyInterim));

    let long = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(1 << 20));
    assert!(matches!(whole(&long), Err(ReplyError::HeadTooLong(_))));
    let long = format!("HTTP/1.1 200 {}", "x".repeat(1 << 20));
    assert_eq!(whole(&long), Err(ReplyError::StatusLine));
    let fields = |count: usize| {
        let others = "A: b\r\n".repeat(count - 1);
        format!("HTTP/1.1 200 OK\r\n{others}Content-Length: 1\r\n\r\nx")
    };
    for count in [limits::MAX_FIELDS, limits::MAX_FIELDS + 1, MAX_FIELDS] {
        let read = read(fields(count).as_bytes(), false, 1 << 20);
        assert_eq!(read.map(|(reply, _)| reply.body), Ok(1), "{count}");
    }
    assert!(matches!(whole(&fields(MAX_FIELDS + 1)), Err(ReplyError::HeadTooLong(_))));
    let large = format!("HTTP/1.1 204 No\r\nA: {}\r\n\r\n", "x".repeat(200 << 10));
    assert_eq!(read(large.as_bytes(), false, 1000).map(|(reply, _)| reply.status), Ok(204));
}

#[test]
fn replies_follow_one_another() {
    let wire = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nbc";
    let mut decoder = Decoder::new();
    let mut at = 0;
    let mut statuses = Vec::new();
    while at < wire.len() {
        decoder.begin(false);
        let output = decoder.feed(&wire[at..]).unwrap();
        at += output.consumed;
        statuses.push(output.reply.unwrap().status);
        // Nothing is consumed until the next `begin`.
        assert_eq!(decoder.feed(&wire[at..]).unwrap().consumed, 0);
    }
    assert_eq!(statuses, [200, 404]);
}

proptest! {
    // Regressions are added to a table as separate cases.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same_reply(
        body in proptest::collection::vec(any::<u8>(), 0..300),
        chunk in 1usize..50,
        is_chunked: bool,
        cuts in proptest::collection::vec(1usize..60, 1..200),
    ) {
        let mut wire = b"HTTP/1.1 200 OK\r\nX: y\r\n".to_vec();
        if is_chunked {
            wire.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for chunk in body.chunks(chunk) {
                wire.extend_from_slice(format!("{:x};e=\"q\"\r\n", chunk.len()).as_bytes());
                wire.extend_from_slice(chunk);
                wire.extend_from_slice(b"\r\n");
            }
            wire.extend_from_slice(b"0\r\nT: u\r\n\r\n");
        } else {
            wire.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            wire.extend_from_slice(&body);
        }
        let len = wire.len();
        wire.extend_from_slice(b"HTTP/1.1 rest");

        let mut decoder = Decoder::new();
        decoder.begin(false);
        let (mut at, mut cuts) = (0, cuts.into_iter().cycle());
        let reply = loop {
            let end = (at + cuts.next().unwrap()).min(wire.len());
            let output = decoder.feed(&wire[at..end]).unwrap();
            at += output.consumed;
            if let Some(reply) = output.reply {
                break reply;
            }
        };
        prop_assert_eq!(reply, Reply { status: 200, body: body.len() as u64, keep_alive: true });
        prop_assert_eq!(at, len);
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(
        bytes in proptest::collection::vec(any::<u8>(), 0..400), piece in 1usize..20, is_head: bool,
    ) {
        let _ = read(&bytes, is_head, piece);
        let wire = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &bytes[..]].concat();
        let _ = read(&wire, is_head, piece);
    }
}
