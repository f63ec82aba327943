//! Sockets on the request path: accept, recv, send.

use super::{Call, check, check_len, check_long, connect::set_socket_option, count};
use std::{
    io::{self, IoSlice},
    mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    time::Duration,
};

/// accept4(2), non-blocking and close-on-exec, without the peer's address.
#[inline]
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: null address pointers are allowed; a descriptor it returns is new and ours.
    count(Call::Accept, || unsafe {
        check(libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        ))
        .map(|fd| OwnedFd::from_raw_fd(fd))
    })
}

/// recv(2), by its system call recvfrom(2).
///
/// In a process with threads the C library's recv(), send() and epoll_wait() are points of
/// cancellation (pthreads(7)), which each call pays for; nobody is cancelled here.
#[inline]
pub fn recv(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    recv_with(socket, buffer, 0)
}

/// [`recv`] with MSG_DONTWAIT: never waits, also on a socket that is blocking.
#[inline]
pub fn recv_now(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    recv_with(socket, buffer, libc::MSG_DONTWAIT)
}

#[inline]
fn recv_with(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    let (no_address, no_length) = (ptr::null_mut::<u8>(), ptr::null_mut::<u8>());
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`, and no address.
    count(Call::Recv, || unsafe {
        check_long(libc::syscall(
            libc::SYS_recvfrom,
            socket.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
            flags,
            no_address,
            no_length,
        ))
    })
}

/// send(2), by its system call sendto(2), with MSG_NOSIGNAL; `more` adds MSG_MORE: hold a partial
/// segment back, more follows.
#[inline]
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> {
    send_with(socket, bytes, if more { libc::MSG_MORE } else { 0 })
}

/// [`send`] with MSG_DONTWAIT: never waits, also on a socket that is blocking.
#[inline]
pub fn send_now(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> {
    send_with(socket, bytes, libc::MSG_DONTWAIT | if more { libc::MSG_MORE } else { 0 })
}

#[inline]
fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: the kernel reads at most `bytes.len()` bytes from `bytes`, and no address.
    count(Call::Send, || unsafe {
        check_long(libc::syscall(
            libc::SYS_sendto,
            socket.as_raw_fd(),
            bytes.as_ptr(),
            bytes.len(),
            flags | libc::MSG_NOSIGNAL,
            ptr::null::<u8>(),
            0usize,
        ))
    })
}

/// sendmsg(2) of two slices one after the other, with MSG_NOSIGNAL and MSG_DONTWAIT.
#[inline]
pub fn send_two(socket: BorrowedFd<'_>, first: &[u8], second: &[u8]) -> io::Result<usize> {
    let mut slices = [IoSlice::new(first), IoSlice::new(second)];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    // `IoSlice` has the layout of iovec (std's documentation).
    message.msg_iov = slices.as_mut_ptr().cast();
    message.msg_iovlen = slices.len() as _;
    // SAFETY: the kernel only reads the message, the slices and their bytes, which all live
    // through the call.
    count(Call::Sendmsg, || unsafe {
        check_len(libc::sendmsg(
            socket.as_raw_fd(),
            &message,
            libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
        ))
    })
}

/// shutdown(2) with SHUT_WR: the peer sees the end of the stream, and may go on sending.
pub fn shutdown_write(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointer.
    count(Call::Shutdown, || unsafe {
        check(libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR)).map(drop)
    })
}

/// TCP_CORK: while it is on, only full segments leave; turning it off sends the rest.
#[inline]
pub fn set_cork(socket: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    set_socket_option(socket, libc::IPPROTO_TCP, libc::TCP_CORK, libc::c_int::from(on))
}

/// O_NONBLOCK of a socket, by ioctl(2) with FIONBIO, which takes one call where fcntl(2) takes two.
///
/// # Errors
/// What ioctl(2) said.
pub fn set_nonblocking(socket: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let mut value = libc::c_int::from(on);
    // SAFETY: the kernel reads an int.
    count(Call::Ioctl, || unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::FIONBIO, &raw mut value)).map(drop)
    })
}

/// SO_RCVTIMEO (socket(7)): how long a blocking recv(2) waits before it fails with EAGAIN; zero is
/// for ever.
///
/// # Errors
/// What setsockopt(2) said.
pub fn set_receive_timeout(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let value = libc::timeval {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_usec: libc::suseconds_t::from(timeout.subsec_micros() as i32),
    };
    set_socket_option(socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, value)
}

/// socketpair(2): two connected UNIX stream sockets, non-blocking, close-on-exec.
pub fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    socket_pair(libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
}

/// socketpair(2): two connected UNIX sequenced-packet sockets, blocking, close-on-exec.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    socket_pair(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC)
}

fn socket_pair(kind: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors into `ends`; they are new and ours.
    count(Call::Socketpair, || unsafe {
        check(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()))
            .map(|_| (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    })
}

/// SIOCOUTQ (tcp(7), unix(7)): octets that were sent and that the peer has not taken: of TCP those
/// that it has not acknowledged.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut octets: libc::c_int = 0;
    // SAFETY: the kernel writes one int to `octets`, which lives through the call.
    count(Call::Ioctl, || unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ as _, &raw mut octets))
    })?;
    Ok(octets as u64)
}

/// How many connections wait in a TCP listener's queue (TCP_INFO, whose `tcpi_unacked` says so of a
/// listener).
///
/// # Errors
/// EOPNOTSUPP for other sockets: of a UNIX socket the kernel does not tell.
pub fn waiting_connections(listener: BorrowedFd<'_>) -> io::Result<u32> {
    // struct tcp_info (linux/tcp.h): eight octets, then numbers of 32 bits, of which this is the fifth.
    let mut words = [0u32; 7];
    let mut len = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `words`; both live through the call.
    count(Call::Getsockopt, || unsafe {
        check(libc::getsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            words.as_mut_ptr().cast(),
            &raw mut len,
        ))
    })?;
    Ok(words[6])
}

/// The protocol of a socket (SO_PROTOCOL): IPPROTO_TCP, or 0 for UNIX sockets.
///
/// # Errors
/// ENOTSOCK for other descriptors.
pub fn socket_protocol(fd: RawFd) -> io::Result<i32> {
    let mut protocol: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `protocol`; both live through the call.
    count(Call::Getsockopt, || unsafe {
        check(libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_PROTOCOL,
            (&raw mut protocol).cast(),
            &mut len,
        ))
    })?;
    Ok(protocol)
}
