use super::*;
use crate::{
    protocol::{KeepAlive, rules::Rules},
    reactor::{ClientId, ExchangeId, Reactor},
    service::{ServiceContext, worker_state::WorkerState},
    settings::Settings,
    transport::outbox::Next,
};
use pollux_http::request::Version;

const HTTP_11: KeepAlive = KeepAlive { alive: true, version: Version::Http11 };
const HTTP_10: KeepAlive = KeepAlive { alive: true, version: Version::Http10 };

/// Returns what `write` writes for a client with these terms, without the dates.
fn written(
    keep_alive: KeepAlive,
    is_head: bool,
    write: impl FnOnce(&RequestContext<'_>, &mut ResponseWriter<'_>),
) -> String {
    let mut config = Settings::new(".");
    config.server_name = None;
    config.headers = vec![("X-Added".into(), "1".into())];
    let rules = Rules::new(&config);
    let (mut worker, mut reactor) = (WorkerState::new(None), Reactor::default());
    let id = ExchangeId { client: ClientId { fd: 3, generation: 1 }, number: 1 };
    let mut terms = ExchangeTerms::of_refusal(is_head, 0);
    terms.keep_alive = keep_alive;
    let mut outbox = Outbox::default();
    let mut context = ServiceContext { rules: &rules, worker: &mut worker, reactor: &mut reactor };
    let context = context.context(id, &mut terms);
    write(&context, &mut context.writer_to(&mut outbox));
    let mut text = Vec::new();
    loop {
        let before = text.len();
        match outbox.next() {
            Next::Nothing => break,
            Next::Bytes(bytes) => text.extend_from_slice(bytes),
            Next::Two(first, second) => text.extend([first, second].concat()),
            other => panic!("{other:?}"),
        }
        outbox.advance(text.len() - before);
    }
    let text = String::from_utf8(text).unwrap();
    let line = text.find("Date: ").map(|at| at..at + 37);
    line.map_or(text.clone(), |line| [&text[..line.start], &text[line.end..]].concat())
}

#[test]
fn fields_are_added_to_the_head_behind_a_position() {
    let text = written(HTTP_11, false, |context, response| {
        response.head(context, Status::Ok).content(b"first");
        let position = response.position();
        assert!(!response.add_fields(position, b"X: none\r\n"), "no head is there yet");
        response.head(context, Status::NoContent).content(b"");
        assert!(response.add_fields(position, b"X: y\r\n"));
    });
    let first = "HTTP/1.1 200 OK\r\nX-Added: 1\r\nContent-Length: 5\r\n\r\nfirst";
    let second = "HTTP/1.1 204 No Content\r\nX: y\r\n";
    assert!(text.starts_with(&format!("{first}{second}")), "{text}");
}

#[test]
fn shared_content_is_framed_for_its_client() {
    let chunk = SharedChunk::new(b"0123456789");
    let memory: Arc<[u8]> = (*b"abc").into();
    let write = |keep, is_head, length: Option<u64>| {
        let text = written(keep, is_head, |context, response| {
            let head = response.head(context, Status::Ok);
            let mut body = match length {
                Some(length) => head.length(length),
                None => head.stream(),
            };
            body.chunk(&chunk);
            body.shared(&memory, 1..9);
            assert_eq!(body.put(b"!"), u64::from(!is_head && length != Some(11)));
            let _: Flow<()> = body.end();
        });
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    let chunked = "a\r\n0123456789\r\n2\r\nbc\r\n1\r\n!\r\n0\r\n\r\n";
    assert_eq!(write(HTTP_11, false, None), chunked);
    assert_eq!(write(HTTP_10, false, None), "0123456789bc!");
    assert_eq!(write(HTTP_11, false, Some(13)), "0123456789bc!");
    assert_eq!(write(HTTP_11, false, Some(11)), "0123456789b", "what is too much is not sent");
    assert_eq!(write(HTTP_11, true, None), "");
}

#[test]
fn a_forwarded_head_has_only_the_fields_of_its_connection() {
    let head = |keep, is_head, end: fn(HeadWriter<'_>) -> BodyWriter<'_>| {
        written(keep, is_head, |_, response| {
            let mut body = end(response.forwarded(299).lines(b"A: b\r\n"));
            body.data(b"1");
        })
    };
    let length = |keep, is_head| head(keep, is_head, |head| head.length(1));
    let start = "HTTP/1.1 299 \r\nA: b\r\n";
    assert_eq!(length(HTTP_11, false), format!("{start}Content-Length: 1\r\n\r\n1"));
    assert_eq!(length(HTTP_11, true), format!("{start}Content-Length: 1\r\n\r\n"));
    let none = head(HTTP_11, false, |head| head.without_content());
    assert_eq!(none, format!("{start}\r\n"));
    let stream = head(HTTP_10, false, |head| head.stream());
    assert_eq!(stream, format!("{start}Connection: close\r\n\r\n1"));
    let switched = head(HTTP_11, false, |head| head.switch_protocols());
    assert_eq!(switched, format!("{start}Connection: upgrade\r\n\r\n1"));
}

#[test]
fn an_interim_response_begins_no_content() {
    let write = |keep| {
        written(keep, false, |_, response| {
            let is_sent = response.interim(103, |out| out.extend_from_slice(b"A: b\r\n"));
            assert_eq!(is_sent, keep.version == Version::Http11);
            assert!(response.body().is_none());
        })
    };
    assert!(write(HTTP_11).starts_with("HTTP/1.1 103 "));
    assert!(write(HTTP_11).ends_with("\r\nA: b\r\n\r\n"));
    assert_eq!(write(HTTP_10), "");
}
