//! The floor under the cost of a request: with epoll one wait, one recv and one send; with a thread for
//! each connection, one blocking recv and one blocking send.
//!
//! The floor answers all input with the same bytes. It parses nothing, and has neither timers nor files. No
//! server of the same kind can cost less; any cost above the floor is the server's own. An experiment,
//! `make bench` and the test that counts instructions all start the floor as `pollux lab floor`.

mod each_ready;
mod push;
mod tls;

pub use push::{Sending, serve_push};
pub use tls::serve_tls;

use each_ready::each_ready;
use pollux_sys as sys;
use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    num::NonZeroU32,
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    thread,
};

/// The most events of one wait, as in the server's default.
const MAX_EVENTS: usize = 512;
/// The receive buffer, which is many times larger than a request of a load generator.
const BUFFER: usize = 16 * 1024;
/// The stack of a thread without its receive buffer.
const STACK: usize = 64 * 1024;

/// Returns a response for use without a server's own response: with the header fields of a file response
/// and a body of `content_len` bytes.
pub fn reply(content_len: usize) -> Vec<u8> {
    let mut reply = format!(
        "HTTP/1.1 200 OK\r\nServer: floor\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         Content-Type: text/plain\r\nContent-Length: {content_len}\r\n\
         Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\nETag: \"0-0\"\r\n\
         Accept-Ranges: bytes\r\n\r\n"
    )
    .into_bytes();
    reply.resize(reply.len() + content_len, b'x');
    reply
}

/// Serves `reply` with one epoll loop at a port of 127.0.0.1 until the process is ended. `announce`
/// receives the address.
///
/// # Errors
/// Those of the system calls on the set and on the listener, and of `announce`.
pub fn serve(
    reply: &[u8],
    announce: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<Infallible> {
    let mut buffer = vec![0; BUFFER];
    each_ready(Vec::new(), announce, Ok, |_, place: &mut Option<OwnedFd>| {
        let Some(connection) = place else { return Ok(()) };
        let is_over = match sys::recv(connection.as_fd(), &mut buffer) {
            Ok(0) => true,
            // A client that does not read its response is disconnected.
            Ok(_) => {
                !sys::send(connection.as_fd(), reply, false).is_ok_and(|sent| sent == reply.len())
            }
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        if is_over {
            *place = None;
        }
        Ok(())
    })
}

/// Serves `reply` with this number of `threads` at a port of 127.0.0.1 until the process is ended. Each
/// thread accepts a connection and serves it until it closes. `announce` receives the address.
///
/// # Errors
/// Those of the system calls on the listener, of a thread that cannot be started, and of `announce`.
pub fn serve_with_threads(
    reply: &[u8],
    threads: NonZeroU32,
    announce: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<Infallible> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let shared = Arc::new((listener, reply.to_vec()));
    // The current thread is one of the threads.
    for _ in 1..threads.get() {
        let shared = Arc::clone(&shared);
        let builder = thread::Builder::new().stack_size(BUFFER + STACK);
        builder.spawn(move || -> () { serve_in_turn(&shared.0, &shared.1) })?;
    }
    announce(address)?;
    serve_in_turn(&shared.0, &shared.1)
}

/// Serves connections one after the other.
fn serve_in_turn(listener: &TcpListener, reply: &[u8]) -> ! {
    let mut buffer = vec![0; BUFFER];
    loop {
        let Ok((connection, _)) = listener.accept() else { continue };
        let _ = connection.set_nodelay(true);
        while sys::recv(connection.as_fd(), &mut buffer).is_ok_and(|received| received > 0)
            && sys::send(connection.as_fd(), reply, false).is_ok_and(|sent| sent == reply.len())
        {
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read as _, Write as _},
        net::TcpStream,
        sync::mpsc,
        time::Duration,
    };

    /// Opens connections to a server that sends its address and ends with the process.
    pub(super) fn connections<const N: usize>(
        serve: impl FnOnce(mpsc::Sender<SocketAddr>) + Send + 'static,
    ) -> [TcpStream; N] {
        let a_minute = Duration::from_secs(60);
        let (sender, receiver) = mpsc::channel();
        thread::spawn(|| serve(sender));
        let address = receiver.recv_timeout(a_minute).unwrap();
        [(); N].map(|()| {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(a_minute)).unwrap();
            stream
        })
    }

    /// Sends requests on two connections in turn; both connections stay open.
    fn answers_on_two(serve: impl FnOnce(mpsc::Sender<SocketAddr>) + Send + 'static) {
        for mut stream in connections::<2>(serve).iter().cycle().take(6) {
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let mut answer = [0; 14];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"what was given");
        }
    }

    #[test]
    fn every_request_has_the_same_answer_on_a_connection_that_stays() {
        answers_on_two(|sender| {
            serve(b"what was given", |address| Ok(sender.send(address)?)).unwrap();
        });
    }

    #[test]
    fn so_many_threads_have_so_many_connections_at_a_time() {
        let two = NonZeroU32::new(2).unwrap();
        answers_on_two(move |sender| {
            serve_with_threads(b"what was given", two, |address| Ok(sender.send(address)?))
                .unwrap();
        });
    }
}
