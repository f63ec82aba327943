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
    BadReply, MAX_INTERIM,
    gather::Gather,
    head::{SWITCHING, StatusLine, note},
};
use crate::{
    Limits, body,
    fields::{self, Bounds, Field, Fields},
    hop::{Hop, Transfer},
    limits::MAX_FIELDS,
    request::{Framing, Version},
    syntax,
};

/// What the reply's meaning depends on in its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The method was HEAD: there is no content, whatever the fields say (§6.3).
    pub head: bool,
    /// The request had `Upgrade`: 101 is an answer to it. Otherwise it is
    /// [`BadReply::Unasked`].
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
pub struct Step<'b> {
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
/// use pollux_http::reply::{Asked, Event, Next, Reader};
///
/// let mut wire: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: 1\r\n\r\nhi";
/// let mut reader = Reader::new(Reader::LIMITS);
/// reader.begin(Asked::default());
/// let mut content = Vec::new();
/// loop {
///     let step = reader.read(wire)?;
///     wire = &wire[step.consumed..];
///     match step.event {
///         Event::Head(head) => assert_eq!(head.fields().count(), 2),
///         Event::Content(octets) => content.extend_from_slice(octets),
///         Event::End { next, .. } => break assert_eq!(next, Next::Request),
///         Event::Interim(_) => {}
///         Event::NeedMore => unreachable!("here all is there; else: receive"),
///     }
/// }
/// assert_eq!(content, b"hi");
/// # Ok::<(), pollux_http::reply::BadReply>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reader {
    limits: Limits,
    asked: Asked,
    stage: Stage,
    /// A head in pieces.
    gathered: Gather,
    /// What is gathered was yielded by the last call.
    is_spent: bool,
    /// The end was yielded by the last call.
    is_over: bool,
    interim: u32,
}

#[derive(Clone, Debug)]
enum Stage {
    /// No reply is awaited.
    Idle,
    Head,
    Framed {
        decoder: body::Decoder,
        next: Next,
    },
    UntilClose {
        octets: u64,
    },
}

/// A head that was read, as places in its octets.
struct Found {
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
        let (asked, stage) = (Asked::default(), Stage::Idle);
        Self {
            limits,
            asked,
            stage,
            gathered: Gather::default(),
            is_spent: false,
            is_over: false,
            interim: 0,
        }
    }

    /// Makes ready for the reply to a request that was sent.
    pub fn begin(&mut self, asked: Asked) {
        self.asked = asked;
        self.stage = Stage::Head;
        self.gathered.clear();
        self.is_spent = false;
        self.is_over = false;
        self.interim = 0;
    }

    /// Takes the octets that came next, up to one event; call it again with what was not consumed,
    /// also when that is nothing, until it says [`Event::NeedMore`] or [`Event::End`].
    ///
    /// # Errors
    /// [`BadReply`]: the connection is of no more use.
    pub fn read<'b>(&'b mut self, bytes: &'b [u8]) -> Result<Step<'b>, BadReply> {
        if std::mem::take(&mut self.is_spent) {
            self.gathered.clear();
        }
        if std::mem::take(&mut self.is_over) {
            self.stage = Stage::Idle;
        }
        match &mut self.stage {
            Stage::Idle if bytes.is_empty() => Ok(need_more(0)),
            Stage::Idle => Err(BadReply::Unasked),
            Stage::Head => self.read_head(bytes),
            Stage::Framed { .. } => self.read_framed(bytes),
            Stage::UntilClose { .. } if bytes.is_empty() => Ok(need_more(0)),
            Stage::UntilClose { octets } => {
                *octets = octets.saturating_add(bytes.len() as u64);
                if *octets > self.limits.body {
                    return Err(TOO_LONG);
                }
                Ok(Step { consumed: bytes.len(), event: Event::Content(bytes) })
            }
        }
    }

    /// Tells that the peer closed the connection: the end of a reply that is delimited by it.
    ///
    /// # Errors
    /// [`BadReply::Empty`] when no reply had begun, [`BadReply::Truncated`] when one was not whole.
    pub fn finish(&mut self) -> Result<Step<'static>, BadReply> {
        if std::mem::take(&mut self.is_over) {
            self.stage = Stage::Idle;
        }
        match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::UntilClose { .. } => Ok(Step {
                consumed: 0,
                event: Event::End { trailers: Fields::new(b""), next: Next::Close },
            }),
            Stage::Idle => Err(BadReply::Empty),
            Stage::Head if self.gathered.is_empty() && self.interim == 0 => Err(BadReply::Empty),
            Stage::Head | Stage::Framed { .. } => Err(BadReply::Truncated),
        }
    }

    /// The octets of a head in pieces that are held in memory now.
    pub fn held(&self) -> usize {
        self.gathered.len()
    }

    fn read_head<'b>(&'b mut self, bytes: &'b [u8]) -> Result<Step<'b>, BadReply> {
        let before = self.gathered.len();
        let max = self.limits.head();
        let found = match self.gathered.offer(bytes, max) {
            // Nothing came, or nothing that could be the end.
            None => return self.gathered.keep(bytes, max).map(|()| need_more(bytes.len())),
            Some([]) => return Ok(need_more(0)),
            Some(octets) => match Found::parse(octets, self.asked, &self.limits) {
                Err(BadReply::Syntax(_)) => self.parse_tightened(bytes, max)?,
                found => found?,
            },
        };
        let Some(found) = found else {
            return self.gathered.keep(bytes, max).map(|()| need_more(bytes.len()));
        };
        let is_interim = matches!(found.line.status, 100..=199) && found.line.status != SWITCHING;
        if is_interim {
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Err(BadReply::TooManyInterim);
            }
        } else {
            self.stage = found.stage();
        }
        self.is_spent = true;
        let is_in_place = self.gathered.is_empty();
        let whole = if is_in_place { &bytes[..found.len] } else { self.gathered.kept(found.len) };
        let head = ReplyHead {
            status: found.line.status,
            version: found.line.version,
            content: found.content,
            section: &whole[found.line.len..],
        };
        let event = if is_interim { Event::Interim(head) } else { Event::Head(head) };
        Ok(Step { consumed: found.len - before, event })
    }

    /// Reads once more what was refused, without the white space before colons. That may have been the
    /// only fault; if not, it is refused as before.
    #[cold]
    fn parse_tightened(&mut self, bytes: &[u8], max: usize) -> Result<Option<Found>, BadReply> {
        let octets = self.gathered.take_in(bytes, max);
        let Some(line) = StatusLine::parse(octets, self.limits.request_line)? else {
            return Ok(None);
        };
        let len = line.len + fields::tighten(&mut octets[line.len..]);
        Found::parse(&octets[..len], self.asked, &self.limits)
    }

    fn read_framed<'b>(&'b mut self, bytes: &'b [u8]) -> Result<Step<'b>, BadReply> {
        let Stage::Framed { decoder, next } = &mut self.stage else { return Ok(need_more(0)) };
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
                return Ok(Step { consumed: at, event: Event::Content(content) });
            }
        }
        let trailers = Fields::new(decoder.trailers());
        self.is_over = true;
        let event = Event::End { trailers, next: *next };
        Ok(Step { consumed: at, event })
    }
}

const TOO_LONG: BadReply = BadReply::Syntax("the content is too long");

fn need_more(consumed: usize) -> Step<'static> {
    Step { consumed, event: Event::NeedMore }
}

impl Found {
    /// Reads the head at the start of `octets`; nothing while it is not whole.
    fn parse(octets: &[u8], asked: Asked, limits: &Limits) -> Result<Option<Self>, BadReply> {
        let Some(line) = StatusLine::parse(octets, limits.request_line)? else { return Ok(None) };
        // Written as a number it would have fewer digits than a status line has.
        if line.status < 100 {
            return Err(BadReply::StatusLine);
        }
        let mut hop = Hop::new();
        let section = &octets[line.len..];
        let bounds = Bounds::of_header(limits);
        let Some(len) = fields::parse(section, bounds, |field| note(&mut hop, field))? else {
            return Ok(None);
        };
        let content = content_of(&line, &hop, asked)?;
        if matches!(content, Content::Length(length) if length > limits.body) {
            return Err(TOO_LONG);
        }
        let is_misleading = line.status == 204
            && (hop.transfer != Transfer::Absent || hop.content_length.is_some_and(|n| n > 0));
        let next = match line.status {
            SWITCHING if !asked.upgrade => return Err(BadReply::Unasked),
            SWITCHING => Next::Switched,
            // Others might wait for content that this says there is: no reply after it is safe.
            _ if is_misleading || !hop.keep_alive(line.version) => Next::Close,
            _ => Next::Request,
        };
        Ok(Some(Self { len: line.len + len, line, content, next }))
    }

    fn stage(&self) -> Stage {
        let framing = match self.content {
            Content::None => Framing::None,
            Content::Length(length) => Framing::Length(length),
            Content::Chunked => Framing::Chunked,
            Content::UntilClose => return Stage::UntilClose { octets: 0 },
        };
        Stage::Framed { decoder: body::Decoder::with_trailers(framing), next: self.next }
    }
}

/// How the content is framed (§6.3), where that is beyond doubt.
fn content_of(line: &StatusLine, hop: &Hop, asked: Asked) -> Result<Content, BadReply> {
    let is_interim = matches!(line.status, 100..=199);
    match hop.transfer {
        Transfer::Absent => {}
        _ if hop.content_length.is_some() => {
            return Err(BadReply::Syntax("both Content-Length and Transfer-Encoding"));
        }
        _ if line.version == Version::Http10 => {
            return Err(BadReply::Syntax("Transfer-Encoding in HTTP/1.0"));
        }
        Transfer::Foreign | Transfer::ForeignThenChunked => {
            return Err(BadReply::Syntax("a transfer coding that was not asked for"));
        }
        Transfer::Chunked => {}
    }
    let has_length = hop.content_length.is_some_and(|length| length > 0);
    if is_interim && (has_length || hop.transfer != Transfer::Absent) {
        return Err(BadReply::Syntax("an interim reply that announces content"));
    }
    if asked.head || is_interim || matches!(line.status, 204 | 304) {
        return Ok(Content::None);
    }
    Ok(match (hop.transfer, hop.content_length) {
        (Transfer::Absent, Some(length)) => Content::Length(length),
        (Transfer::Absent, None) => Content::UntilClose,
        _ => Content::Chunked,
    })
}
