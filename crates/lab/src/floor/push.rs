//! The floor under the cost of a push server: a loop of send(2) over the subscribers.
//!
//! A GET makes a connection a subscriber, and a POST sends its content to all subscribers, as an event. The
//! floor parses nothing else; it has no topics, no history and no permissions, and disconnects a subscriber
//! that does not read. The cost of a push server above this floor is its own.

use super::each_ready::each_ready;
use pollux_sys::{self as sys, EpollOp};
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

/// The receive buffer, and the longest publication.
const BUFFER: usize = 64 * 1024;

const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
    Transfer-Encoding: chunked\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[derive(Default)]
struct Subscribers {
    /// The descriptors of the subscribers, in the order of their subscription.
    list: Vec<OwnedFd>,
    chunk: Vec<u8>,
    published: u64,
}

impl Subscribers {
    /// Sends an event with this content to all subscribers.
    fn publish(&mut self, content: &[u8]) {
        self.published += 1;
        let length = content.len() + b"id: \ndata: \n\n".len() + 8;
        self.chunk.clear();
        let head = format!("{length:x}\r\nid: {:08}\ndata: ", self.published % 100_000_000);
        self.chunk.extend_from_slice(head.as_bytes());
        self.chunk.extend_from_slice(content);
        self.chunk.extend_from_slice(b"\n\n\r\n");
        let chunk = &self.chunk[..];
        self.list.retain(|subscriber| {
            sys::send(subscriber.as_fd(), chunk, false).is_ok_and(|sent| sent == chunk.len())
        });
    }
}

/// Returns the content of a request: the part after `data=`, or everything if there is none.
fn content(request: &[u8]) -> &[u8] {
    let find = |text: &[u8], what: &[u8]| text.windows(what.len()).position(|part| part == what);
    let body = find(request, b"\r\n\r\n").map_or(&[][..], |end| &request[end + 4..]);
    find(body, b"data=").map_or(body, |start| &body[start + 5..])
}

/// Serves subscribers and publishers with one epoll loop at a port of 127.0.0.1 until the process is ended.
/// `announce` receives the address.
///
/// # Errors
/// Those of the system calls on the set and on the listener, and of `announce`.
pub fn serve_push(
    announce: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<Infallible> {
    let mut buffer = vec![0; BUFFER];
    let mut subscribers = Subscribers::default();
    each_ready(announce, Ok, |epoll, place: &mut Option<OwnedFd>| {
        let Some(connection) = place else { return Ok(()) };
        let received = match sys::recv(connection.as_fd(), &mut buffer) {
            Ok(0) => &[][..],
            Ok(len) => &buffer[..len],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(_) => &[],
        };
        let answer = if received.starts_with(b"GET ") {
            STREAM
        } else if received.starts_with(b"POST ") {
            subscribers.publish(content(received));
            ANSWER
        } else {
            *place = None;
            return Ok(());
        };
        if !sys::send(connection.as_fd(), answer, false).is_ok_and(|sent| sent == answer.len()) {
            *place = None;
        } else if received.starts_with(b"GET ")
            && let Some(subscriber) = place.take()
        {
            // The descriptor moves from the table and the epoll set to the list of subscribers.
            sys::epoll_ctl(epoll, EpollOp::Remove, subscriber.as_raw_fd(), 0, 0)?;
            subscribers.list.push(subscriber);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::tests::connections;
    use std::io::{Read as _, Write as _};

    #[test]
    fn the_content_of_a_publication_is_found() {
        assert_eq!(content(b"POST / HTTP/1.1\r\n\r\ntopic=a&data=xyz"), b"xyz");
        assert_eq!(content(b"POST / HTTP/1.1\r\n\r\nplain"), b"plain");
        assert_eq!(content(b"POST / HTTP/1.1\r\n\r\n"), b"");
    }

    #[test]
    fn what_is_published_reaches_all() {
        let [mut publisher, mut subscribers @ ..] = connections::<4>(|sender| {
            serve_push(|address| Ok(sender.send(address)?)).unwrap();
        });
        let mut head = vec![0; STREAM.len()];
        for stream in &mut subscribers {
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            stream.read_exact(&mut head).unwrap();
            assert_eq!(head, STREAM);
        }
        publisher.write_all(b"POST / HTTP/1.1\r\n\r\ntopic=a&data=news").unwrap();
        let expected = "19\r\nid: 00000001\ndata: news\n\n\r\n";
        assert_eq!(0x19, expected.len() - 6, "the chunk's length is right");
        for stream in &mut subscribers {
            let mut event = vec![0; expected.len()];
            stream.read_exact(&mut event).unwrap();
            assert_eq!(event, expected.as_bytes());
        }
    }
}
