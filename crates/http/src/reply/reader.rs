//! Reads replies to pass them on: fields in order, content where it lies.
//!
//! What an origin sends is hostile: whoever stands between it and others must not let a reply mean
//! two things. So everything in which recipients differ is refused, though a browser takes it: folded
//! lines, lengths given twice, transfer codings nobody asked for, content where there can be none.
//!
//! One thing is mended instead, because RFC 9112 §5.1 asks whoever passes replies on to do so: white space
//! between a name and its colon is removed. The field then counts as the one that it names, for the framing
//! too. In trailers it is refused: they are read as those of requests are, where it must be (§5.1).

use super::{
    MAX_INTERIM, ReplyError,
    head::{SWITCHING, StatusLine, note},
    head_buffer::HeadBuffer,
};
use crate::{
    Limits, body,
    fields::{self, Field, Fields, SectionLimits},
    limits::MAX_FIELDS,
    message_framing::{MessageFraming, TransferEncoding},
    request::{Framing, Version},
    syntax,
};

/// What the reply's meaning depends on in its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// The method was HEAD: there is no content, whatever the fields say (§6.3).
    pub head: bool,
    /// The request had `Upgrade`: 101 is an answer to it. Otherwise it is
    /// [`ReplyError::Unsolicited`].
    pub upgrade: bool,
}

/// How long the content is, as far as the head tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// There is none: the method or the status says so. A `Content-Length` among the fields is then
    /// that of what a GET would have got.
    None,
    /// So many octets.
    Length(u64),
    /// Told at its end, by the last chunk.
    Chunked,
    /// Until the connection closes: nobody can tell whether it is whole.
    UntilClose,
}

/// The head of a reply.
#[derive(Clone, Debug)]
pub struct ReplyHead<'b> {
    /// 100 to 599, or what a server sends that is none, up to 999, which is to be taken for a 5xx
    /// (RFC 9110 §15). Never less: without its three digits it could not be passed on.
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

    /// The fields that are for the next recipient too: without those about this connection, which are
    /// `Connection`, what it names, and those that are always (RFC 9110 §7.6.1), and without
    /// `Transfer-Encoding`, which is undone here.
    pub fn forwarded(&self) -> impl Iterator<Item = Field<'b>> + Clone + use<'b> {
        let section = self.section;
        let lines = |section| Fields::new(section).filter(|field| field.is(b"connection"));
        // Mostly there is one line, or none: then no field costs another walk.
        let first = lines(section).next().map_or(&[][..], |line| line.value);
        let rest = if lines(section).nth(1).is_some() { section } else { &[][..] };
        Fields::new(section).filter(move |field| {
            let is_named = || {
                let later = lines(rest).skip(1).map(|line| line.value);
                std::iter::once(first)
                    .chain(later)
                    .flat_map(syntax::list)
                    .any(|option| option.eq_ignore_ascii_case(field.name))
            };
            !HOP_BY_HOP.iter().any(|name| field.is(name)) && !is_named()
        })
    }
}

const HOP_BY_HOP: [&[u8]; 7] = [
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// What follows on the connection after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another request may be sent. Octets that have come already belong to nothing that was asked:
    /// where there are some the connection is to be closed.
    Request,
    /// Nothing: it is to be closed.
    Close,
    /// No more HTTP: what follows belongs to the protocol that was switched to.
    Switched,
}

/// What one call of [`Reader::read`] found.
#[derive(Clone, Debug)]
pub enum Event<'b> {
    /// All octets are taken, and more are needed.
    NeedMore,
    /// An interim reply (1xx other than 101); the final one follows.
    Interim(ReplyHead<'b>),
    /// The head of the final reply.
    Head(ReplyHead<'b>),
    /// Content, without its framing; never empty.
    Content(&'b [u8]),
    /// The reply is whole.
    End {
        /// The trailer fields, in order. They are never to be put among the header's fields without
        /// knowing what they mean (RFC 9110 §6.5.1). Those that would frame a message frame nothing
        /// here, where it is over, and are not to be passed on.
        trailers: Fields<'b>,
        /// What follows.
        next: Next,
    },
}

/// An event, and how far the octets are dealt with.
#[derive(Clone, Debug)]
pub struct ReadOutput<'b> {
    /// How many of the octets given have been read; the next call wants those behind them.
    pub consumed: usize,
    /// What these octets say.
    pub event: Event<'b>,
}

/// Reads the replies of one connection strictly, one after the other, and yields what they say.
///
/// A head that comes whole is read where it lies; of one in pieces a copy is kept until it is whole,
/// and of trailer fields one until the next call, at most as long as the limits let them be. Content
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
///         Event::NeedMore => unreachable!("here all is there; else: receive"),
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
    /// A head in pieces.
    head_buffer: HeadBuffer,
    /// What is gathered was yielded by the last call.
    head_was_returned: bool,
    /// The end was yielded by the last call.
    end_was_returned: bool,
    interim: u32,
}

#[derive(Clone, Debug)]
enum State {
    /// No reply is awaited.
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

/// A head that was read, as places in its octets.
struct HeadInfo {
    line: StatusLine,
    len: usize,
    content: Content,
    next: Next,
}

impl Reader {
    /// Fit for a front end: a status line of 8 KiB, 64 KiB of fields, content of any length.
    pub const LIMITS: Limits = Limits {
        request_line: 8 << 10,
        header_section: 64 << 10,
        fields: MAX_FIELDS,
        body: u64::MAX,
        chunk_line: 1 << 10,
        trailer_section: 16 << 10,
    };

    /// For a new connection. `request_line` of the limits is that of the status line.
    pub fn new(limits: Limits) -> Self {
        let (request_info, state) = (RequestInfo::default(), State::Idle);
        Self {
            limits,
            request_info,
            state,
            head_buffer: HeadBuffer::default(),
            head_was_returned: false,
            end_was_returned: false,
            interim: 0,
        }
    }

    /// Makes ready for the reply to a request that was sent.
    pub fn begin(&mut self, request_info: RequestInfo) {
        self.request_info = request_info;
        self.state = State::Head;
        self.head_buffer.clear();
        self.head_was_returned = false;
        self.end_was_returned = false;
        self.interim = 0;
    }

    /// Takes the octets that came next, up to one event; call it again with what was not consumed,
    /// also when that is nothing, until it says [`Event::NeedMore`] or [`Event::End`].
    ///
    /// # Errors
    /// [`ReplyError`]: the connection is of no more use.
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

    /// Tells that the peer closed the connection: the end of a reply that is delimited by it.
    ///
    /// # Errors
    /// [`ReplyError::Empty`] when no reply had begun, [`ReplyError::Truncated`] when one was not whole.
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

    /// The octets of a head in pieces that are held in memory now.
    pub fn buffered_bytes(&self) -> usize {
        self.head_buffer.len()
    }

    fn read_head<'b>(&'b mut self, bytes: &'b [u8]) -> Result<ReadOutput<'b>, ReplyError> {
        let before = self.head_buffer.len();
        let max = self.limits.head();
        let found = match self.head_buffer.offer(bytes, max) {
            // Nothing came, or nothing that could be the end.
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

    /// Reads once more what was refused, without the white space before colons. That may have been the
    /// only fault; if not, it is refused as before.
    #[cold]
    fn parse_without_space_before_colon(
        &mut self,
        bytes: &[u8],
        max: usize,
    ) -> Result<Option<HeadInfo>, ReplyError> {
        let head_bytes = self.head_buffer.make_mutable(bytes, max);
        let Some(line) = StatusLine::parse(head_bytes, self.limits.request_line)? else {
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
    /// Reads the head at the start of `head_bytes`; nothing while it is not whole.
    fn parse(
        head_bytes: &[u8],
        request_info: RequestInfo,
        limits: &Limits,
    ) -> Result<Option<Self>, ReplyError> {
        let Some(line) = StatusLine::parse(head_bytes, limits.request_line)? else {
            return Ok(None);
        };
        // Written as a number it would have fewer digits than a status line has.
        if line.status < 100 {
            return Err(ReplyError::StatusLine);
        }
        let mut framing_fields = MessageFraming::new();
        let section = &head_bytes[line.len..];
        let section_limits = SectionLimits::for_header(limits);
        let Some(len) =
            fields::parse(section, section_limits, |field| note(&mut framing_fields, field))?
        else {
            return Ok(None);
        };
        let content = content_of(&line, &framing_fields, request_info)?;
        if matches!(content, Content::Length(length) if length > limits.body) {
            return Err(TOO_LONG);
        }
        let is_misleading = line.status == 204
            && (framing_fields.transfer != TransferEncoding::Absent
                || framing_fields.content_length.is_some_and(|n| n > 0));
        let next = match line.status {
            SWITCHING if !request_info.upgrade => return Err(ReplyError::Unsolicited),
            SWITCHING => Next::Switched,
            // Others might wait for content that this says there is: no reply after it is safe.
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

/// How the content is framed (§6.3), where that is beyond doubt.
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
            return Err(ReplyError::Syntax("a transfer coding that was not asked for"));
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
