//! A small server that a test controls. It can also misbehave.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

/// The longest time that any read of the server waits, so that a test that hangs ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// The connections and requests that the server has received.
#[derive(Default)]
pub(crate) struct ServerCounters {
    /// Connections accepted.
    pub(crate) connections: AtomicUsize,
    /// The heads of all requests, in order of their arrival.
    pub(crate) heads: Mutex<Vec<String>>,
}

impl ServerCounters {
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// One connection, as passed to a test's handler.
pub(crate) struct ServerConnection {
    pub(crate) stream: TcpStream,
    /// The number of the connection, from 0.
    pub(crate) number: usize,
    counters: Arc<ServerCounters>,
    buffer: Vec<u8>,
}

impl ServerConnection {
    /// The next request's head, with its empty line; `None` at the end of the stream.
    pub(crate) fn request(&mut self) -> Option<String> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                let rest = self.buffer.split_off(end + 4);
                let head = String::from_utf8(std::mem::replace(&mut self.buffer, rest)).unwrap();
                self.counters.heads.lock().unwrap().push(head.clone());
                return Some(head);
            }
            match self.stream.read(&mut chunk) {
                Ok(0) | Err(_) => return None,
                Ok(len) => self.buffer.extend_from_slice(&chunk[..len]),
            }
        }
    }

    /// Reads `len` bytes of content.
    pub(crate) fn content(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut chunk = [0; 4096];
        while self.buffer.len() < len {
            match self.stream.read(&mut chunk) {
                Ok(0) | Err(_) => return None,
                Ok(len) => self.buffer.extend_from_slice(&chunk[..len]),
            }
        }
        let rest = self.buffer.split_off(len);
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The generator may have closed the connection; that is not an error of the server.
        let _ = self.stream.write_all(bytes.as_ref());
    }

    pub(crate) fn reply(&mut self, status: u16, content: &str) {
        self.send(format!(
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{content}",
            content.len()
        ));
    }

    /// Answers as a slow server does.
    pub(crate) fn reply_after(&mut self, delay: Duration, status: u16, content: &str) {
        // The delay that the report must show.
        thread::sleep(delay);
        self.reply(status, content);
    }

    /// Waits until the generator closes, without an answer.
    pub(crate) fn hang(&mut self) {
        while self.request().is_some() {}
    }

    /// Answers every request with `content` until the generator closes or requests the close.
    pub(crate) fn serve(&mut self, content: &str) {
        while let Some(head) = self.request() {
            self.reply(200, content);
            if head.contains("Connection: close") {
                return;
            }
        }
    }

    /// Closes with a reset.
    pub(crate) fn reset(self) {
        use std::os::fd::AsFd;
        pollux_sys::reset_on_close(self.stream.as_fd()).unwrap();
    }
}

/// A server; stops when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) counters: Arc<ServerCounters>,
    stop: Arc<AtomicBool>,
    accepting: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// Handles every connection in a thread of its own.
    pub(crate) fn start(handle: impl Fn(ServerConnection) + Send + Sync + 'static) -> Self {
        Self::listen("127.0.0.1:0", handle)
    }

    pub(crate) fn listen(
        address: &str,
        handle: impl Fn(ServerConnection) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let counters = Arc::new(ServerCounters::default());
        let stop = Arc::new(AtomicBool::new(false));
        let accepting = thread::spawn({
            let (counters, stop, handle) = (counters.clone(), stop.clone(), Arc::new(handle));
            move || {
                for stream in listener.incoming() {
                    if stop.load(SeqCst) {
                        return;
                    }
                    let stream = stream.unwrap();
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    stream.set_nodelay(true).unwrap();
                    let number = counters.connections.fetch_add(1, SeqCst);
                    let counters = counters.clone();
                    let handle = handle.clone();
                    let peer = ServerConnection { stream, number, counters, buffer: Vec::new() };
                    thread::Builder::new()
                        .stack_size(128 << 10)
                        .spawn(move || handle(peer))
                        .unwrap();
                }
            }
        });
        Self { address, counters, stop, accepting: Some(accepting) }
    }

    /// A server that answers everything with `content`.
    pub(crate) fn good(content: &'static str) -> Self {
        Self::start(move |mut peer| peer.serve(content))
    }

    pub(crate) fn url(&self, path: &str) -> pollux_load::target::Url {
        format!("http://{}{path}", self.address).parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}
