//! An origin server whose replies a test chooses byte by byte, with one thread per connection. It
//! shares no code with the server under test.

use crate::http;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

/// A running origin server. It runs until the test's process ends.
#[derive(Debug)]
pub struct Origin {
    address: SocketAddr,
    counters: Arc<OriginCounters>,
}

#[derive(Debug, Default)]
struct OriginCounters {
    connections: AtomicUsize,
    requests: AtomicUsize,
    ended: AtomicUsize,
    heads: Mutex<Vec<String>>,
}

/// A received request, with the connection for its response.
#[derive(Debug)]
pub struct ReceivedRequest {
    stream: BufReader<TcpStream>,
    head: String,
    /// The number of the request on its connection, from 1.
    pub number: usize,
}

impl Origin {
    /// Starts an origin server. `answer` answers each request and returns whether the connection stays
    /// open.
    pub fn start(answer: impl Fn(&mut ReceivedRequest) -> bool + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        Self::on(listener, answer)
    }

    /// Starts an origin server on `listener`.
    pub fn on(
        listener: TcpListener,
        answer: impl Fn(&mut ReceivedRequest) -> bool + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("an address");
        let counters = Arc::new(OriginCounters::default());
        let (answer, shared) = (Arc::new(answer), counters.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let (answer, counters) = (answer.clone(), shared.clone());
                counters.connections.fetch_add(1, SeqCst);
                thread::spawn(move || {
                    serve(stream, &*answer, &counters);
                    counters.ended.fetch_add(1, SeqCst);
                });
            }
        });
        Self { address, counters }
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the server, as the command line names an origin.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> usize {
        self.counters.connections.load(SeqCst)
    }

    /// Returns the number of connections that have ended.
    pub fn ended(&self) -> usize {
        self.counters.ended.load(SeqCst)
    }

    /// Returns the number of requests whose head was received.
    pub fn requests(&self) -> usize {
        self.counters.requests.load(SeqCst)
    }

    /// Returns the head of the request that was received last.
    pub fn last_head(&self) -> String {
        let heads = self.counters.heads.lock().unwrap_or_else(PoisonError::into_inner);
        heads.last().cloned().unwrap_or_default()
    }
}

fn serve(
    stream: TcpStream,
    answer: &dyn Fn(&mut ReceivedRequest) -> bool,
    counters: &OriginCounters,
) {
    // The proxy may have closed the connection already; then the first read fails.
    let _ = http::set_options(&stream);
    let mut request =
        ReceivedRequest { stream: BufReader::new(stream), head: String::new(), number: 0 };
    while request.read_head() {
        request.number += 1;
        counters.requests.fetch_add(1, SeqCst);
        counters.heads.lock().unwrap_or_else(PoisonError::into_inner).push(request.head.clone());
        if !answer(&mut request) {
            return;
        }
    }
}

impl ReceivedRequest {
    fn read_head(&mut self) -> bool {
        self.head.clear();
        let mut line = Vec::new();
        loop {
            line.clear();
            match self.stream.read_until(b'\n', &mut line) {
                Ok(len) if len > 0 => {}
                _ => return false,
            }
            self.head.push_str(&String::from_utf8_lossy(&line));
            if line == b"\r\n" {
                return true;
            }
        }
    }

    /// Returns the whole head.
    pub fn head(&self) -> &str {
        &self.head
    }

    /// Returns the method.
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    /// Returns the target.
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// Returns the value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (known, value) = line.split_once(": ")?;
            known.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// Reads the body and returns it without its framing. If the connection ends early, returns the
    /// part that arrived.
    pub fn body(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        if self.field("transfer-encoding").is_some() {
            loop {
                let mut line = String::new();
                let _ = self.stream.read_line(&mut line);
                let Ok(len) = usize::from_str_radix(line.trim_end(), 16) else { return body };
                let start = body.len();
                body.resize(start + len, 0);
                if self.stream.read_exact(&mut body[start..]).is_err() {
                    body.truncate(start);
                    return body;
                }
                // Reads the line end of the chunk, or the trailers and the empty line after them.
                let mut line = String::new();
                while self
                    .stream
                    .read_line(&mut line)
                    .is_ok_and(|len| len > 2 && body.len() == start)
                {
                    line.clear();
                }
                if len == 0 {
                    return body;
                }
            }
        }
        if let Some(len) = self.field("content-length").and_then(|len| len.parse().ok()) {
            let _ = self.stream.by_ref().take(len).read_to_end(&mut body);
        }
        body
    }

    /// Waits as a slow origin does before it continues to answer.
    pub fn after(&mut self, pause: Duration) -> &mut Self {
        // The pace of a slow origin.
        thread::sleep(pause);
        self
    }

    /// Sends bytes. Returns whether the connection was still open.
    pub fn say(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.get_mut().write_all(bytes.as_ref()).is_ok()
    }

    /// Answers with status 200 and this content.
    pub fn ok(&mut self, content: impl AsRef<[u8]>) -> bool {
        let content = content.as_ref();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len());
        self.say([head.as_bytes(), content].concat())
    }

    /// Returns the socket.
    pub fn socket(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    /// Returns the unparsed input.
    pub fn reader(&mut self) -> &mut impl Read {
        &mut self.stream
    }

    /// Waits until the other side has closed the connection. Returns whether it has.
    pub fn wait_for_close(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }

    /// Makes the closing of the socket send a reset to the other side.
    pub fn reset(&mut self) {
        let _ = socket2::SockRef::from(self.socket()).set_linger(Some(Duration::ZERO));
        let _ = self.socket().shutdown(Shutdown::Read);
    }
}
