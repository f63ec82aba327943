//! Descriptors in messages: SCM_RIGHTS (unix(7), cmsg(3)).

use super::{Call, count};
use rustix::{
    cmsg_space,
    net::{
        self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    },
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd, RawFd},
};

/// The most descriptors of one message: SCM_MAX_FD of the kernel (unix(7)).
pub const DESCRIPTORS_MAX: usize = 253;

/// CMSG_LEN of one descriptor. On 64-bit systems CMSG_SPACE, which is rounded up, has room for two.
// SAFETY: the function only calculates with a number.
const LENGTH: usize = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as u32) } as usize;

/// Memory for the ancillary message of one descriptor and no more, aligned as cmsg(3) requires.
#[repr(align(8))]
struct RightsMessage([MaybeUninit<u8>; LENGTH]);
const _: () = assert!(align_of::<RightsMessage>() >= align_of::<libc::cmsghdr>());

/// sendmsg(2) of `parts`, one after the other, with a copy of `descriptor`; MSG_NOSIGNAL and
/// MSG_DONTWAIT. On a socket that preserves message boundaries, either everything is sent or nothing.
///
/// # Errors
/// EAGAIN when the receiver has not taken enough of the earlier messages; EPIPE and ECONNRESET when it
/// has closed the socket; EMSGSIZE; ETOOMANYREFS when too many descriptors are in flight.
pub fn send_with_descriptor(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    let fits = control.push(SendAncillaryMessage::ScmRights(&descriptors));
    assert!(fits, "the space is for one descriptor");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(count(Call::Sendmsg, || net::sendmsg(socket, parts, &mut control, flags))?)
}

/// recvmsg(2) into `buffer`. Returns the descriptor of the message, if there is one; it is
/// close-on-exec.
///
/// # Errors
/// As recvmsg(2). InvalidData when a part of the message had to be cut off: the buffer is too small, or
/// the message has a second descriptor. Then no descriptor of the message is left open.
pub fn receive_with_descriptor(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = RightsMessage([MaybeUninit::uninit(); LENGTH]);
    let mut control = RecvAncillaryBuffer::new(&mut space.0);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = count(Call::Recvmsg, || {
        net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((received.bytes, descriptor))
}

/// sendmsg(2) of `bytes` with copies of up to [`DESCRIPTORS_MAX`] descriptors; MSG_NOSIGNAL and MSG_DONTWAIT.
///
/// # Errors
/// As [`send_with_descriptor`]; EINVAL with more descriptors.
pub fn send_with_descriptors(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(count(Call::Sendmsg, || net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))?)
}

/// recvmsg(2) into `buffer`. Returns all descriptors of the message, which are close-on-exec.
///
/// # Errors
/// As recvmsg(2). InvalidData when a part of the message had to be cut off: the buffer is too small, or
/// this process may open no more descriptors. Then no descriptor of the message is left open.
pub fn receive_with_descriptors(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = count(Call::Recvmsg, || {
        net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((received.bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PollFd, packet_pair, ppoll, send};
    use std::{
        io::{Read, Write},
        os::fd::{AsFd, AsRawFd},
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
        // A message without a descriptor, and a message that is too long.
        send(near.as_fd(), b"plain", false).unwrap();
        let (received, descriptor) = receive_with_descriptor(far.as_fd(), &mut buffer).unwrap();
        assert!(received == 5 && descriptor.is_none());
        send(near.as_fd(), b"longer than that", false).unwrap();
        let error = receive_with_descriptor(far.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(near);
        assert_eq!(receive_with_descriptor(far.as_fd(), &mut buffer).unwrap().0, 0);
    }

    /// Once the second descriptor was installed without an owner: a peer could use up all numbers.
    #[test]
    fn a_second_descriptor_is_refused_and_none_is_left_open() {
        let (near, far) = packet_pair().unwrap();
        let (there, here) = std::io::pipe().unwrap();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let two = [here.as_fd(); 2];
        assert!(control.push(SendAncillaryMessage::ScmRights(&two)));
        let parts = [IoSlice::new(b"two")];
        let sent = net::sendmsg(&near, &parts, &mut control, SendFlags::empty());
        assert_eq!(sent, Ok(3));
        drop(here);
        let mut buffer = [0; 8];
        let error = receive_with_descriptor(far.as_fd(), &mut buffer).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        // The write end of the pipe is closed.
        let mut entry = [PollFd { fd: there.as_raw_fd(), events: 0, revents: 0 }];
        assert_eq!(ppoll(&mut entry, Some(Duration::from_secs(20))).unwrap(), 1, "one is open");
        assert_eq!(entry[0].revents, libc::POLLHUP);
    }

    #[test]
    fn a_receiver_that_reads_nothing_fills_up() {
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

    #[test]
    fn many_descriptors_go_with_one_message() {
        let (near, far) = packet_pair().unwrap();
        let (mut there, here) = std::io::pipe().unwrap();
        let all = [here.as_fd(); DESCRIPTORS_MAX];
        assert_eq!(send_with_descriptors(near.as_fd(), b"all", &all).unwrap(), 3);
        drop(here);
        let mut buffer = [0; 8];
        let (received, descriptors) = receive_with_descriptors(far.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..received], descriptors.len()), (&b"all"[..], DESCRIPTORS_MAX));
        drop(descriptors);
        assert_eq!(there.read(&mut buffer).unwrap(), 0, "none is left open");
        send_with_descriptors(near.as_fd(), b"none", &[]).unwrap();
        assert_eq!(receive_with_descriptors(far.as_fd(), &mut buffer).unwrap().1.len(), 0);
        // A message that does not fit is refused, and its descriptors are closed.
        let (mut there, here) = std::io::pipe().unwrap();
        send_with_descriptors(near.as_fd(), b"longer than that", &[here.as_fd()]).unwrap();
        drop(here);
        let error = receive_with_descriptors(far.as_fd(), &mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(there.read(&mut buffer).unwrap(), 0);
        let many = [near.as_fd(); DESCRIPTORS_MAX + 1];
        assert!(send_with_descriptors(near.as_fd(), b"too many", &many).is_err());
    }
}
