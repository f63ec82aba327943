//! An origin's reply in the form for the client: the head, and the content as it arrives.

use super::{
    hop::{self, ConnectionOptions, TooManyLines},
    request::RequestFacts,
};
use crate::{
    policy::HSTS,
    protocol::rules::Rules,
    service::{Flow, RequestContext, ResponseWriter},
};
use pollux_http::{
    fields::{Field, Fields},
    reply::{Content, ReplyHead},
    request::Version,
    upgrade::is_http_or_tls,
};

/// The status that is logged for a client that disconnected before it had a reply: the code that nginx uses.
const CLIENT_GONE: u16 = 499;

/// The status of a reply that names the protocols one of which the client has to use (RFC 9110 §15.5.22).
const UPGRADE_REQUIRED: u16 = 426;

/// The progress of the reply to the client.
#[derive(Debug, Default)]
pub(super) enum Reply {
    /// No final reply has begun.
    #[default]
    Pending,
    /// The head is written, and the content that the origin sends follows it.
    Begun(BegunReply),
    /// The client has its complete reply, or has disconnected. Further bytes of the origin are not for this
    /// client.
    Complete(Outcome),
}

/// A reply whose content comes from the origin.
#[derive(Debug)]
pub(super) struct BegunReply {
    outcome: Outcome,
    has_trailers: bool,
}

/// The facts about a reply for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) status: u16,
    /// The number of bytes of content.
    pub(super) sent: u64,
}

impl Reply {
    /// Returns whether the head of a final reply is written.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self, Self::Pending)
    }

    /// Returns whether the client needs no further bytes of the origin.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self, Self::Complete(_))
    }

    /// Returns the status and the number of content bytes for the client so far.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Pending => Outcome { status: CLIENT_GONE, sent: 0 },
            Self::Begun(BegunReply { outcome, .. }) | Self::Complete(outcome) => *outcome,
        }
    }

    /// Notes that the client has received a complete reply that is not the origin's.
    pub(super) fn complete(&mut self, status: u16, sent: u64) {
        *self = Self::Complete(Outcome { status, sent });
    }

    /// Notes that the client receives no further bytes.
    pub(super) fn cut(&mut self) {
        *self = Self::Complete(self.outcome());
    }

    /// Notes that a head that is not the origin's and the first `sent` bytes of its content have been
    /// written. The origin sends the rest.
    pub(super) fn continues(&mut self, status: u16, sent: u64) {
        let outcome = Outcome { status, sent };
        *self = Self::Begun(BegunReply { outcome, has_trailers: false });
    }

    /// Forwards an interim reply to a client that supports such replies.
    ///
    /// # Errors
    /// The error of [`ConnectionOptions::of`].
    pub(super) fn interim(
        &self,
        context: &RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        head: &ReplyHead<'_>,
    ) -> Result<(), TooManyLines> {
        // After a complete reply, the client would read it as another reply.
        if self.is_complete() || context.keep_alive().version == Version::Http10 {
            return Ok(());
        }
        let named = ConnectionOptions::of(head.fields())?;
        response.interim(head.status, |out| {
            put_fields(out, head, &named, false);
        });
        Ok(())
    }

    /// Writes the head, with `lines` among its fields.
    ///
    /// # Errors
    /// The error of [`ConnectionOptions::of`]; then nothing is written.
    pub(super) fn begin(
        &mut self,
        context: &RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        head: &ReplyHead<'_>,
        passed: RequestFacts,
        is_head: bool,
        lines: &[u8],
    ) -> Result<(), TooManyLines> {
        let named = ConnectionOptions::of(head.fields())?;
        let outcome = Outcome { status: head.status, sent: 0 };
        *self = Self::Begun(BegunReply { outcome, has_trailers: passed.trailers });
        // The length of the content that a GET would get, or got before (RFC 9110 §8.6).
        let tells_length = head.content == Content::None && (is_head || head.status == 304);
        let writer = response.forwarded(head.status).lines_by(|out| {
            let start = out.len();
            if !put_fields(out, head, &named, tells_length) {
                out.extend_from_slice(context.worker.clock.date().line());
            }
            out.extend_from_slice(lines);
            put_added_fields(out, start, context.rules);
        });
        let _ = match head.content {
            _ if head.status == 101 => {
                let upgrade = |out: &mut Vec<u8>| {
                    for field in head.fields().filter(|field| field.is(b"upgrade")) {
                        hop::put_line(out, field.name, field.value);
                    }
                };
                writer.lines_by(upgrade).switch_protocols()
            }
            Content::None => writer.without_content(),
            Content::Length(length) => writer.length(length),
            Content::Chunked | Content::UntilClose => writer.stream(),
        };
        Ok(())
    }

    /// Forwards content.
    pub(super) fn content(&mut self, response: &mut ResponseWriter<'_>, bytes: &[u8]) {
        if let Self::Begun(BegunReply { outcome, .. }) = self
            && let Some(mut body) = response.body()
        {
            outcome.sent += body.put(bytes);
        }
    }

    /// Ends the reply after the origin's reply has ended.
    pub(super) fn end(&mut self, response: &mut ResponseWriter<'_>, trailers: Fields<'_>) {
        if let Self::Begun(BegunReply { has_trailers, .. }) = self
            && let Some(body) = response.body()
        {
            let _: Flow<()> = body.end_by(|out| {
                if *has_trailers {
                    hop::put_trailers(out, trailers);
                }
            });
        }
    }
}

/// Appends the fields that are forwarded to the client. Returns whether `Date` is among them.
fn put_fields(
    out: &mut Vec<u8>,
    head: &ReplyHead<'_>,
    named: &ConnectionOptions<'_>,
    tells_length: bool,
) -> bool {
    let mut has_date = false;
    for field in head.fields() {
        let is_passed = if hop::is_hop_by_hop(field.name) {
            tells_length && field.is(b"content-length")
        } else {
            !named.has(field.name)
        };
        if is_passed {
            has_date |= field.is(b"date");
            hop::put_line(out, field.name, field.value);
        }
    }
    if head.status == UPGRADE_REQUIRED {
        put_protocols(out, head);
    }
    has_date
}

/// Appends the configured fields to the lines of a head, of which those from `start` on are the origin's. A response
/// has at most one Strict-Transport-Security (RFC 6797 §7.1). Browsers obey the first one, so the origin's stays.
pub(super) fn put_added_fields(out: &mut Vec<u8>, start: usize, rules: &Rules) {
    let is_hsts = |field: &Field<'_>| field.is(HSTS.as_bytes());
    let has_hsts = rules.adds_hsts && Fields::new(&out[start..]).any(|field| is_hsts(&field));
    if !has_hsts {
        return out.extend_from_slice(&rules.added_fields);
    }
    for field in Fields::new(&rules.added_fields).filter(|field| !is_hsts(field)) {
        hop::put_line(out, field.name, field.value);
    }
}

/// Appends `Upgrade` with those of the protocols in a 426 to which this proxy can switch, if there are any.
fn put_protocols(out: &mut Vec<u8>, head: &ReplyHead<'_>) {
    let fields = head.fields().filter(|field| field.is(b"upgrade"));
    let members = fields.flat_map(|field| hop::members(field.value));
    let protocols: Vec<_> = members.filter(|name| !is_http_or_tls(name)).collect();
    if !protocols.is_empty() {
        hop::put_line(out, b"Upgrade", &protocols.join(&b", "[..]));
        hop::put_line(out, b"Connection", b"upgrade");
    }
}
