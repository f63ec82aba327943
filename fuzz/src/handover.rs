//! Hand-over messages: a message arrives whole, with its descriptor; a message that does not fit is refused, and no
//! descriptor stays open.

use pollux_sys::{packet_pair, receive_with_descriptor, send_with_descriptor};
use std::{
    fs::{self, File},
    io::IoSlice,
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt},
    },
};

/// Longer messages would test nothing new.
const MESSAGE_MAX: usize = 4096;

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("Linux has /proc").count()
}

/// The input is the receiver's room, the length of the first part, and the message.
pub fn check(data: &[u8]) {
    let [room_low, room_high, first, message @ ..] = data else { return };
    let message = &message[..message.len().min(MESSAGE_MAX)];
    let room = usize::from(u16::from_le_bytes([*room_low, *room_high])) % (MESSAGE_MAX + 2);
    let before = open_descriptors();
    {
        let (sender, receiver) = packet_pair().expect("a pair");
        let file = tempfile_with(message);
        let (head, behind) = message.split_at(usize::from(*first).min(message.len()));
        let parts = [IoSlice::new(head), IoSlice::new(behind)];
        let sent = send_with_descriptor(sender.as_fd(), &parts, file.as_fd());
        assert_eq!(sent.expect("an empty queue takes it"), message.len());
        drop(sender);

        let mut buffer = vec![0; room];
        match receive_with_descriptor(receiver.as_fd(), &mut buffer) {
            Ok((length, descriptor)) => {
                assert!(message.len() <= room, "{} bytes in {room}", message.len());
                // The planted fault: the last byte is lost.
                let length = length.saturating_sub(usize::from(crate::planted()));
                assert_eq!(&buffer[..length], message);
                let received = File::from(descriptor.expect("a descriptor came with it"));
                let [one, other] = [&file, &received].map(|it| it.metadata().expect("a file"));
                assert_eq!((one.dev(), one.ino()), (other.dev(), other.ino()), "another file");
                let mut content = vec![0; message.len()];
                received.read_exact_at(&mut content, 0).expect("what was written");
                assert_eq!(content, message);
            }
            Err(error) => assert!(message.len() > room, "{error}: {} of {room}", message.len()),
        }
    }
    assert_eq!(open_descriptors(), before, "a descriptor stays open");
}

fn tempfile_with(content: &[u8]) -> File {
    let path = std::env::temp_dir().join(format!("pollux-fuzz-{}", std::process::id()));
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.expect("a file");
    fs::remove_file(&path).expect("its name");
    file.write_all_at(content, 0).expect("room for it");
    file
}
