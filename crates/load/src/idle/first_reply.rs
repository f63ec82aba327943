//! The reply that a connection gets before it is idle.

use crate::{
    config::IdleKind,
    event_stream::{is_event_stream, media_type},
    outcome::Failure,
};
use pollux_http::reply::{Decoder, Event, Reader, RequestInfo};

/// Reads the reply to the only request of a connection.
pub(super) enum FirstReply {
    /// A reply that must end, and leave the connection open.
    Whole(Decoder),
    /// An event stream, which must not end. Its events are dropped.
    Stream(Reader),
}

impl FirstReply {
    /// `None` for connections that get no reply. `is_head`: the method is HEAD.
    pub(super) fn new(kind: IdleKind, is_head: bool) -> Option<Box<Self>> {
        let reply = match kind {
            IdleKind::Connect | IdleKind::Partial => return None,
            IdleKind::AfterRequest => {
                let mut decoder = Decoder::new();
                decoder.begin(is_head);
                Self::Whole(decoder)
            }
            IdleKind::Subscribe => {
                let mut reader = Reader::new(Reader::LIMITS);
                reader.begin(RequestInfo::default());
                Self::Stream(reader)
            }
        };
        Some(Box::new(reply))
    }

    /// Reads the next bytes. Returns whether the connection has what it waited for.
    ///
    /// # Errors
    /// The connection cannot become idle.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<bool, Failure> {
        match self {
            Self::Whole(decoder) => {
                let fed = decoder.feed(bytes).map_err(|_| Failure::BadReply)?;
                match fed.reply {
                    // A server that closes after the reply leaves no idle connection of this kind.
                    Some(reply) if !reply.keep_alive => Err(Failure::ClosedEarly),
                    reply => Ok(reply.is_some()),
                }
            }
            Self::Stream(reader) => has_stream(reader, bytes),
        }
    }
}

/// Whether the head of an event stream is complete. A page is refused, although it may keep the connection open.
fn has_stream(reader: &mut Reader, mut bytes: &[u8]) -> Result<bool, Failure> {
    let mut has_head = false;
    loop {
        let output = reader.read(bytes).map_err(|_| Failure::BadReply)?;
        bytes = &bytes[output.consumed..];
        match output.event {
            Event::NeedMore => return Ok(has_head),
            Event::Interim(_) | Event::Content(_) => {}
            Event::Head(head) if head.status != 200 => return Err(Failure::Status),
            Event::Head(head) if !is_event_stream(&media_type(&head)) => {
                return Err(Failure::BadReply);
            }
            Event::Head(_) => has_head = true,
            // A stream that is already over is no subscription.
            Event::End { .. } => return Err(Failure::ClosedEarly),
        }
    }
}
