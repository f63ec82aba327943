//! A small client for hubs, used by `pollux push` and `pollux subscribe`.

mod stream;

use anyhow::{Context, bail, ensure};
use pollux_tls::ClientTrust;
use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::TcpStream,
    path::Path,
    str::FromStr,
    time::Duration,
};
use stream::Stream;
pub(crate) use stream::UntrustedError;
use url::Url;

/// The time limit for a connection attempt and for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The maximum size in bytes of a line of a head, of a chunk's length, or of an answer's text.
const LINE_BYTES: u64 = 64 << 10;

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
    stream: BufReader<Stream>,
}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct Response {
    /// The status code.
    pub(crate) status: u16,
    fields: Vec<(String, String)>,
}

impl Response {
    /// Returns the value of a field; `name` is in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

impl Connection {
    /// Connects to a hub. For an `https` URL, the certificate must be one that `trust` accepts.
    pub(crate) fn open(url: &Url, trust: &ClientTrust) -> anyhow::Result<Self> {
        let address = url.socket_addrs(|| None).with_context(|| format!("{url}"))?;
        let stream = TcpStream::connect(&*address)
            .with_context(|| format!("cannot connect to {}", authority(url)))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let stream = match url.scheme() {
            "https" => Stream::secure(stream, url, trust)?,
            _ => Stream::Plain(stream),
        };
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sets the time for which the hub may be silent.
    pub(crate) fn set_patience(&self, patience: Duration) -> anyhow::Result<()> {
        Ok(self.stream.get_ref().socket().set_read_timeout(Some(patience))?)
    }

    /// Returns whether the connection can take another request: the hub has neither closed it nor sent anything since its
    /// last answer, such as the alert that ends a TLS connection.
    pub(crate) fn is_open(&self) -> bool {
        let socket = self.stream.get_ref().socket();
        let peek = || {
            socket.set_nonblocking(true)?;
            let peeked = socket.peek(&mut [0]);
            socket.set_nonblocking(false)?;
            peeked
        };
        let is_quiet = peek().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        is_quiet && self.stream.buffer().is_empty()
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
        self.stream.get_mut().write_all(&request).context("the hub does not read")?;
        let line = self.line()?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.with_context(|| format!("no answer of HTTP: {line:?}"))?;
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            ensure!(fields.len() < 256, "the hub's answer has too many fields");
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Response { status, fields })
    }

    /// Reads the text of an answer that has a length.
    pub(crate) fn text(&mut self, response: &Response) -> anyhow::Result<String> {
        let length: u64 =
            response.field("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        ensure!(length <= LINE_BYTES, "the hub's answer is too long");
        let mut text = String::new();
        (&mut self.stream).take(length).read_to_string(&mut text)?;
        Ok(text.trim_end().to_owned())
    }

    /// Reads the next chunk of a stream; returns `None` at its end.
    pub(crate) fn chunk(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        let length = u64::from_str_radix(line.trim(), 16)
            .with_context(|| format!("no length of a chunk: {line:?}"))?;
        ensure!(length <= 1 << 30, "a chunk of {length} bytes is too long");
        let mut chunk = Vec::new();
        (&mut self.stream).take(length).read_to_end(&mut chunk)?;
        ensure!(chunk.len() as u64 == length, "the stream ends within an event");
        self.line()?;
        Ok((length > 0).then_some(chunk))
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = Vec::new();
        (&mut self.stream).take(LINE_BYTES).read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\n") {
            bail!("the hub has closed the connection");
        }
        Ok(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned())
    }
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
