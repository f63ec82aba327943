//! What another worker rings when a fetch has ended that somebody here waits for.

use crate::reactor::{ConnectedSocket, Endpoint, EventTarget, Reactor, UpstreamId};
use pollux_cache::Handle;
use pollux_sys as sys;
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::mpsc::sync_channel,
    thread,
};

/// Our end has until then to be taken in; it is connected already.
const NOTIFIER_TICKS: u32 = 50;

/// Registers the notifier of `handle`: when it is signalled, bytes arrive on the upstream
/// connection, and the service receives an event. The signal comes from another worker's thread, to
/// which a descriptor of ours means nothing where workers have file tables of their own. There a
/// thread that shares our table forwards it.
pub(super) fn hang(
    handle: &Handle,
    reactor: &mut Reactor,
    has_own_table: bool,
) -> io::Result<UpstreamId> {
    let (near, far) = sys::stream_pair()?;
    if has_own_table {
        let (ring, rings) = sync_channel(1);
        thread::Builder::new().name("cache-notify".into()).spawn(move || {
            while rings.recv().is_ok() {
                pull(&far);
            }
        })?;
        // It is full when it has been rung and nobody has heard yet.
        handle.set_notifier(move || {
            let _ = ring.try_send(());
        });
    } else {
        handle.set_notifier(move || pull(&far));
    }
    Ok(reactor.dial(
        Endpoint::Connected(ConnectedSocket::new(near)),
        NOTIFIER_TICKS,
        EventTarget::Service,
    ))
}

/// When it takes no more, it has been rung already.
fn pull(far: &OwnedFd) {
    let _ = sys::send(far.as_fd(), &[1], false);
}
