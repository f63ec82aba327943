//! The loop of the floors that wait with epoll.

use super::MAX_EVENTS;
use pollux_sys::{self as sys, EpollEvent, EpollOp};
use rustix::net::sockopt;
use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
};

/// Accepts connections at a port of 127.0.0.1, and at `more` listeners, and waits for their input until the process is
/// ended. `announce` receives the address of that port; `open` converts an accepted socket to a connection. `on_input`
/// gets the epoll set and a connection with input; it closes the connection by taking it out of its `Option`.
///
/// # Errors
/// Those of the system calls on the set and on the listener, of `announce`, `open` and `on_input`.
pub(super) fn each_ready<C>(
    more: Vec<TcpListener>,
    announce: impl FnOnce(SocketAddr) -> anyhow::Result<()>,
    mut open: impl FnMut(OwnedFd) -> anyhow::Result<C>,
    mut on_input: impl FnMut(BorrowedFd<'_>, &mut Option<C>) -> anyhow::Result<()>,
) -> anyhow::Result<Infallible> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let epoll = sys::epoll_create()?;
    let watch =
        |fd| sys::epoll_ctl(epoll.as_fd(), EpollOp::Add, fd, libc::EPOLLIN as u32, fd as u64);
    let mut listeners = more;
    listeners.push(listener);
    for listener in &listeners {
        listener.set_nonblocking(true)?;
        watch(listener.as_raw_fd())?;
    }
    announce(address)?;

    // Indexed by descriptor number.
    let mut connections: Vec<Option<C>> = Vec::new();
    let mut events: Vec<EpollEvent> = Vec::with_capacity(MAX_EVENTS);
    loop {
        match sys::epoll_wait(epoll.as_fd(), &mut events, -1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        for &EpollEvent { u64: data, .. } in &events {
            let index = data as usize;
            if let Some(place) = connections.get_mut(index).filter(|place| place.is_some()) {
                on_input(epoll.as_fd(), place)?;
                continue;
            }
            let listener = listeners.iter().find(|listener| listener.as_raw_fd() as usize == index);
            if let Some(listener) = listener {
                while let Ok(socket) = sys::accept(listener.as_fd()) {
                    let fd = socket.as_raw_fd();
                    watch(fd)?;
                    // As servers do: this costs one call for each connection and none for a request.
                    let _ = sockopt::set_tcp_nodelay(&socket, true);
                    if connections.len() <= fd as usize {
                        connections.resize_with(fd as usize + 1, || None);
                    }
                    connections[fd as usize] = Some(open(socket)?);
                }
            }
        }
    }
}
