//! Responses of another server that are forwarded: their status and their fields are those of the other
//! server, and the framing is this connection's own.

use super::{BodyWriter, HeadWriter, ResponseWriter, begin_body};
use crate::protocol::Framing;
use pollux_http::{
    request::Version,
    response::{Head, put_status_line},
};

/// The status of an interim response for which a client may wait before it sends its body.
const CONTINUE: u16 = 100;

impl ResponseWriter<'_> {
    /// Begins a response with any status code. `Date` and the configured fields are not added.
    pub(crate) fn forwarded(&mut self, status: u16) -> HeadWriter<'_> {
        let Self { outbox, terms } = self;
        put_status_line(outbox.bytes(), status);
        HeadWriter { outbox, terms, status }
    }

    /// Writes an interim response (RFC 9110 §15.2) with the field lines that `write` appends. Returns whether
    /// the client supports such responses; nothing is written otherwise. After a `100 Continue` the connection sends none
    /// of its own when the body is requested.
    pub(crate) fn interim(&mut self, status: u16, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        if self.terms.get().keep_alive.version == Version::Http10 {
            return false;
        }
        let out = self.outbox.bytes();
        put_status_line(out, status);
        write(out);
        out.extend_from_slice(b"\r\n");
        if status == CONTINUE {
            let mut terms = self.terms.get();
            terms.end_wait_for_continue();
            self.terms.set(terms);
        }
        true
    }
}

impl<'a> HeadWriter<'a> {
    /// Ends the head of a response that has no content, and announces no length.
    pub(crate) fn without_content(self) -> BodyWriter<'a> {
        let Self { outbox, terms, status } = self;
        begin_body(terms, status, Some(0));
        Head::resume(outbox.bytes()).lines(terms.get().keep_alive.line()).end();
        BodyWriter { outbox, terms }
    }

    /// Ends the head of a 101 (RFC 9110 §15.2.2). The bytes of the other protocol follow as content without
    /// framing.
    pub(crate) fn switch_protocols(self) -> BodyWriter<'a> {
        let Self { outbox, terms, .. } = self;
        let mut now = terms.get();
        now.framing = Framing::Close;
        terms.set(now);
        Head::resume(outbox.bytes()).lines(b"Connection: upgrade\r\n").end();
        BodyWriter { outbox, terms }
    }
}
