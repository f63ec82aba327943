//! Descriptors in messages: SCM_RIGHTS (unix(7), cmsg(3)).

use super::{Call, check_len, count};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

/// Room for the ancillary message of one descriptor, aligned as cmsg(3) wants it.
#[repr(C)]
union Control {
    octets: [u8; 64],
    _aligned: [libc::cmsghdr; 0],
}

/// CMSG_SPACE of one descriptor.
// SAFETY: it computes with a number.
const SPACE: usize = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
const _: () = assert!(SPACE <= size_of::<Control>());

/// CMSG_LEN of one descriptor. On 64-bit systems CMSG_SPACE, which is rounded up, is room for two.
// SAFETY: it computes with a number.
const LENGTH: usize = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as u32) } as usize;

/// sendmsg(2) of `parts`, one after the other, with a copy of `descriptor`; MSG_NOSIGNAL and
/// MSG_DONTWAIT. Of a socket that keeps messages apart all of it leaves, or none.
///
/// # Errors
/// EAGAIN when the receiver has not taken enough of what was sent before; EPIPE and ECONNRESET when
/// it is gone; EMSGSIZE; ETOOMANYREFS when too many descriptors are on their way.
pub fn send_with_descriptor(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    let mut control = Control { octets: [0; 64] };
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    // `IoSlice` has the layout of iovec (std's documentation); the kernel only reads it.
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = SPACE as _;
    // SAFETY: `control` is aligned and has room for the header and one descriptor, as asserted.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = LENGTH as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor.as_raw_fd());
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message and all that it points to live through the call.
    count(Call::Sendmsg, || unsafe {
        check_len(libc::sendmsg(socket.as_raw_fd(), &message, flags))
    })
}

/// recvmsg(2) into `buffer`, with the descriptor that came with it, if one did; it is close-on-exec.
///
/// # Errors
/// As recvmsg(2). InvalidData when something had to be cut off: the buffer is too small, or a
/// further descriptor came. Then no descriptor of the message is left open.
pub fn receive_with_descriptor(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = Control { octets: [0; 64] };
    let mut parts = [IoSliceMut::new(buffer)];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr().cast();
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = LENGTH as _;
    // SAFETY: the message and all that it points to live through the call.
    let received = count(Call::Recvmsg, || unsafe {
        check_len(libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC))
    })?;
    // SAFETY: the kernel has written `msg_controllen` octets of whole ancillary messages; a
    // descriptor in one of them is new and ours.
    let descriptor = unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        let is_rights = !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
            && (*header).cmsg_len as usize >= LENGTH;
        is_rights
            .then(|| OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
    };
    if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((received, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PollFd, packet_pair, ppoll, send};
    use std::{
        io::{Read, Write},
        os::fd::AsFd,
        time::Duration,
    };

    #[test]
    fn a_descriptor_goes_with_its_message() {
        let (near, far) = packet_pair().unwrap();
        let (mut there, here) = std::io::pipe().unwrap();
        let parts = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"c")];
        assert_eq!(send_with_descriptor(near.as_fd(), &parts, here.as_fd()).unwrap(), 3);
        drop(here);
        let mut buffer = [0; 8];
        let (received, descriptor) = receive_with_descriptor(far.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..received], b"abc");
        std::fs::File::from(descriptor.unwrap()).write_all(b"through it").unwrap();
        let mut text = String::new();
        there.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through it");
        // Without one, and one that is too long.
        send(near.as_fd(), b"plain", false).unwrap();
        let (received, descriptor) = receive_with_descriptor(far.as_fd(), &mut buffer).unwrap();
        assert!(received == 5 && descriptor.is_none());
        send(near.as_fd(), b"longer than that", false).unwrap();
        let error = receive_with_descriptor(far.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(near);
        assert_eq!(receive_with_descriptor(far.as_fd(), &mut buffer).unwrap().0, 0);
    }

    /// The second was installed, and nobody knew of it: a peer could use up all numbers.
    #[test]
    fn a_second_descriptor_is_refused_and_none_is_left_open() {
        let (near, far) = packet_pair().unwrap();
        let (there, here) = std::io::pipe().unwrap();
        let mut control = Control { octets: [0; 64] };
        let mut parts = [IoSlice::new(b"two")];
        let two = [here.as_raw_fd(); 2];
        // SAFETY: all-zero is a valid msghdr; `control` is aligned and has room for the header and
        // two descriptors; all that the message points to lives through the call.
        unsafe {
            let mut message: libc::msghdr = mem::zeroed();
            message.msg_iov = parts.as_mut_ptr().cast();
            message.msg_iovlen = 1;
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of_val(&two) as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of_val(&two) as u32) as _;
            libc::CMSG_DATA(header).cast::<[RawFd; 2]>().write_unaligned(two);
            assert_eq!(libc::sendmsg(near.as_raw_fd(), &message, 0), 3);
        }
        drop(here);
        let mut buffer = [0; 8];
        let error = receive_with_descriptor(far.as_fd(), &mut buffer).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        // Nobody can write into the pipe any more.
        let mut entry = [PollFd { fd: there.as_raw_fd(), events: 0, revents: 0 }];
        assert_eq!(ppoll(&mut entry, Some(Duration::from_secs(20))).unwrap(), 1, "one is open");
        assert_eq!(entry[0].revents, libc::POLLHUP);
    }

    #[test]
    fn who_takes_nothing_is_full_at_last() {
        let (near, _far) = packet_pair().unwrap();
        let mut full = None;
        for _ in 0..100_000 {
            let parts = [IoSlice::new(&[0; 1000])];
            if let Err(error) = send_with_descriptor(near.as_fd(), &parts, near.as_fd()) {
                full = Some(error);
                break;
            }
        }
        let error = full.expect("a bound").raw_os_error();
        assert!(matches!(error, Some(libc::EAGAIN | libc::ETOOMANYREFS)), "{error:?}");
    }
}
