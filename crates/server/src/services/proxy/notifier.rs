//! The notifier, through which another worker reports the end of a fetch for which an exchange of this worker
//! waits.

use crate::reactor::{ConnectedSocket, Endpoint, EventTarget, Reactor, UpstreamId};
use pollux_cache::Handle;
use pollux_sys as sys;
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::mpsc::sync_channel,
    thread,
};

/// The time limit for registering this worker's end, in ticks. That end is connected already.
const NOTIFIER_TICKS: u32 = 50;

/// Registers the notifier of `handle`: when it is signalled, bytes arrive on the upstream connection, and the
/// service receives an event. The signal comes from another worker's thread. If workers have separate file
/// tables, that thread cannot use a descriptor of this worker; then a thread that shares this worker's table
/// forwards the signal.
pub(super) fn register(
    handle: &Handle,
    reactor: &mut Reactor,
    has_own_table: bool,
) -> io::Result<UpstreamId> {
    let (near, far) = sys::stream_pair()?;
    if has_own_table {
        let (sender, notifications) = sync_channel(1);
        thread::Builder::new().name("cache-notify".into()).spawn(move || {
            while notifications.recv().is_ok() {
                notify(&far);
            }
        })?;
        // The channel is full while a notification waits in it: one is enough.
        handle.set_notifier(move || {
            let _ = sender.try_send(());
        });
    } else {
        handle.set_notifier(move || notify(&far));
    }
    Ok(reactor.dial(
        Endpoint::Connected(ConnectedSocket::new(near)),
        NOTIFIER_TICKS,
        EventTarget::Service,
    ))
}

/// Sends a byte. A full socket buffer means that earlier ones have not been read yet: that is enough.
fn notify(far: &OwnedFd) {
    let _ = sys::send(far.as_fd(), &[1], false);
}
