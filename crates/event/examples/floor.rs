//! The floor: what an HTTP server on epoll cannot do without.
//!
//! One thread, one level-triggered epoll instance; for each readable connection one recv and one
//! send of a constant reply. No parsing, no timeouts, no files. Servers are measured against it
//! by `make bench`.
//!
//! ```console
//! $ cargo run --release --example floor -- 127.0.0.1:8081 1
//! ```
//! The second argument is the length of the reply's body in bytes.

use pollux_sys::{self as sys, EpollEvent, EpollOp};
use std::{
    error::Error,
    io,
    net::TcpListener,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

/// The most events of one wait; as many as the server's own default.
const MAX_EVENTS: usize = 512;
/// The receive buffer; a request of a load generator fits many times.
const BUFFER: usize = 16 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:8081".into());
    let body_len: usize = args.next().map_or(Ok(1), |text| text.parse())?;

    let mut reply = format!(
        "HTTP/1.1 200 OK\r\nServer: floor\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         Content-Type: text/plain\r\nContent-Length: {body_len}\r\n\
         Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\nETag: \"0-0\"\r\n\
         Accept-Ranges: bytes\r\n\r\n"
    )
    .into_bytes();
    reply.resize(reply.len() + body_len, b'x');

    let listener = TcpListener::bind(&address)?;
    listener.set_nonblocking(true)?;
    println!("floor on {} with {} bytes a reply", listener.local_addr()?, reply.len());

    let epoll = sys::epoll_create()?;
    let listener_fd = listener.as_raw_fd();
    sys::epoll_ctl(
        epoll.as_fd(),
        EpollOp::Add,
        listener_fd,
        libc::EPOLLIN as u32,
        listener_fd as u64,
    )?;

    // Indexed by descriptor number.
    let mut connections: Vec<Option<OwnedFd>> = Vec::new();
    let mut events: Vec<EpollEvent> = Vec::with_capacity(MAX_EVENTS);
    let mut buffer = vec![0; BUFFER];
    loop {
        match sys::epoll_wait(epoll.as_fd(), &mut events, -1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        for &EpollEvent { u64: data, .. } in &events {
            let index = data as usize;
            if index == listener_fd as usize {
                while let Ok(connection) = sys::accept(listener.as_fd()) {
                    let fd = connection.as_raw_fd();
                    sys::epoll_ctl(
                        epoll.as_fd(),
                        EpollOp::Add,
                        fd,
                        libc::EPOLLIN as u32,
                        fd as u64,
                    )?;
                    let _ = nodelay(&connection);
                    if connections.len() <= fd as usize {
                        connections.resize_with(fd as usize + 1, || None);
                    }
                    connections[fd as usize] = Some(connection);
                }
                continue;
            }
            let Some(connection) = connections.get(index).and_then(Option::as_ref) else {
                continue;
            };
            let gone = match sys::recv(connection.as_fd(), &mut buffer) {
                Ok(0) => true,
                Ok(_) => match sys::send(connection.as_fd(), &reply, false) {
                    // A reader that does not read is beyond the floor: it is cut off.
                    Ok(sent) => sent < reply.len(),
                    Err(_) => true,
                },
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            };
            if gone {
                connections[index] = None;
            }
        }
    }
}

/// As nginx, h2o and lighttpd do; costs one system call a connection, none a request.
fn nodelay(connection: &OwnedFd) -> io::Result<()> {
    let stream = std::net::TcpStream::from(connection.try_clone()?);
    stream.set_nodelay(true)
}
