//! A client that sends exactly the bytes that a test chooses and parses the replies itself: it shares
//! no code with the server under test.

use crate::pace::write_slowly;
use socket2::{Domain, Socket, Type};
use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs},
    time::Duration,
};

/// How long a test waits for a server before the test fails. The time is long because the machine may
/// be busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Sets the options of each connection of a test: a read or write that takes longer than [`PATIENCE`]
/// fails, and small pieces are sent at once.
pub fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)
}

/// A reply.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// The fields in order, with names in lower case.
    pub fields: Vec<(String, String)>,
    /// The content.
    pub body: Vec<u8>,
}

impl Reply {
    /// Returns the value of a field, and panics if the field occurs twice.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(known, _)| known == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} is there twice: {:?}", self.fields);
        value
    }

    /// Returns the content as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A connection to a server: TCP, or another stream of bytes.
#[derive(Debug)]
pub struct Client<S: Read + Write = TcpStream> {
    stream: BufReader<S>,
}

impl Client {
    /// Connects to `address`.
    pub fn connect(address: impl ToSocketAddrs) -> Self {
        Self::new(TcpStream::connect(address).expect("the server accepts a connection"))
    }

    /// Connects from `source`, an address of this machine.
    pub fn connect_from(source: IpAddr, address: impl ToSocketAddrs) -> Self {
        let address = address.to_socket_addrs().unwrap().next().unwrap();
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(source, 0).into()).unwrap();
        socket.connect(&address.into()).expect("the server accepts a connection");
        Self::new(socket.into())
    }

    fn new(stream: TcpStream) -> Self {
        set_options(&stream).expect("the options of a socket");
        Self::over(stream)
    }

    /// Returns the socket.
    pub fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }
}

impl<S: Read + Write> Client<S> {
    /// Uses a connection that exists.
    pub fn over(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    /// Returns the connection. It has no bytes that the replies did not contain.
    pub fn stream(&mut self) -> &mut S {
        assert!(self.stream.buffer().is_empty(), "bytes behind a reply");
        self.stream.get_mut()
    }

    /// Sends the bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).expect("the server reads");
    }

    /// Sends pieces as a slow client does, with a pause before each.
    pub fn send_slowly(
        &mut self,
        pause: Duration,
        pieces: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) {
        write_slowly(self.stream.get_mut(), pause, pieces).expect("the server reads");
    }

    /// Sends a GET and reads the reply.
    pub fn get(&mut self, path: &str) -> Reply {
        self.request("GET", path, &[])
    }

    /// Sends a request without a body and reads the reply.
    pub fn request(&mut self, method: &str, path: &str, fields: &[&str]) -> Reply {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: test\r\n");
        for field in fields {
            text.push_str(field);
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        self.send(text);
        self.reply_to(method)
    }

    /// Reads the reply to a GET.
    pub fn reply(&mut self) -> Reply {
        self.reply_to("GET")
    }

    /// Reads the reply to a request with this method.
    pub fn reply_to(&mut self, method: &str) -> Reply {
        let first = self.line();
        let mut words = first.splitn(3, ' ');
        assert_eq!(words.next(), Some("HTTP/1.1"), "{first:?} is no status line");
        let status: u16 = words.next().unwrap().parse().expect("a status code");
        let mut fields = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").expect("a field line");
            fields.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut reply = Reply { status, fields, body: Vec::new() };
        let bodiless = method == "HEAD" || matches!(status, 100..=199 | 204 | 304);
        if bodiless {
            return reply;
        }
        if reply.field("transfer-encoding") == Some("chunked") {
            self.read_chunks(&mut reply);
        } else if reply.field("content-length").is_none()
            && reply.field("connection") == Some("close")
        {
            self.stream.read_to_end(&mut reply.body).expect("content and an end");
        } else {
            let len = reply.field("content-length").expect("a length").parse().unwrap();
            reply.body = vec![0; len];
            self.stream.read_exact(&mut reply.body).expect("the whole content");
        }
        reply
    }

    /// Reads chunks up to the last one; trailer fields are appended to the fields of the header.
    fn read_chunks(&mut self, reply: &mut Reply) {
        loop {
            let line = self.line();
            let len = usize::from_str_radix(&line, 16).expect("the length of a chunk");
            if len == 0 {
                break;
            }
            let start = reply.body.len();
            reply.body.resize(start + len, 0);
            self.stream.read_exact(&mut reply.body[start..]).expect("a whole chunk");
            assert_eq!(self.line(), "", "behind a chunk");
        }
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else { break };
            reply.fields.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).expect("a line of the head");
        let text = String::from_utf8(line).expect("a head in ASCII");
        text.strip_suffix("\r\n").unwrap_or_else(|| panic!("{text:?} is no whole line")).to_owned()
    }

    /// Returns whether the server closes the connection with an end of stream and sends nothing
    /// before.
    pub fn is_closed(&mut self) -> bool {
        loop {
            match self.stream.read(&mut [0; 1]) {
                // When an io_uring that this thread has opened is closed, the thread's next system
                // call is interrupted.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                outcome => return matches!(outcome, Ok(0)),
            }
        }
    }

    /// Reads until an end of stream or a reset. Panics if neither comes within the read timeout.
    pub fn read_to_end_or_reset(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Err(error) = self.stream.read_to_end(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes);
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "no end of stream behind {text:?}");
        }
        bytes
    }
}
