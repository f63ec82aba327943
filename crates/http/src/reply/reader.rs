//! Reads replies in order to forward them: fields in order, content without copies.
//!
//! An origin may be hostile, and a proxy must not forward a reply that two recipients could read
//! differently. Everything that recipients treat in different ways is rejected, even if browsers
//! accept it: folded lines, repeated lengths, unrequested transfer codings, and content where none
//! is allowed.
//!
//! One fault is repaired instead, because RFC 9112 §5.1 requires it of a proxy: white space between
//! a name and its colon is removed. The field then counts under its name, for the framing too. In
//! trailers it is rejected, because they are parsed like those of requests, where §5.1 requires
//! rejection.

use super::{
    MAX_INTERIM, ReplyError,
    head::{LineEnd, SWITCHING, StatusLine, add},
    head_buffer::HeadBuffer,
};
use crate::{
    Limits, Reject, body,
    fields::{self, Field, Fields, SectionLimits},
    limits::MAX_FIELDS,
    message_framing::{MessageFraming, TransferEncoding},
    request::{Framing, Version},
    syntax,
};

/// Properties of the request that determine how its reply is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// The method was HEAD, so the reply has no content, regardless of its fields (§6.3).
    pub head: bool,
    /// The request had `Upgrade`, so 101 is a valid reply. Otherwise 101 is
    /// [`ReplyError::Unsolicited`].
    pub upgrade: bool,
}

/// The length of the content, as far as the head states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No content, because of the method or the status. A `Content-Length` field is then that of
    /// the corresponding GET.
    None,
    /// This many bytes.
    Length(u64),
    /// The last chunk ends the content.
    Chunked,
    /// The end of the connection ends the content. Its completeness cannot be verified.
    UntilClose,
}

/// The head of a reply.
#[derive(Clone, Debug)]
pub struct ReplyHead<'b> {
    /// The status code, 100 to 599. Invalid codes up to 999 are accepted and treated as 5xx (RFC
    /// 9110 §15). Never less than 100, since a proxy could not forward it with three digits.
    pub status: u16,
    /// The version of the status line.
    pub version: Version,
    /// The length of the content.
    pub content: Content,
    section: &'b [u8],
}

impl<'b> ReplyHead<'b> {
    /// All fields in order.
    pub fn fields(&self) -> Fields<'b> {
        Fields::new(self.section)
    }

    /// The end-to-end fields, which are to be forwarded: without `Connection`, the fields that it
    /// names, the other hop-by-hop fields (RFC 9110 §7.6.1), and `Transfer-Encoding`, which is
    /// decoded here. Hop-by-hop fields written with underscores are left out, too.
    pub fn forwarded(&self) -> impl Iterator<Item = Field<'b>> + Clone + use<'b> {
        let section = self.section;
        let mut lines: [&'b [u8]; MAX_CONNECTION_LINES] = [b""; MAX_CONNECTION_LINES];
        let mut count = 0;
        let found = Fields::new(section).filter(|field| field.is(b"connection"));
        for (line, field) in lines.iter_mut().zip(found) {
            *line = field.value;
            count += 1;
        }
        Fields::new(section).filter(move |field| {
            let is_named = || {
                let mut options = lines[..count].iter().flat_map(|line| syntax::list(line));
                options.any(|option| option.eq_ignore_ascii_case(field.name))
            };
            !HOP_BY_HOP.iter().any(|name| field.is_alias(name)) && !is_named()
        })
    }
}

const HOP_BY_HOP: [&[u8]; 8] = [
    b"connection",
    b"http2-settings",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// The maximum number of `Connection` lines of one head, and of bytes of their values. Each field that is
/// forwarded is compared with every option, so without these limits a head could cost minutes.
const MAX_CONNECTION_LINES: usize = 8;
const MAX_CONNECTION_BYTES: usize = 1 << 10;

/// The `Connection` lines of a head so far, and the bytes of their values.
#[derive(Default)]
struct ConnectionSize {
    lines: usize,
    bytes: usize,
}

impl ConnectionSize {
    fn add(&mut self, field: &Field<'_>) -> Result<(), Reject> {
        if field.is(b"connection") {
            self.lines += 1;
            self.bytes += field.value.len();
            if self.lines > MAX_CONNECTION_LINES || self.bytes > MAX_CONNECTION_BYTES {
                return Err(Reject::bad("Connection is given too often, or is too long"));
            }
        }
        Ok(())
    }
}

/// The next state of the connection after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another request may be sent. If bytes have already arrived, they are unsolicited and the
    /// connection must be closed.
    Request,
    /// The connection must be closed.
    Close,
    /// The connection now uses the protocol that was switched to.
    Switched,
}

/// The result of [`Reader::read`].
#[derive(Clone, Debug)]
pub enum Event<'b> {
    /// All bytes were consumed, and more are needed.
    NeedMore,
    /// An interim reply (1xx other than 101). The final reply follows.
    Interim(ReplyHead<'b>),
    /// The head of the final reply.
    Head(ReplyHead<'b>),
    /// Content without its framing; never empty.
    Content(&'b [u8]),
    /// The reply is complete.
    End {
        /// The trailer fields in order. Do not merge them into the header fields without knowing
        /// their meaning (RFC 9110 §6.5.1). Trailer fields that would frame a message have no
        /// effect and must not be forwarded.
        trailers: Fields<'b>,
        /// The next state of the connection.
        next: Next,
    },
}

/// An event, and the number of bytes that it consumed.
#[derive(Clone, Debug)]
pub struct ReadOutput<'b> {
    /// The number of consumed bytes; the next call expects the bytes after them.
    pub consumed: usize,
    /// The meaning of these bytes.
    pub event: Event<'b>,
}

/// Reads the replies of one connection strictly, one after the other, and returns events.
///
/// A complete head is parsed in place. A head that arrives in pieces is copied until it is
/// complete, and trailer fields until the next call; both copies are bounded by the limits. Content
/// is never copied.
///
/// ```
/// use pollux_http::reply::{RequestInfo, Event, Next, Reader};
///
/// let mut wire: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: 1\r\n\r\nhi";
/// let mut reader = Reader::new(Reader::LIMITS);
/// reader.begin(RequestInfo::default());
/// let mut content = Vec::new();
/// loop {
///     let step = reader.read(wire)?;
///     wire = &wire[step.consumed..];
///     match step.event {
///         Event::Head(head) => assert_eq!(head.fields().count(), 2),
///         Event::Content(bytes) => content.extend_from_slice(bytes),
///         Event::End { next, .. } => break assert_eq!(next, Next::Request),
///         Event::Interim(_) => {}
///         Event::NeedMore => unreachable!("the reply is complete; a client would receive more"),
///     }
/// }
/// assert_eq!(content, b"hi");
/// # Ok::<(), pollux_http::reply::ReplyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reader {
    limits: Limits,
    request_info: RequestInfo,
    state: State,
    /// A head that arrived in pieces.
    head_buffer: HeadBuffer,
    /// The last call returned a head that borrows from `head_buffer`.
    head_was_returned: bool,
    /// The last call returned the end of the reply.
    end_was_returned: bool,
    interim: u32,
}

#[derive(Clone, Debug)]
enum State {
    /// No reply is expected.
    Idle,
    Head,
    Framed {
        decoder: body::Decoder,
        next: Next,
    },
    UntilClose {
        bytes_read: u64,
    },
}

/// A parsed head with its framing.
struct HeadInfo {
    line: StatusLine,
    len: usize,
    content: Content,
    next: Next,
}

impl Reader {
    /// Suitable limits for a front end: a status line of 8 KiB, 64 KiB of fields, content of any
    /// length.
    pub const LIMITS: Limits = Limits {
        request_line: 8 << 10,
        header_section: 64 << 10,
        fields: MAX_FIELDS,
        body: u64::MAX,
        chunk_line: 1 << 10,
        trailer_section: 16 << 10,
        https: false,
    };

    /// Creates a reader for a new connection. `request_line` of the limits applies to the status
    /// line.
    pub fn new(limits: Limits) -> Self {
        Self::with_buffer(limits, Vec::new())
    }

    /// Like [`Reader::new`], with memory for heads that arrive in pieces. Its content is discarded.
    pub fn with_buffer(limits: Limits, buffer: Vec<u8>) -> Self {
        let (request_info, state) = (RequestInfo::default(), State::Idle);
        Self {
            limits,
            request_info,
            state,
            head_buffer: HeadBuffer::with_memory(buffer),
            head_was_returned: false,
            end_was_returned: false,
            interim: 0,
        }
    }

    /// Ends the reader and returns its memory for another one; the bytes in it are not cleared.
    pub fn into_buffer(self) -> Vec<u8> {
        self.head_buffer.into_memory()
    }

    /// Prepares for the reply to the next request.
    pub fn begin(&mut self, request_info: RequestInfo) {
        self.request_info = request_info;
        self.state = State::Head;
        self.head_buffer.clear();
        self.head_was_returned = false;
        self.end_was_returned = false;
        self.interim = 0;
    }

    /// Processes bytes up to one event. Call it again with the bytes that were not consumed, even
    /// if there are none, until it returns [`Event::NeedMore`] or [`Event::End`].
    ///
    /// # Errors
    /// [`ReplyError`]: the connection cannot be used any longer.
    pub fn read<'b>(&'b mut self, bytes: &'b [u8]) -> Result<ReadOutput<'b>, ReplyError> {
        if std::mem::take(&mut self.head_was_returned) {
            self.head_buffer.clear();
        }
        if std::mem::take(&mut self.end_was_returned) {
            self.state = State::Idle;
        }
        match &mut self.state {
            State::Idle if bytes.is_empty() => Ok(need_more(0)),
            State::Idle => Err(ReplyError::Unsolicited),
            State::Head => self.read_head(bytes),
            State::Framed { .. } => self.read_framed(bytes),
            State::UntilClose { .. } if bytes.is_empty() => Ok(need_more(0)),
            State::UntilClose { bytes_read } => {
                *bytes_read = bytes_read.saturating_add(bytes.len() as u64);
                if *bytes_read > self.limits.body {
                    return Err(TOO_LONG);
                }
                Ok(ReadOutput { consumed: bytes.len(), event: Event::Content(bytes) })
            }
        }
    }

    /// Reports that the peer closed the connection, which ends a reply that is delimited by it.
    ///
    /// # Errors
    /// [`ReplyError::Empty`] if no reply had begun, [`ReplyError::Truncated`] if it was incomplete.
    pub fn finish(&mut self) -> Result<ReadOutput<'static>, ReplyError> {
        if std::mem::take(&mut self.end_was_returned) {
            self.state = State::Idle;
        }
        match std::mem::replace(&mut self.state, State::Idle) {
            State::UntilClose { .. } => Ok(ReadOutput {
                consumed: 0,
                event: Event::End { trailers: Fields::new(b""), next: Next::Close },
            }),
            State::Idle => Err(ReplyError::Empty),
            State::Head if self.head_buffer.is_empty() && self.interim == 0 => {
                Err(ReplyError::Empty)
            }
            State::Head | State::Framed { .. } => Err(ReplyError::Truncated),
        }
    }

    /// The number of bytes that are stored for a head in pieces.
    pub fn buffered_bytes(&self) -> usize {
        self.head_buffer.len()
    }

    fn read_head<'b>(&'b mut self, bytes: &'b [u8]) -> Result<ReadOutput<'b>, ReplyError> {
        let before = self.head_buffer.len();
        let max = self.limits.head();
        let found = match self.head_buffer.offer(bytes, max) {
            // No bytes, or none that could complete the head.
            None => return self.head_buffer.store(bytes, max).map(|()| need_more(bytes.len())),
            Some([]) => return Ok(need_more(0)),
            Some(head_bytes) => {
                match HeadInfo::parse(head_bytes, self.request_info, &self.limits) {
                    Err(ReplyError::Syntax(_)) => {
                        self.parse_without_space_before_colon(bytes, max)?
                    }
                    found => found?,
                }
            }
        };
        let Some(found) = found else {
            return self.head_buffer.store(bytes, max).map(|()| need_more(bytes.len()));
        };
        let is_interim = matches!(found.line.status, 100..=199) && found.line.status != SWITCHING;
        if is_interim {
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Err(ReplyError::TooManyInterim);
            }
        } else {
            self.state = found.state();
        }
        self.head_was_returned = true;
        let is_in_place = self.head_buffer.is_empty();
        let whole =
            if is_in_place { &bytes[..found.len] } else { self.head_buffer.prefix(found.len) };
        let head = ReplyHead {
            status: found.line.status,
            version: found.line.version,
            content: found.content,
            section: &whole[found.line.len..],
        };
        let event = if is_interim { Event::Interim(head) } else { Event::Head(head) };
        Ok(ReadOutput { consumed: found.len - before, event })
    }

    /// Parses a rejected head once more after removing the white space before colons, which may
    /// have been its only fault.
    #[cold]
    fn parse_without_space_before_colon(
        &mut self,
        bytes: &[u8],
        max: usize,
    ) -> Result<Option<HeadInfo>, ReplyError> {
        let head_bytes = self.head_buffer.make_mutable(bytes, max);
        let max_line = self.limits.request_line;
        let Some(line) = StatusLine::parse(head_bytes, max_line, LineEnd::Crlf)? else {
            return Ok(None);
        };
        let len = line.len + fields::strip_space_before_colons(&mut head_bytes[line.len..]);
        HeadInfo::parse(&head_bytes[..len], self.request_info, &self.limits)
    }

    fn read_framed<'b>(&'b mut self, bytes: &'b [u8]) -> Result<ReadOutput<'b>, ReplyError> {
        let State::Framed { decoder, next } = &mut self.state else { return Ok(need_more(0)) };
        let mut at = 0;
        while !decoder.is_done() {
            if at == bytes.len() {
                return Ok(need_more(at));
            }
            let step = decoder.decode(&bytes[at..], &self.limits)?;
            let from = at;
            at += step.consumed;
            if !step.data.is_empty() {
                let content = &bytes[from + step.data.start..from + step.data.end];
                return Ok(ReadOutput { consumed: at, event: Event::Content(content) });
            }
        }
        let trailers = Fields::new(decoder.trailers());
        self.end_was_returned = true;
        let event = Event::End { trailers, next: *next };
        Ok(ReadOutput { consumed: at, event })
    }
}

const TOO_LONG: ReplyError = ReplyError::Syntax("the content is too long");

fn need_more(consumed: usize) -> ReadOutput<'static> {
    ReadOutput { consumed, event: Event::NeedMore }
}

impl HeadInfo {
    /// Parses the head at the start of `head_bytes`; `None` if it is incomplete.
    fn parse(
        head_bytes: &[u8],
        request_info: RequestInfo,
        limits: &Limits,
    ) -> Result<Option<Self>, ReplyError> {
        let Some(line) = StatusLine::parse(head_bytes, limits.request_line, LineEnd::Crlf)? else {
            return Ok(None);
        };
        // As a number it would have fewer digits than the three that a status line requires.
        if line.status < 100 {
            return Err(ReplyError::StatusLine);
        }
        let mut framing_fields = MessageFraming::new();
        let section = &head_bytes[line.len..];
        let section_limits = SectionLimits::for_header(limits);
        let mut connection = ConnectionSize::default();
        let mut has_upgrade = false;
        let found = fields::parse(section, section_limits, |field| {
            connection.add(&field)?;
            has_upgrade |= field.is(b"upgrade") && !field.value.is_empty();
            add(&mut framing_fields, field)
        });
        let Some(len) = found.map_err(ReplyError::of_head)? else { return Ok(None) };
        let content = content_of(&line, &framing_fields, request_info)?;
        if matches!(content, Content::Length(length) if length > limits.body) {
            return Err(TOO_LONG);
        }
        let is_misleading = line.status == 204
            && (framing_fields.transfer != TransferEncoding::Absent
                || framing_fields.content_length.is_some_and(|n| n > 0));
        let next = match line.status {
            SWITCHING if !request_info.upgrade => return Err(ReplyError::Unsolicited),
            SWITCHING if !has_upgrade => {
                return Err(ReplyError::Syntax("101 without the protocol that it switches to"));
            }
            SWITCHING => Next::Switched,
            // Other recipients may expect the announced content, so no further reply is safe.
            _ if is_misleading || !framing_fields.keep_alive(line.version) => Next::Close,
            _ => Next::Request,
        };
        Ok(Some(Self { len: line.len + len, line, content, next }))
    }

    fn state(&self) -> State {
        let framing = match self.content {
            Content::None => Framing::None,
            Content::Length(length) => Framing::Length(length),
            Content::Chunked => Framing::Chunked,
            Content::UntilClose => return State::UntilClose { bytes_read: 0 },
        };
        State::Framed { decoder: body::Decoder::with_trailers(framing), next: self.next }
    }
}

/// Returns the content framing (§6.3); an error if it is ambiguous.
fn content_of(
    line: &StatusLine,
    framing_fields: &MessageFraming,
    request_info: RequestInfo,
) -> Result<Content, ReplyError> {
    let is_interim = matches!(line.status, 100..=199);
    match framing_fields.transfer {
        TransferEncoding::Absent => {}
        _ if framing_fields.content_length.is_some() => {
            return Err(ReplyError::Syntax("both Content-Length and Transfer-Encoding"));
        }
        _ if line.version == Version::Http10 => {
            return Err(ReplyError::Syntax("Transfer-Encoding in HTTP/1.0"));
        }
        TransferEncoding::Unsupported | TransferEncoding::UnsupportedThenChunked => {
            return Err(ReplyError::Syntax("a transfer coding that was not requested"));
        }
        TransferEncoding::Chunked => {}
    }
    let has_length = framing_fields.content_length.is_some_and(|length| length > 0);
    if is_interim && (has_length || framing_fields.transfer != TransferEncoding::Absent) {
        return Err(ReplyError::Syntax("an interim reply that announces content"));
    }
    if request_info.head || is_interim || matches!(line.status, 204 | 304) {
        return Ok(Content::None);
    }
    Ok(match (framing_fields.transfer, framing_fields.content_length) {
        (TransferEncoding::Absent, Some(length)) => Content::Length(length),
        (TransferEncoding::Absent, None) => Content::UntilClose,
        _ => Content::Chunked,
    })
}
