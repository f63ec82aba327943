//! Kernel TLS (Documentation/networking/tls.rst of the kernel): with the keys of a connection, the
//! kernel makes records of all bytes that are sent on its socket.

use super::{Call, PollFd, check, check_len, count, ppoll};
use std::{
    io, mem,
    os::fd::{AsRawFd as _, BorrowedFd},
    time::Duration,
};

/// Attaches the kernel's TLS to a connection (TCP_ULP). As long as it has no keys, the bytes of the
/// connection are sent unchanged. If the process has CAP_NET_ADMIN, the call loads the module.
///
/// # Errors
/// ENOENT if the kernel does not have it, ENOPROTOOPT before Linux 4.13, ENOTCONN without a connection
/// or if the peer has shut down its side, EEXIST if it is already attached.
pub fn attach_kernel_tls(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls")
}

/// Gives the kernel the keys for sending (TLS_TX): a `struct tls12_crypto_info_…` of linux/tls.h as
/// bytes. From then on the kernel makes records of the bytes that are sent on the socket.
///
/// # Errors
/// EBUSY if it has keys and cannot change them (before Linux 6.14, and with TLS 1.2); EINVAL or ENOENT
/// if it does not support the cipher.
pub fn set_kernel_tls_keys(socket: BorrowedFd<'_>, crypto_info: &[u8]) -> io::Result<()> {
    set_option(socket, libc::SOL_TLS, libc::TLS_TX, crypto_info)
}

fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    // SAFETY: the kernel reads `value.len()` bytes from `value`, which lives through the call.
    count(Call::Setsockopt, || unsafe {
        check(libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        ))
    })?;
    Ok(())
}

/// CMSG_LEN of one byte.
// SAFETY: the function only calculates with a number.
const RECORD_TYPE_LEN: usize = unsafe { libc::CMSG_LEN(1) } as usize;
/// CMSG_SPACE of one byte.
// SAFETY: the function only calculates with a number.
const RECORD_TYPE_SPACE: usize = unsafe { libc::CMSG_SPACE(1) } as usize;

/// The ancillary message with the type of a record, laid out as cmsg(3) requires.
#[repr(C)]
struct RecordType {
    header: libc::cmsghdr,
    /// The type, and padding.
    kind: [u8; RECORD_TYPE_SPACE - size_of::<libc::cmsghdr>()],
}
const _: () = assert!(size_of::<RecordType>() == RECORD_TYPE_SPACE);
const _: () = assert!(RECORD_TYPE_LEN == size_of::<libc::cmsghdr>() + 1);

/// sendmsg(2) of one record of the type `kind` on a socket whose records the kernel makes; MSG_NOSIGNAL
/// and MSG_DONTWAIT. Data that is not yet in a record is sent in a record before it.
///
/// # Errors
/// sendmsg(2); EAGAIN when the socket accepts no bytes.
pub fn send_record(socket: BorrowedFd<'_>, kind: u8, content: &[u8]) -> io::Result<usize> {
    let mut part =
        libc::iovec { iov_base: content.as_ptr().cast_mut().cast(), iov_len: content.len() };
    // SAFETY: both are plain integers and pointers, for which zeros are valid.
    let (mut control, mut message): (RecordType, libc::msghdr) = unsafe { mem::zeroed() };
    control.header.cmsg_level = libc::SOL_TLS;
    control.header.cmsg_type = libc::TLS_SET_RECORD_TYPE;
    control.header.cmsg_len = RECORD_TYPE_LEN as _;
    control.kind[0] = kind;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = RECORD_TYPE_SPACE as _;
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the kernel reads the message, its one part, which is `content`, and the ancillary message; all of them
    // live through the call.
    count(Call::Sendmsg, || unsafe {
        check_len(libc::sendmsg(socket.as_raw_fd(), &raw const message, flags))
    })
}

/// Whether a send may succeed now (ppoll(2), POLLOUT): a third of the socket's buffer is free, or there
/// is an error. If false, an edge-triggered mechanism reports the socket when it becomes writable.
///
/// # Errors
/// ppoll(2).
pub fn is_writable(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let mut polled = [PollFd { fd: socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 }];
    Ok(ppoll(&mut polled, Some(Duration::ZERO))? > 0)
}

/// Explains to a person why [`attach_kernel_tls`] failed on a connection.
pub fn kernel_tls_refusal(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT) => "the kernel has no CONFIG_TLS, or its module `tls` is not loaded \
                               (modprobe tls)"
            .into(),
        Some(libc::ENOPROTOOPT) => "this kernel is older than 4.13, which brought TCP_ULP".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::{Ipv4Addr, TcpListener, TcpStream},
        os::fd::AsFd as _,
    };

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn a_fresh_connection_is_writable_and_one_that_is_full_is_not() {
        let (_client, server) = pair();
        assert!(is_writable(server.as_fd()).unwrap());
        server.set_nonblocking(true).unwrap();
        while crate::send_now(server.as_fd(), &[0; 1 << 16], false).is_ok() {}
        assert!(!is_writable(server.as_fd()).unwrap());
    }

    #[test]
    fn a_socket_without_kernel_tls_takes_no_keys() {
        let (_client, server) = pair();
        assert!(set_kernel_tls_keys(server.as_fd(), &[0; 40]).is_err());
    }

    #[test]
    fn refusals_say_what_is_missing() {
        let text = |code| kernel_tls_refusal(&io::Error::from_raw_os_error(code));
        assert!(text(libc::ENOENT).contains("modprobe tls"));
        assert!(text(libc::ENOPROTOOPT).contains("4.13"));
        assert!(text(libc::EACCES).contains("ermission"));
    }
}
