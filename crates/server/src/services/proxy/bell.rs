//! What another worker rings when a fetch has ended that somebody here waits for.

use crate::reactor::{Endpoint, LinkId, Made, Outside, To};
use pollux_cache::Handle;
use pollux_sys as sys;
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::mpsc::sync_channel,
    thread,
};

/// Our end has until then to be taken in; it is connected already.
const HANG_TICKS: u32 = 50;

/// Hangs the bell of `handle`: octets come on the link when it is rung, which the application is told.
///
/// Who rings is another worker's thread, to which a descriptor of ours means nothing where workers have
/// file tables of their own. There a thread that shares our table stands between.
pub(super) fn hang(
    handle: &Handle,
    outside: &mut Outside,
    has_own_table: bool,
) -> io::Result<LinkId> {
    let (near, far) = sys::stream_pair()?;
    if has_own_table {
        let (ring, rings) = sync_channel(1);
        thread::Builder::new().name("cache-bell".into()).spawn(move || {
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
    Ok(outside.dial(Endpoint::Made(Made::new(near)), HANG_TICKS, To::Application))
}

/// When it takes no more, it has been rung already.
fn pull(far: &OwnedFd) {
    let _ = sys::send(far.as_fd(), &[1], false);
}
