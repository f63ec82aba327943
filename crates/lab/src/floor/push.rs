//! The floor under the cost of a push server: a loop of send(2) over the subscribers.
//!
//! A GET makes a connection a subscriber, and a POST sends its content to all subscribers, as an event. The
//! floor parses nothing else; it has no topics, no history and no permissions, and disconnects a subscriber
//! that does not read. The cost of a push server above this floor is its own.
//!
//! A second form sends through io_uring(7), many sockets with one system call: the comparison shows how much a push server
//! could gain from that.

use super::each_ready::each_ready;
use anyhow::Context as _;
use pollux_sys::{self as sys, EpollOp, SendRing};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

/// The receive buffer, and the longest publication.
const BUFFER: usize = 64 * 1024;
/// The most connections that wait at a shared port until they are accepted, the same number as in `pollux serve`.
const BACKLOG: i32 = 4096;

const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
    Transfer-Encoding: chunked\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// The system calls that send an event to all subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// One send(2) for each subscriber.
    Loop,
    /// One io_uring_enter(2) for a batch of subscribers.
    Ring,
}

struct Subscribers {
    /// The descriptors of the subscribers, in the order of their subscription.
    list: Vec<OwnedFd>,
    chunk: Vec<u8>,
    published: u64,
    /// The ring of [`Sending::Ring`].
    ring: Option<SendRing>,
}

impl Subscribers {
    fn new(sending: Sending) -> anyhow::Result<Self> {
        let ring = match sending {
            Sending::Loop => None,
            Sending::Ring => Some(SendRing::open().context("io_uring cannot be used here")?),
        };
        Ok(Self { list: Vec::new(), chunk: Vec::new(), published: 0, ring })
    }

    /// Sends an event with this content to all subscribers.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    fn publish(&mut self, content: &[u8]) -> io::Result<()> {
        self.published += 1;
        let length = content.len() + b"id: \ndata: \n\n".len() + 8;
        self.chunk.clear();
        let head = format!("{length:x}\r\nid: {:08}\ndata: ", self.published % 100_000_000);
        self.chunk.extend_from_slice(head.as_bytes());
        self.chunk.extend_from_slice(content);
        self.chunk.extend_from_slice(b"\n\n\r\n");
        let chunk = &self.chunk[..];
        let is_sent = |result: io::Result<usize>| result.is_ok_and(|sent| sent == chunk.len());
        let Some(ring) = &mut self.ring else {
            self.list.retain(|subscriber| is_sent(sys::send(subscriber.as_fd(), chunk, false)));
            return Ok(());
        };
        let mut sent = vec![false; self.list.len()];
        ring.send_to_all(&self.list, chunk, |index, result| sent[index] = is_sent(result))?;
        let mut sent = sent.into_iter();
        self.list.retain(|_| sent.next().unwrap_or(false));
        Ok(())
    }
}

/// Returns the content of a request: the part after `data=`, or everything if there is none.
fn content(request: &[u8]) -> &[u8] {
    let find = |text: &[u8], what: &[u8]| text.windows(what.len()).position(|part| part == what);
    let body = find(request, b"\r\n\r\n").map_or(&[][..], |end| &request[end + 4..]);
    find(body, b"data=").map_or(body, |start| &body[start + 5..])
}

/// Listens at a port of 127.0.0.1 at which other processes listen, too.
fn listen_with_others(port: u16) -> io::Result<TcpListener> {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // The second option is for a port that a caller has reserved for this.
    sockopt::set_socket_reuseport(&socket, true)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Serves subscribers and publishers with one epoll loop at a port of 127.0.0.1 until the process is ended.
/// `announce` receives the address. At the port `shared` other processes may listen too (SO_REUSEPORT): the kernel then
/// distributes subscribers among them, and each has its own address for publishers.
///
/// # Errors
/// Those of the system calls on the set and on the listeners, and of `announce`; with [`Sending::Ring`] also those of
/// io_uring_setup(2) and io_uring_enter(2).
pub fn serve_push(
    sending: Sending,
    shared: Option<u16>,
    announce: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<Infallible> {
    let mut buffer = vec![0; BUFFER];
    let mut subscribers = Subscribers::new(sending)?;
    let more = shared.map(listen_with_others).transpose()?;
    each_ready(more.into_iter().collect(), announce, Ok, |epoll, place: &mut Option<OwnedFd>| {
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
            subscribers.publish(content(received))?;
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
    use crate::{floor::tests::connections, peer::Port};
    use std::{
        io::{Read as _, Write as _},
        net::{Shutdown, TcpStream},
        sync::mpsc,
        thread,
        time::Duration,
    };

    #[test]
    fn the_content_of_a_publication_is_found() {
        assert_eq!(content(b"POST / HTTP/1.1\r\n\r\ntopic=a&data=xyz"), b"xyz");
        assert_eq!(content(b"POST / HTTP/1.1\r\n\r\nplain"), b"plain");
        assert_eq!(content(b"POST / HTTP/1.1\r\n\r\n"), b"");
    }

    #[test]
    fn an_event_reaches_all_subscribers() {
        events_arrive(Sending::Loop);
    }

    #[test]
    fn an_event_reaches_all_subscribers_through_a_ring() {
        match SendRing::open() {
            Ok(_) => events_arrive(Sending::Ring),
            Err(error) => eprintln!("skipped: no io_uring: {error}"),
        }
    }

    #[test]
    fn processes_share_a_port_for_subscribers() {
        let port = Port::reserve().unwrap();
        let (sender, receiver) = mpsc::channel();
        for _ in 0..2 {
            let (sender, port) = (sender.clone(), port.address().port());
            thread::spawn(move || {
                serve_push(Sending::Loop, Some(port), |address| Ok(sender.send(address)?)).unwrap();
            });
        }
        let a_minute = Duration::from_secs(60);
        let publishers = [(); 2].map(|()| receiver.recv_timeout(a_minute).unwrap());
        let mut head = vec![0; STREAM.len()];
        let mut subscribers = [(); 16].map(|()| TcpStream::connect(port.address()).unwrap());
        for stream in &mut subscribers {
            stream.set_read_timeout(Some(a_minute)).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            stream.read_exact(&mut head).unwrap();
        }
        for address in publishers {
            let mut publisher = TcpStream::connect(address).unwrap();
            publisher.write_all(b"POST / HTTP/1.1\r\n\r\ntopic=a&data=news").unwrap();
        }
        // Each subscriber is at one of them, and gets one event.
        let mut event = vec![0; b"19\r\nid: 00000001\ndata: news\n\n\r\n".len()];
        for stream in &mut subscribers {
            stream.read_exact(&mut event).unwrap();
            assert_eq!(event, b"19\r\nid: 00000001\ndata: news\n\n\r\n");
        }
    }

    fn events_arrive(sending: Sending) {
        let [mut publisher, mut subscribers @ ..] = connections::<4>(move |sender| {
            serve_push(sending, None, |address| Ok(sender.send(address)?)).unwrap();
        });
        let mut head = vec![0; STREAM.len()];
        for stream in &mut subscribers {
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            stream.read_exact(&mut head).unwrap();
            assert_eq!(head, STREAM);
        }
        let mut publish = |number: u32, streams: &mut [TcpStream]| {
            publisher.write_all(b"POST / HTTP/1.1\r\n\r\ntopic=a&data=news").unwrap();
            let expected = format!("19\r\nid: {number:08}\ndata: news\n\n\r\n");
            assert_eq!(0x19, expected.len() - 6, "the chunk's length is right");
            for stream in streams {
                let mut event = vec![0; expected.len()];
                stream.read_exact(&mut event).unwrap();
                assert_eq!(event, expected.as_bytes());
            }
            let mut answer = vec![0; ANSWER.len()];
            publisher.read_exact(&mut answer).unwrap();
        };
        publish(1, &mut subscribers);
        // A subscriber that disconnects is removed, and the others still receive everything.
        let [first, rest @ ..] = &mut subscribers;
        first.shutdown(Shutdown::Both).unwrap();
        for number in 2..5 {
            publish(number, rest);
        }
    }
}
