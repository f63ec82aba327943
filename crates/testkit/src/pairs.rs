//! Two ends of a connection, non-blocking, and what one does with them.

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    io::Errno,
    net::sockopt,
    pipe::PipeFlags,
};
use std::{
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixStream},
    },
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The end under test and its peer. Both are non-blocking and close-on-exec.
#[derive(Debug)]
pub struct Pair {
    /// The end that goes into the interest set.
    pub near: OwnedFd,
    /// The end that the test plays.
    pub far: OwnedFd,
}

/// Which kind of pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A TCP connection over loopback.
    Tcp,
    /// A UNIX stream socket pair.
    Unix,
    /// A pipe; `near` is the reading end.
    Pipe,
}

impl Pair {
    /// A pair of this kind.
    pub fn new(kind: Kind) -> Self {
        match kind {
            Kind::Tcp => Self::tcp(),
            Kind::Unix => Self::unix(),
            Kind::Pipe => Self::pipe(),
        }
    }

    /// A TCP connection over loopback, Nagle off, so that each write arrives by itself.
    pub fn tcp() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind to a free port");
        let address = listener.local_addr().expect("the listener's address");
        let far = TcpStream::connect(address).expect("connect to the listener");
        let (near, _) = listener.accept().expect("accept the connection");
        for stream in [&near, &far] {
            stream.set_nonblocking(true).expect("set O_NONBLOCK");
            stream.set_nodelay(true).expect("set TCP_NODELAY");
        }
        Self { near: near.into(), far: far.into() }
    }

    /// A TCP connection whose buffers are as small as the kernel allows, so that they fill at once.
    pub fn small_tcp() -> Self {
        let pair = Self::tcp();
        for fd in [&pair.near, &pair.far] {
            sockopt::set_socket_send_buffer_size(fd, 4096).expect("set SO_SNDBUF");
            sockopt::set_socket_recv_buffer_size(fd, 4096).expect("set SO_RCVBUF");
        }
        pair
    }

    /// A UNIX stream socket pair.
    pub fn unix() -> Self {
        let (near, far) = UnixStream::pair().expect("socketpair");
        for stream in [&near, &far] {
            stream.set_nonblocking(true).expect("set O_NONBLOCK");
        }
        Self { near: near.into(), far: far.into() }
    }

    /// A pipe; `near` is the reading end.
    pub fn pipe() -> Self {
        let (near, far) =
            rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).expect("pipe2");
        Self { near, far }
    }

    /// Writes from the far end; all of `bytes` must fit.
    pub fn send(&self, bytes: &[u8]) {
        assert_eq!(rustix::io::write(&self.far, bytes).expect("write to far"), bytes.len());
    }

    /// Makes the closing of `far` send a reset (TCP): SO_LINGER with a time of zero.
    pub fn reset_on_close(&self) {
        sockopt::set_socket_linger(&self.far, Some(Duration::ZERO)).expect("set SO_LINGER");
    }
}

/// An eventfd with counter 0.
pub fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("eventfd")
}

/// A datagram socket with an abstract address of its own: one descriptor that anyone can make
/// ready. Ten thousand of them fit where ten thousand pairs do not.
#[derive(Debug)]
pub struct Mailbox {
    /// The socket; non-blocking.
    pub socket: UnixDatagram,
    address: UnixAddr,
}

impl Mailbox {
    /// A new, empty mailbox.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pollux-testkit-{}-{number}", std::process::id());
        let address = UnixAddr::from_abstract_name(name).expect("an abstract address");
        let socket = UnixDatagram::bind_addr(&address).expect("bind a datagram socket");
        socket.set_nonblocking(true).expect("set O_NONBLOCK");
        Self { socket, address }
    }

    /// Sends one byte to it, from itself: a sender of many would run out of send buffer.
    pub fn post(&self) {
        self.socket.send_to_addr(b"x", &self.address).expect("send a datagram");
    }
}

impl Default for Mailbox {
    fn default() -> Self {
        Self::new()
    }
}

/// Writes to `fd` until it would block; returns how many bytes it took.
pub fn fill(fd: impl AsFd) -> usize {
    let block = [0x5a; 16 * 1024];
    let mut taken = 0;
    // A single byte at the end finds room that a block does not.
    for size in [block.len(), 1] {
        loop {
            match rustix::io::write(&fd, &block[..size]) {
                Ok(written) => taken += written,
                Err(Errno::AGAIN) => break,
                Err(error) => panic!("filling: write: {error}"),
            }
            assert!(taken < 1 << 30, "the buffer took 1 GiB and is not full");
        }
    }
    taken
}

/// What [`drain`] found at the end of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing more for now.
    WouldBlock,
    /// End of stream.
    Closed,
    /// An error, ECONNRESET as a rule.
    Error(Errno),
}

/// Reads from `fd` until it would block, ends or fails; returns how many bytes there were.
pub fn drain(fd: impl AsFd) -> (usize, End) {
    let mut buffer = [0; 16 * 1024];
    let mut taken = 0;
    loop {
        match rustix::io::read(&fd, &mut buffer) {
            Ok(0) => return (taken, End::Closed),
            Ok(read) => taken += read,
            Err(Errno::AGAIN) => return (taken, End::WouldBlock),
            Err(error) => return (taken, End::Error(error)),
        }
    }
}

/// The result of poll(2) for `fd` with the events `wanted`: the truth that mechanisms are compared
/// with.
pub fn poll_now(fd: impl AsFd, wanted: PollFlags) -> PollFlags {
    poll_within(fd, wanted, Duration::ZERO)
}

/// What poll(2) says of `fd` as soon as there is something to say, at most after `time`.
pub fn poll_within(fd: impl AsFd, wanted: PollFlags, time: Duration) -> PollFlags {
    let mut fds = [PollFd::new(&fd, wanted)];
    let time = Timespec::try_from(time).expect("a time that fits");
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&time))).expect("poll");
    fds[0].revents()
}
