//! A small client for hubs, used by `pollux push` and `pollux subscribe`.

mod stream;

use crate::terminal::printable;
use anyhow::{Context, bail, ensure};
use pollux_http::reply::{Event, Next, Reader, ReplyHead, RequestInfo};
use pollux_tls::ClientTrust;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    str::FromStr,
    time::Duration,
};
use stream::Stream;
pub(crate) use stream::UntrustedError;
use url::Url;

/// The time limit for a connection attempt and for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The maximum length of an answer's text in bytes.
const TEXT_BYTES: usize = 64 << 10;
/// The most bytes that are received at a time.
const BUFFER_BYTES: usize = 64 << 10;

/// The address of a hub: an `http` or `https` URL. The default path is `/.well-known/mercure`.
#[derive(Clone, Debug)]
pub(crate) struct HubAddress(Url);

impl FromStr for HubAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut url = Url::parse(text)
            .map_err(|error| format!("{error}: http://HOST[:PORT] or https://HOST[:PORT]"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{}:// is not supported, only http:// and https://", url.scheme()));
        }
        if url.host_str().is_none() {
            return Err("the URL names no host".into());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("user names in URLs are not supported, use --token-file".into());
        }
        if url.path() == "/" {
            url.set_path(pollux_hub::topic::WELL_KNOWN);
        }
        Ok(Self(url))
    }
}

impl HubAddress {
    /// Returns the URL, to which query parameters can be added.
    pub(crate) fn url(&self) -> Url {
        self.0.clone()
    }
}

/// A connection to a hub.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    reader: Reader,
    /// Bytes that were received; those in `unread` are not read yet.
    buffer: Box<[u8]>,
    unread: std::ops::Range<usize>,
    /// The last answer has ended, and another request may follow.
    is_reusable: bool,
    /// A request was sent in part only, so no other may follow.
    is_cut: bool,
    patience: Duration,
}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct Response {
    /// The status code.
    pub(crate) status: u16,
    /// The value of `Content-Type`.
    pub(crate) content_type: Option<String>,
}

impl Response {
    fn new(head: &ReplyHead<'_>) -> Self {
        let field = head.fields().find(|field| field.is(b"content-type"));
        let content_type = field.map(|field| String::from_utf8_lossy(field.value).into_owned());
        Self { status: head.status, content_type }
    }
}

/// A part of an answer.
enum Part {
    Head(Response),
    /// Content without its framing.
    Content(Vec<u8>),
    End,
}

impl Connection {
    /// Connects to a hub. For an `https` URL, the certificate must be one that `trust` accepts.
    pub(crate) fn open(url: &Url, trust: &ClientTrust) -> anyhow::Result<Self> {
        let addresses = url.socket_addrs(|| None).with_context(|| format!("{url}"))?;
        let stream =
            connect(&addresses).with_context(|| format!("cannot connect to {}", authority(url)))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let stream = match url.scheme() {
            "https" => Stream::secure(stream, url, trust)?,
            _ => Stream::Plain(stream),
        };
        Ok(Self {
            stream,
            reader: Reader::new(Reader::LIMITS),
            buffer: vec![0; BUFFER_BYTES].into(),
            unread: 0..0,
            is_reusable: true,
            is_cut: false,
            patience: PATIENCE,
        })
    }

    /// Sets the time for which the hub may be silent.
    pub(crate) fn set_patience(&mut self, patience: Duration) -> anyhow::Result<()> {
        self.patience = patience;
        Ok(self.stream.socket().set_read_timeout(Some(patience))?)
    }

    /// Returns whether the connection can take another request: the hub has neither closed it nor sent anything since its
    /// last answer, such as the alert that ends a TLS connection.
    pub(crate) fn is_open(&self) -> bool {
        let socket = self.stream.socket();
        let peek = || {
            socket.set_nonblocking(true)?;
            let peeked = socket.peek(&mut [0]);
            socket.set_nonblocking(false)?;
            peeked
        };
        self.is_reusable
            && self.unread.is_empty()
            && peek().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// Sends a request and reads the head of the response.
    pub(crate) fn request(
        &mut self,
        method: &str,
        url: &Url,
        fields: &str,
        body: &[u8],
    ) -> anyhow::Result<Response> {
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut request = format!(
            "{method} {}{query} HTTP/1.1\r\nHost: {}\r\nUser-Agent: pollux\r\n{fields}",
            url.path(),
            authority(url)
        )
        .into_bytes();
        if method == "POST" {
            let type_and_length = format!(
                "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n",
                body.len()
            );
            request.extend_from_slice(type_and_length.as_bytes());
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(body);
        self.is_reusable = false;
        self.reader.begin(RequestInfo::default());
        if let Err(error) = self.stream.write_all(&request) {
            self.is_cut = true;
            // A hub may refuse a request and close before it has read all of it.
            return match self.part() {
                Ok(Part::Head(response)) => Ok(response),
                _ => Err(anyhow::Error::new(error).context("the hub does not read")),
            };
        }
        match self.part()? {
            Part::Head(response) => Ok(response),
            Part::Content(_) | Part::End => bail!("the hub's answer has no head"),
        }
    }

    /// Reads the text of an answer; of a longer one, [`TEXT_BYTES`].
    pub(crate) fn text(&mut self) -> anyhow::Result<String> {
        let mut text = Vec::new();
        while let Some(content) = self.content()? {
            let room = TEXT_BYTES - text.len();
            text.extend_from_slice(&content[..content.len().min(room)]);
            if text.len() == TEXT_BYTES {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
    }

    /// Reads the next piece of an answer's content; returns `None` at its end.
    pub(crate) fn content(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        match self.part()? {
            Part::Content(content) => Ok(Some(content)),
            Part::Head(_) | Part::End => Ok(None),
        }
    }

    /// Reads the next part of an answer. Interim responses are passed over (RFC 9110 §15.2).
    fn part(&mut self) -> anyhow::Result<Part> {
        loop {
            let output = self.reader.read(&self.buffer[self.unread.clone()])?;
            self.unread.start += output.consumed;
            match output.event {
                Event::Interim(_) => continue,
                Event::Head(head) => return Ok(Part::Head(Response::new(&head))),
                Event::Content(content) => return Ok(Part::Content(content.to_vec())),
                Event::End { next, .. } => {
                    self.is_reusable = next == Next::Request && !self.is_cut;
                    return Ok(Part::End);
                }
                Event::NeedMore => {}
            }
            if self.receive()? == 0 {
                // Only the end of content that lasts until the close is not an error.
                ensure!(self.reader.finish().is_ok(), "the hub has closed the connection");
                return Ok(Part::End);
            }
        }
    }

    /// Receives more bytes; returns 0 at the end of the connection.
    fn receive(&mut self) -> anyhow::Result<usize> {
        loop {
            match self.stream.read(&mut self.buffer) {
                Ok(length) => {
                    self.unread = 0..length;
                    return Ok(length);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The two kinds with which a time limit of a socket ends a read.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    bail!("the hub has sent nothing for {:?}", self.patience)
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Describes an answer, with its text if there is one.
pub(crate) fn describe(status: u16, text: &str) -> String {
    match text {
        "" => format!("the hub answers {status}"),
        text => format!("the hub answers {status}: {}", printable(text)),
    }
}

/// Connects to the first address that accepts within [`PATIENCE`].
fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Returns the field line with the token in a file, or an empty text without a file.
pub(crate) fn authorization(file: Option<&Path>) -> anyhow::Result<String> {
    let Some(path) = file else { return Ok(String::new()) };
    let token = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let token = token.trim();
    ensure!(
        !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()),
        "{}: a token is one word of ASCII",
        path.display()
    );
    Ok(format!("Authorization: Bearer {token}\r\n"))
}
