//! Replies of Redis (RESP): the result does not depend on the pieces in which they arrive, every request has one
//! answer at the end, and a hostile server cannot make the client panic or answer twice.

use pollux_guestbook::{
    Answer, Request, StoreError,
    redis::{Session, Url},
};

/// Number of requests in flight: visits and posts in turn.
const REQUESTS: u32 = 8;

type Answers = Vec<(u32, Result<Answer, StoreError>)>;

fn answers(url: &Url, wire: &[u8], size: usize) -> Answers {
    let mut session: Session<u32> = Session::new(url);
    for ticket in 0..REQUESTS {
        let request = match ticket % 2 {
            0 => Request::Visit { shown: 10 },
            _ => Request::Post { remark: b"remark".to_vec() },
        };
        session.begin(ticket, &request);
    }
    let mut failure = StoreError::Unreachable("the end".into());
    for piece in wire.chunks(size.min(wire.len().max(1))) {
        session.sent(session.output().len());
        // The planted fault: an empty line is treated as the end of the connection.
        let is_lost = crate::planted() && piece.starts_with(b"\r\n");
        if is_lost {
            break;
        }
        if let Err(error) = session.receive(piece) {
            failure = error;
            break;
        }
    }
    session.fail(&failure);
    std::iter::from_fn(|| session.next_answer()).collect()
}

/// The input is the size of the pieces, whether there is a login, and the bytes that the server sends.
pub fn check(data: &[u8]) {
    let Some((size, rest)) = crate::in_pieces(data) else { return };
    let Some((&login, wire)) = rest.split_first() else { return };
    let url = if login & 1 == 0 { "redis://localhost" } else { "redis://user:word@localhost/3" };
    let url: Url = url.parse().expect("a URL");
    let whole = answers(&url, wire, usize::MAX);
    let tickets: Vec<u32> = whole.iter().map(|(ticket, _)| *ticket).collect();
    assert!(tickets.iter().copied().eq(0..REQUESTS), "one answer each, in order: {tickets:?}");
    let pieces = answers(&url, wire, size);
    assert_eq!(whole, pieces, "in pieces of {size}: {}", wire.escape_ascii());
}
