//! Sockets on the request path: accept, recv, send.
//!
//! Uses rustix, whose system calls are inline. In a process with threads, the C library's recv(),
//! send() and similar functions are cancellation points (pthreads(7)), and each call pays for that; no
//! thread is cancelled here.

use super::{Call, check, count};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags,
    SocketType, sockopt,
};
use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

/// Non-blocking and close-on-exec.
pub(super) const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// accept4(2), non-blocking and close-on-exec, without the peer's address.
#[inline]
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(count(Call::Accept, || net::accept_with(listener, FLAGS))?)
}

/// Like [`accept`], with the peer's address, which the kernel writes in the same system call; `None`
/// for a UNIX socket.
#[inline]
pub fn accept_with_address(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    let (socket, peer) = count(Call::Accept, || net::acceptfrom_with(listener, FLAGS))?;
    Ok((socket, peer.and_then(|peer| peer.try_into().ok())))
}

/// recv(2), by its system call recvfrom(2).
#[inline]
pub fn recv(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    recv_with(socket, buffer, RecvFlags::empty())
}

/// [`recv`] with MSG_DONTWAIT: never waits, even on a blocking socket.
#[inline]
pub fn recv_now(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    recv_with(socket, buffer, RecvFlags::DONTWAIT)
}

/// [`recv_now`] with MSG_PEEK: the bytes stay in the socket.
pub fn peek_now(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    recv_with(socket, buffer, RecvFlags::DONTWAIT | RecvFlags::PEEK)
}

#[inline]
fn recv_with(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    // The two lengths of the result differ only with MSG_TRUNC.
    Ok(count(Call::Recv, || net::recv(socket, buffer, flags))?.0)
}

/// send(2), by its system call sendto(2), with MSG_NOSIGNAL; `more` adds MSG_MORE: the kernel holds
/// back a partial segment, because more data follows.
#[inline]
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> {
    send_with(socket, bytes, if more { SendFlags::MORE } else { SendFlags::empty() })
}

/// [`send`] with MSG_DONTWAIT: never waits, even on a blocking socket.
#[inline]
pub fn send_now(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> {
    let more = if more { SendFlags::MORE } else { SendFlags::empty() };
    send_with(socket, bytes, SendFlags::DONTWAIT | more)
}

#[inline]
fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], flags: SendFlags) -> io::Result<usize> {
    Ok(count(Call::Send, || net::send(socket, bytes, flags | SendFlags::NOSIGNAL))?)
}

/// sendmsg(2) of two slices one after the other, with MSG_NOSIGNAL and MSG_DONTWAIT.
#[inline]
pub fn send_two(socket: BorrowedFd<'_>, first: &[u8], second: &[u8]) -> io::Result<usize> {
    let slices = [IoSlice::new(first), IoSlice::new(second)];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut nothing = SendAncillaryBuffer::default();
    Ok(count(Call::Sendmsg, || net::sendmsg(socket, &slices, &mut nothing, flags))?)
}

/// shutdown(2) with SHUT_WR: the peer sees the end of the stream, and may still send.
pub fn shutdown_write(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(count(Call::Shutdown, || net::shutdown(socket, Shutdown::Write))?)
}

/// TCP_CORK: while it is on, only full segments are sent; turning it off sends the rest.
#[inline]
pub fn set_cork(socket: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    Ok(count(Call::Setsockopt, || sockopt::set_tcp_cork(socket, on))?)
}

/// O_NONBLOCK of a socket, by ioctl(2) with FIONBIO, which needs one call where fcntl(2) needs two.
///
/// # Errors
/// The errors of ioctl(2).
pub fn set_nonblocking(socket: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    Ok(count(Call::Ioctl, || rustix::io::ioctl_fionbio(socket, on))?)
}

/// SO_RCVTIMEO (socket(7)): how long a blocking recv(2) waits before it fails with EAGAIN; zero is
/// for ever.
///
/// # Errors
/// The errors of setsockopt(2).
pub fn set_receive_timeout(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let timeout = (!timeout.is_zero()).then_some(timeout);
    let set = || sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, timeout);
    Ok(count(Call::Setsockopt, set)?)
}

/// socketpair(2): two connected UNIX stream sockets, non-blocking, close-on-exec.
pub fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    socket_pair(SocketType::STREAM, FLAGS)
}

/// socketpair(2): two connected UNIX sequenced-packet sockets, blocking, close-on-exec.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    socket_pair(SocketType::SEQPACKET, SocketFlags::CLOEXEC)
}

fn socket_pair(kind: SocketType, flags: SocketFlags) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(count(Call::Socketpair, || net::socketpair(AddressFamily::UNIX, kind, flags, None))?)
}

/// SIOCOUTQ (tcp(7), unix(7)): the number of bytes that were sent but not taken by the peer: with TCP,
/// not acknowledged.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one int to `bytes`, which lives through the call.
    count(Call::Ioctl, || unsafe {
        check(libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ as _, &raw mut bytes))
    })?;
    Ok(bytes as u64)
}

/// The number of connections that wait in a TCP listener's queue (TCP_INFO: for a listener,
/// `tcpi_unacked` is this number).
///
/// # Errors
/// EOPNOTSUPP for other sockets: the kernel does not report it for a UNIX socket.
pub fn waiting_connections(listener: BorrowedFd<'_>) -> io::Result<u32> {
    // struct tcp_info (linux/tcp.h) is eight bytes, then numbers of 32 bits; this is the fifth of them.
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
/// ENOTSOCK for other descriptors, EBADF for a number that is no descriptor.
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
