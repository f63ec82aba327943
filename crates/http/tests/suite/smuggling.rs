//! Request smuggling: bytes in which one recipient sees a request and another one a body.
//!
//! Each attack contains `GET /smuggled`. It must never be served as a request of its own, unless
//! every recipient that follows the RFC would serve it. An attack ends with an error response and a
//! closed connection.

use crate::common::{End, serve};
use pollux_http::{Limits, Status};

const VICTIM: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// Returns the served targets and how the connection ended, for `wire` in one piece and in single
/// bytes.
fn outcome(wire: &[u8]) -> (Vec<String>, End) {
    let each: Vec<usize> = (0..wire.len()).collect();
    let (whole, end) = serve(wire, &[], &Limits::DEFAULT);
    let (pieces, piecewise_end) = serve(wire, &each, &Limits::DEFAULT);
    assert_eq!(whole, pieces, "{}", wire.escape_ascii());
    match (end, piecewise_end) {
        (End::Rejected(_), End::Rejected(_) | End::Partial) => {}
        _ => assert_eq!(end, piecewise_end, "{}", wire.escape_ascii()),
    }
    let targets = whole
        .iter()
        .map(|accepted| accepted.line.split(' ').nth(1).unwrap_or_default().to_string())
        .collect();
    (targets, end)
}

/// `attack` is rejected with `status` before anything after it is served. `served` requests precede
/// the rejection.
#[track_caller]
fn assert_rejected_after(served: usize, status: Status, attack: &[u8]) {
    for tail in ["", VICTIM] {
        let wire = [attack, tail.as_bytes()].concat();
        let (targets, end) = outcome(&wire);
        let text = wire.escape_ascii();
        assert!(!targets.iter().any(|target| target == "/smuggled"), "served: {text}");
        assert_eq!(targets.len(), served, "{text}");
        assert_eq!(end, End::Rejected(status), "{text}");
    }
}

fn post(lines: &str, rest: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n{rest}").into_bytes()
}

#[test]
fn the_harness_serves_honest_requests() {
    let honest = [&post("Content-Length: 3\r\n", "abc")[..], VICTIM.as_bytes()].concat();
    assert_eq!(outcome(&honest), (vec!["/".into(), "/smuggled".into()], End::Clean));
    let chunked = post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n");
    let honest = [&chunked[..], VICTIM.as_bytes()].concat();
    assert_eq!(outcome(&honest), (vec!["/".into(), "/smuggled".into()], End::Clean));
    // A smuggled request inside a body is content.
    let inside = post(&format!("Content-Length: {}\r\n", VICTIM.len()), VICTIM);
    assert_eq!(outcome(&inside), (vec!["/".into()], End::Clean));
}

#[test]
fn cl_te_and_te_cl() {
    let inner = format!("0\r\n\r\n{VICTIM}");
    let length = inner.len();
    for lines in [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n".into(),
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n".into(),
        format!("Content-Length: {length}\r\nTransfer-Encoding: identity\r\n"),
        format!("Content-Length: {length}\r\nTransfer-Encoding:\r\n"),
        format!("Content-Length: {length}\r\nA: b\r\nTransfer-Encoding: gzip, chunked\r\n"),
        format!("Content-Length: {length}\r\nTransfer-Encoding: nonsense\r\n"),
    ] {
        assert_rejected_after(0, Status::BadRequest, &post(&lines, &inner));
    }
}

#[test]
fn te_te() {
    let inner = "5c\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n";
    for lines in [
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding\t: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-encoding: cow\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        " Transfer-Encoding: chunked\r\n",
        "X: X\nTransfer-Encoding: chunked\r\n",
        "X: X\rTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding\n: chunked\r\n",
        "Transfer-Encoding\r\n: chunked\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
        "Transfer-Encoding:\n chunked\r\n",
        "X: y\r\n Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding: \x0cchunked\r\n",
        "Transfer-Encoding: chunked\x0b\r\n",
        "Transfer-Encoding: \x00chunked\r\n",
        "Transfer-Encoding: chunked\x00\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: 'chunked'\r\n",
        "Transfer-Encoding: chunk\r\n",
        "Transfer-Encoding: chunked;\r\n",
        "Transfer-Encoding: chunked;a=b\r\n",
        "Transfer-Encoding: chunked foo\r\n",
        "Transfer-Encoding: \u{a0}chunked\r\n",
        "Transfer-Encoding: ch\u{212a}nked\r\n",
        "Transfer-Encoding\0: chunked\r\n",
        "Transfer-Encoding\u{a0}: chunked\r\n",
        "\0Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\r\n",
        "Transfer-Encoding: chunked\n",
        "Foo: bar\r\n\rTransfer-Encoding: chunked\r\n",
    ] {
        assert_rejected_after(0, Status::BadRequest, &post(lines, inner));
    }
    // Valid notations, which must be recognised.
    for lines in [
        "Transfer-Encoding: chunked\r\n",
        "TRANSFER-ENCODING:\t chunked \t\r\n",
        "transfer-encoding:cHuNkEd\r\n",
        "Transfer-Encoding: , chunked,\r\n",
    ] {
        let wire = post(lines, &format!("{:x}\r\n{VICTIM}\r\n0\r\n\r\n", VICTIM.len()));
        assert_eq!(outcome(&wire), (vec!["/".into()], End::Clean), "{lines}");
    }
    // Other field names without meaning.
    for lines in
        ["Transfer_Encoding: chunked\r\n", "X-Transfer-Encoding: chunked\r\n", "TE: chunked\r\n"]
    {
        let wire = post(lines, VICTIM);
        assert_eq!(outcome(&wire), (vec!["/".into(), "/smuggled".into()], End::Clean), "{lines}");
    }
}

#[test]
fn content_length_tricks() {
    for lines in [
        "Content-Length: 0\r\nContent-Length: 38\r\n",
        "Content-Length: 38\r\nContent-Length: 38\r\n",
        "Content-Length: 0, 38\r\n",
        "Content-Length: 38, 38\r\n",
        "Content-Length: 38,\r\n",
        "Content-Length: +38\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 0x26\r\n",
        "Content-Length: 3 8\r\n",
        "Content-Length: 38;a\r\n",
        "Content-Length: 38.0\r\n",
        "Content-Length: 1e1\r\n",
        "Content-Length: \"38\"\r\n",
        "Content-Length:\r\n",
        "Content-Length: \u{661}\r\n",
        "Content-Length : 38\r\n",
        " Content-Length: 38\r\n",
        "Content-Length: 38\n",
        "Content-Length: \r\n 38\r\n",
        "Content-Length\0: 38\r\n",
        "Content-Length: 38\0\r\n",
        "Content-Length: 0\rContent-Length: 38\r\n",
        "X: y\nContent-Length: 38\r\n",
    ] {
        assert_rejected_after(0, Status::BadRequest, &post(lines, ""));
    }
    // A length that wraps to a small number in 64 bits, and one that does in 32.
    for lines in [
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length: 18446744073709551621\r\n",
        "Content-Length: 340282366920938463463374607431768211456\r\n",
    ] {
        assert_rejected_after(0, Status::BadRequest, &post(lines, ""));
    }
    assert_rejected_after(0, Status::ContentTooLarge, &post("Content-Length: 4294967296\r\n", ""));
}

#[test]
fn chunk_tricks() {
    for body in [
        // Sizes.
        "0x3\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        " 3\r\nabc\r\n0\r\n\r\n",
        "3 \r\nabc\r\n0\r\n\r\n",
        "3\t\r\nabc\r\n0\r\n\r\n",
        "1_0\r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        ";a\r\n\r\n",
        "g\r\n",
        "10000000000000003\r\nabc\r\n0\r\n\r\n",
        "00000000000000003\r\nabc\r\n0\r\n\r\n",
        "3,3\r\nabc\r\n0\r\n\r\n",
        // Line ends: of the size, of the data, of the last chunk, of the whole.
        "3\nabc\r\n0\r\n\r\n",
        "3\rabc\r\n0\r\n\r\n",
        "3\r\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "3\r\nabc\r0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabc\r\r\n0\r\n\r\n",
        "3\r\nabc\r\n\r\n0\r\n\r\n",
        "0\n\r\n",
        "0\r\n\n",
        "0\r\n\r\r\n",
        // Extensions (TERM.EXT, EXT.TERM).
        "3;\nabc\r\n0\r\n\r\n",
        "3;a\nabc\r\n0\r\n\r\n",
        "3;a=b\nabc\r\n0\r\n\r\n",
        "3;a\rabc\r\n0\r\n\r\n",
        "3;a=\"\r\n\"\r\nabc\r\n0\r\n\r\n",
        "3;a=\"\nabc\r\n0\r\n\r\n",
        "3;\r\nabc\r\n0\r\n\r\n",
        "3;a=\r\nabc\r\n0\r\n\r\n",
        "3;a=\"x\r\nabc\r\n0\r\n\r\n",
        "3;a\0\r\nabc\r\n0\r\n\r\n",
        "3 a\r\nabc\r\n0\r\n\r\n",
        "3;a b\r\nabc\r\n0\r\n\r\n",
        // Trailers.
        "0\r\nA: b\n\r\n",
        "0\r\nA: b\r\n\n",
        "0\r\nA b\r\n\r\n",
        "0\r\nA : b\r\n\r\n",
        "0\r\n A: b\r\n\r\n",
        "0\r\nA: b\r\n c\r\n\r\n",
        "0\r\nA: \0\r\n\r\n",
        "0\r\nA\r\n\r\n",
        "0\r\n: b\r\n\r\n",
        "0\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        assert_rejected_after(1, Status::BadRequest, &post("Transfer-Encoding: chunked\r\n", body));
    }
    for body in ["ffffffffffffffff\r\n", "100001\r\n", "1\r\na\r\nffffffffffffffff\r\n"] {
        let wire = post("Transfer-Encoding: chunked\r\n", body);
        assert_rejected_after(1, Status::ContentTooLarge, &wire);
    }
}

#[test]
fn trailers_do_not_frame() {
    // A length or a coding after the body does not affect what follows.
    let body = "0\r\nContent-Length: 38\r\nTransfer-Encoding: chunked\r\nHost: b\r\n\r\n";
    let wire = [&post("Transfer-Encoding: chunked\r\n", body)[..], VICTIM.as_bytes()].concat();
    assert_eq!(outcome(&wire), (vec!["/".into(), "/smuggled".into()], End::Clean));
}

#[test]
fn splitting_by_the_request_line() {
    for wire in [
        "GET / HTTP/1.1\r\nHost: a\r\n\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\rX HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET /x\0 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a/ http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET http://a@b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\x0b\r\n\r\n",
        "\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        assert_rejected_after(0, Status::BadRequest, wire.as_bytes());
    }
    assert_rejected_after(0, Status::VersionNotSupported, b"GET / HTTP/0.9\r\nHost: a\r\n\r\n");
    assert_rejected_after(0, Status::BadRequest, b"GET /\r\n");
}

#[test]
fn http_1_0_with_chunks_and_after_close() {
    let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_rejected_after(0, Status::BadRequest, old.as_bytes());
    // Bytes after a request that closes the connection are not read.
    for first in [
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab",
    ] {
        let wire = format!("{first}{VICTIM}");
        assert_eq!(outcome(wire.as_bytes()), (vec!["/".into()], End::Closed), "{first}");
    }
}

#[test]
fn a_body_on_get_is_read_not_skipped() {
    let wire =
        format!("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{VICTIM}", VICTIM.len());
    assert_eq!(outcome(wire.as_bytes()), (vec!["/".into()], End::Clean));
}

#[test]
fn a_foreign_coding_is_not_guessed() {
    let body = "3\r\nabc\r\n0\r\n\r\n";
    for lines in ["Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: cow, chunked\r\n"] {
        assert_rejected_after(0, Status::NotImplemented, &post(lines, body));
    }
}
