//! Messages of a live upgrade: bytes that are a message are exactly what that message is written as, and no
//! shorter and no longer ones are the same message.

// The file alone, which needs nothing of the server: the whole server would take a C compiler and minutes.
#[allow(dead_code, reason = "the target calls a part of it")]
#[path = "../../crates/server/src/upgrade/message.rs"]
mod message;

use message::{CONNECTIONS_MAX, MESSAGE_MAX, Message, VERSION};

/// The place of the version in a message: after the four bytes that identify it.
const VERSION_AT: std::ops::Range<usize> = 4..6;

/// The input is what came on the channel. The version 0 stands for the present one, so that the kept corpus is
/// accepted after a change of the format; no format has the version 0.
pub fn check(data: &[u8]) {
    let mut data = data.to_vec();
    if data.get(VERSION_AT) == Some(&[0, 0]) {
        data[VERSION_AT].copy_from_slice(&VERSION.to_be_bytes());
    }
    let data = data.as_slice();
    let Ok(message) = Message::decode(data) else { return };
    assert!(data.len() <= MESSAGE_MAX && message.descriptors() <= CONNECTIONS_MAX);
    let mut written = message.encode();
    // The fault: the last byte is lost.
    written.truncate(written.len() - usize::from(crate::planted()));
    assert_eq!(written, data, "{message:?}");
    assert!(Message::decode(&data[..data.len() - 1]).is_err(), "a byte less: {message:?}");
    let longer = [data, &[0]].concat();
    assert!(Message::decode(&longer).is_err(), "a byte more: {message:?}");
}
