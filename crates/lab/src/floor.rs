//! The floor under what a request can cost a server on epoll: one wait, one recv, one send.
//!
//! It answers everything it receives with the same octets. It parses nothing, and has neither timers nor
//! files. What a server costs beyond it is the server's own; what it costs itself no server on epoll can
//! do without. `make bench` builds the same loop from `pollux-event`'s example `floor`, with a reply of its
//! own; here it is in the program, for who has no more than that.

use pollux_sys::{self as sys, EpollEvent, EpollOp};
use rustix::net::sockopt;
use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

/// The most events of one wait; as many as the server's own default.
const MAX_EVENTS: usize = 512;
/// The receive buffer; a request of a load generator fits many times.
const BUFFER: usize = 16 * 1024;

/// Serves `reply` at a port of 127.0.0.1, of which `tell` is told, until the process is ended.
///
/// # Errors
/// Those of the system calls on the set and on the listener, and of `tell`.
pub fn serve(
    reply: &[u8],
    tell: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
) -> anyhow::Result<Infallible> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let epoll = sys::epoll_create()?;
    let listens_at = listener.as_raw_fd();
    let watch =
        |fd| sys::epoll_ctl(epoll.as_fd(), EpollOp::Add, fd, libc::EPOLLIN as u32, fd as u64);
    watch(listens_at)?;
    tell(listener.local_addr()?)?;

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
            if index == listens_at as usize {
                while let Ok(connection) = sys::accept(listener.as_fd()) {
                    let fd = connection.as_raw_fd();
                    watch(fd)?;
                    // As servers do: a call for each connection, none for a request.
                    let _ = sockopt::set_tcp_nodelay(&connection, true);
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
            let is_over = match sys::recv(connection.as_fd(), &mut buffer) {
                Ok(0) => true,
                // Who does not read what he asked for is cut off.
                Ok(_) => !sys::send(connection.as_fd(), reply, false)
                    .is_ok_and(|sent| sent == reply.len()),
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            };
            if is_over {
                connections[index] = None;
            }
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

    #[test]
    fn every_request_has_the_same_answer_on_a_connection_that_stays() {
        let (tell, told) = mpsc::channel();
        // It ends with the process.
        std::thread::spawn(move || serve(b"what was given", |address| Ok(tell.send(address)?)));
        let address = told.recv_timeout(Duration::from_secs(60)).unwrap();
        let connections = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        for mut stream in connections.iter().cycle().take(6) {
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let mut answer = [0; 14];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"what was given");
        }
    }
}
