//! Two non-blocking ends of a connection, and functions that fill and drain them.

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
    /// The end that the test controls.
    pub far: OwnedFd,
}

/// The kind of a pair.
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
    /// Creates a pair of this kind.
    pub fn new(kind: Kind) -> Self {
        match kind {
            Kind::Tcp => Self::tcp(),
            Kind::Unix => Self::unix(),
            Kind::Pipe => Self::pipe(),
        }
    }

    /// Creates a TCP connection over loopback, with TCP_NODELAY, so that each write arrives by itself.
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

    /// Creates a TCP connection whose buffers are as small as the kernel allows, so that they fill
    /// quickly.
    pub fn small_tcp() -> Self {
        let pair = Self::tcp();
        for fd in [&pair.near, &pair.far] {
            sockopt::set_socket_send_buffer_size(fd, 4096).expect("set SO_SNDBUF");
            sockopt::set_socket_recv_buffer_size(fd, 4096).expect("set SO_RCVBUF");
        }
        pair
    }

    /// Creates a UNIX stream socket pair.
    pub fn unix() -> Self {
        let (near, far) = UnixStream::pair().expect("socketpair");
        for stream in [&near, &far] {
            stream.set_nonblocking(true).expect("set O_NONBLOCK");
        }
        Self { near: near.into(), far: far.into() }
    }

    /// Creates a pipe; `near` is the reading end.
    pub fn pipe() -> Self {
        let (near, far) =
            rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).expect("pipe2");
        Self { near, far }
    }

    /// Writes from the far end; all of `bytes` must fit.
    pub fn send(&self, bytes: &[u8]) {
        assert_eq!(rustix::io::write(&self.far, bytes).expect("write to far"), bytes.len());
    }

    /// Makes the closing of `far` send a reset (TCP): sets SO_LINGER with a time of zero.
    pub fn reset_on_close(&self) {
        sockopt::set_socket_linger(&self.far, Some(Duration::ZERO)).expect("set SO_LINGER");
    }
}

/// Creates an eventfd with counter 0.
pub fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("eventfd")
}

/// A datagram socket with its own abstract address: one descriptor that any thread can make ready. A
/// process can have ten thousand of them where the limit of descriptors does not allow ten thousand
/// pairs.
#[derive(Debug)]
pub struct Mailbox {
    /// The socket; non-blocking.
    pub socket: UnixDatagram,
    address: UnixAddr,
}

impl Mailbox {
    /// Creates an empty mailbox.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pollux-testkit-{}-{number}", std::process::id());
        let address = UnixAddr::from_abstract_name(name).expect("an abstract address");
        let socket = UnixDatagram::bind_addr(&address).expect("bind a datagram socket");
        socket.set_nonblocking(true).expect("set O_NONBLOCK");
        Self { socket, address }
    }

    /// Sends one byte from the socket to itself. A single sender for many mailboxes would run out of
    /// send buffer.
    pub fn post(&self) {
        self.socket.send_to_addr(b"x", &self.address).expect("send a datagram");
    }
}

impl Default for Mailbox {
    fn default() -> Self {
        Self::new()
    }
}

/// Writes to `fd` until it would block, and returns how many bytes were written.
pub fn fill(fd: impl AsFd) -> usize {
    let block = [0x5a; 16 * 1024];
    let mut taken = 0;
    // At the end, a single byte may fit where a block does not.
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

/// The condition that [`drain`] found at the end of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// No more data for now.
    WouldBlock,
    /// End of stream.
    Closed,
    /// An error, usually ECONNRESET.
    Error(Errno),
}

/// Reads from `fd` until it would block, ends or fails; returns the number of bytes and the reason for
/// the end.
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

/// Returns the result of poll(2) for `fd` with the events `wanted`. The tests compare the mechanisms
/// with it.
pub fn poll_now(fd: impl AsFd, wanted: PollFlags) -> PollFlags {
    poll_within(fd, wanted, Duration::ZERO)
}

/// Returns the result of poll(2) for `fd` as soon as it reports an event, or after `time` at the
/// latest.
pub fn poll_within(fd: impl AsFd, wanted: PollFlags, time: Duration) -> PollFlags {
    let mut fds = [PollFd::new(&fd, wanted)];
    let time = Timespec::try_from(time).expect("a time that fits");
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&time))).expect("poll");
    fds[0].revents()
}
