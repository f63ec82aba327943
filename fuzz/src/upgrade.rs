//! Messages of a live upgrade: bytes that are a message are exactly what that message is written as, and no
//! shorter and no longer ones are the same message.

// The file alone, which needs nothing of the server: the whole server would take a C compiler and minutes.
#[allow(dead_code, reason = "the target calls a part of it")]
#[path = "../../crates/server/src/upgrade/message.rs"]
mod message;

use message::{CONNECTIONS_MAX, MESSAGE_MAX, Message};

/// The input is what came on the channel.
pub fn check(data: &[u8]) {
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
