//! A connection without a socket: parses bytes into requests as a server would.

use pollux_http::{
    Limits, Status,
    body::Decoder,
    request::{self, Framing, HeadParser, ParseStatus},
};

/// A request as the server read it, with its complete body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServedRequest {
    pub(crate) line: String,
    pub(crate) host: Option<Vec<u8>>,
    pub(crate) framing: Framing,
    pub(crate) keep_alive: bool,
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

/// How reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All bytes are consumed; another request may begin.
    Clean,
    /// In the middle of a head or a body.
    Partial,
    /// With this error status, and the connection is closed.
    Rejected(Status),
    /// The last request closed the connection.
    Closed,
}

/// Feeds `wire` in pieces that end at `cuts` (offsets) and at the end of `wire`.
pub(crate) fn serve(wire: &[u8], cuts: &[usize], limits: &Limits) -> (Vec<ServedRequest>, End) {
    let mut ends: Vec<usize> = cuts.iter().copied().filter(|&cut| cut < wire.len()).collect();
    ends.push(wire.len());
    ends.sort_unstable();
    ends.dedup();

    let mut accepted: Vec<ServedRequest> = Vec::new();
    let mut parser = HeadParser::new();
    let mut body: Option<Decoder> = None;
    let mut start = 0;
    for end in ends {
        loop {
            if let Some(decoder) = &mut body {
                while !decoder.is_done() && start < end {
                    let step = match decoder.decode(&wire[start..end], limits) {
                        Ok(step) => step,
                        Err(reject) => return (accepted, End::Rejected(reject.status)),
                    };
                    assert!(step.consumed > 0 && step.data.end <= step.consumed);
                    assert_eq!(step.done, decoder.is_done());
                    let request = accepted.last_mut().expect("a body has a head");
                    request.body.extend_from_slice(&wire[start..][step.data]);
                    start += step.consumed;
                }
                if !decoder.is_done() {
                    break;
                }
                body = None;
                if !accepted.last().expect("a body has a head").keep_alive {
                    return (accepted, End::Closed);
                }
            }
            if start == end {
                break;
            }
            let (request, len) = match parser.parse(&wire[start..end], limits) {
                Ok(ParseStatus::Complete { request, len }) => (request, len),
                Ok(ParseStatus::Partial) => break,
                Err(reject) => return (accepted, End::Rejected(reject.status)),
            };
            check(&wire[start..start + len], &request);
            accepted.push(ServedRequest {
                line: String::from_utf8(request.line.to_vec()).expect("the line is ASCII"),
                host: request.host.map(<[u8]>::to_vec),
                framing: request.framing,
                keep_alive: request.keep_alive,
                fields: request.fields().map(|f| (f.name.to_vec(), f.value.to_vec())).collect(),
                body: Vec::new(),
            });
            body = Some(Decoder::new(request.framing));
            start += len;
        }
    }
    let is_clean = start == wire.len() && body.is_none();
    (accepted, if is_clean { End::Clean } else { End::Partial })
}

/// Checks properties that every accepted head must have.
fn check(head: &[u8], request: &request::Request<'_>) {
    let text = head.escape_ascii();
    for (i, &byte) in head.iter().enumerate() {
        let is_sound = match byte {
            b'\n' => i > 0 && head[i - 1] == b'\r',
            b'\r' => head.get(i + 1) == Some(&b'\n'),
            b'\t' => true,
            _ => byte >= b' ' && byte != 0x7f,
        };
        assert!(is_sound, "byte {i} ({byte:#x}) of {text}");
    }
    assert!(head.ends_with(b"\r\n\r\n"), "{text}");
    let count = |name: &[u8]| request.fields().filter(|f| f.is(name)).count();
    assert!(count(b"host") <= 1, "{text}");
    assert!(count(b"host") == 1 || request.version == request::Version::Http10, "{text}");
    assert!(count(b"content-length") <= 1, "{text}");
    match request.framing {
        Framing::Chunked => {
            assert_eq!((count(b"content-length"), count(b"transfer-encoding")), (0, 1), "{text}");
        }
        Framing::Length(length) => {
            assert!(length > 0 && count(b"transfer-encoding") == 0, "{text}");
        }
        Framing::None => assert_eq!(count(b"transfer-encoding"), 0, "{text}"),
    }

    // httparse, which is lenient, must parse the same.
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut theirs = httparse::Request::new(&mut headers);
    match theirs.parse(head) {
        Ok(httparse::Status::Complete(len)) => {
            assert_eq!(len, head.len(), "{text}");
            assert_eq!(theirs.method.map(str::as_bytes), Some(request.method.as_bytes()), "{text}");
            let theirs = theirs.headers.iter().map(|h| (h.name.as_bytes(), h.value));
            assert!(theirs.eq(request.fields().map(|f| (f.name, f.value))), "{text}");
        }
        // It does not accept HTTP/1.2.
        Err(httparse::Error::Version) => {
            let minor = request.line[request.line.len() - 1];
            assert!((b'2'..=b'9').contains(&minor), "{text}");
        }
        other => panic!("httparse says {other:?} of {text}"),
    }
}
