//! TLS for a connection: it decrypts received bytes and encrypts sent bytes. The layers above do not depend
//! on it.
//!
//! A worker is a thread, and its sessions are in a variable of that thread: engines identify a peer by its
//! descriptor, and so does this module. An idle connection is one entry of a table, 104 bytes. Further
//! state of a connection (a handshake, part of a record, records that the socket has not taken) exists only
//! while it is needed.
//!
//! # Rules for engines
//!
//! - No decrypted plaintext stays in this module: all of it is in the caller's buffer, which must have room
//!   for a whole record ([`pollux_tls::RECORD_MAX`]). The length does not show whether the socket is
//!   drained; [`super::Transport::may_have_more`] does.
//! - A send that takes fewer bytes than it was given must be repeated with the same bytes: they may already
//!   be encrypted and only wait to be sent.
//! - A handshake takes place inside receive, which returns `WouldBlock` until it is complete. It may wait for
//!   room in the socket instead of input: [`super::Transport::awaits_room`]. `Interrupted`
//!   means that the engine must call receive again after it has served other connections. An engine that
//!   serves one connection at a time calls [`super::Transport::establish`] before.

mod client;
mod handshake;
mod kernel;
mod limits;
mod receive;
mod send;
mod settings;
#[cfg(test)]
mod tests;
mod worker;

pub use client::OriginTls;
pub(crate) use client::{HandshakeStep, TlsPeer};
pub(crate) use limits::HANDSHAKE_TIMEOUT;
pub use settings::Tls;
pub(crate) use settings::provided;

use crate::stats::{Counter, Counters};
use std::{
    cell::RefCell,
    io,
    net::IpAddr,
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::Arc,
};
use worker::Worker;

thread_local! {
    /// This thread's sessions; `None` until the first TLS connection.
    static WORKER: RefCell<Option<Box<Worker>>> = const { RefCell::new(None) };
}

/// Calls `act` with this thread's sessions.
fn with_worker<R>(act: impl FnOnce(&mut Worker) -> io::Result<R>) -> io::Result<R> {
    WORKER.with_borrow_mut(|worker| match worker {
        Some(worker) => act(worker),
        // Connections do not move between threads.
        None => Err(io::Error::other("a TLS connection of another thread")),
    })
}

/// Adds a connection that a client has made.
///
/// # Errors
/// There is no memory for the session.
pub(super) fn accept(
    socket: BorrowedFd<'_>,
    client: Option<IpAddr>,
    server: &Arc<Tls>,
) -> io::Result<()> {
    WORKER.with_borrow_mut(|worker| {
        let worker = worker.get_or_insert_with(Box::default);
        worker.accept(socket, client, server)
    })
}

/// Begins a handshake on a connection that this side has made; [`shake_hands`] continues it.
///
/// # Errors
/// There is no memory for the session, or rustls refuses the configuration.
pub(super) fn connect(socket: BorrowedFd<'_>, peer: &Arc<TlsPeer>) -> io::Result<()> {
    WORKER.with_borrow_mut(|worker| {
        let worker = worker.get_or_insert_with(Box::default);
        worker.connect(socket, peer)
    })
}

/// Continues a handshake that [`connect`] has begun; see [`super::Transport::shake_hands`].
pub(super) fn shake_hands(socket: BorrowedFd<'_>) -> io::Result<HandshakeStep> {
    with_worker(|worker| worker.client_handshake(socket))
}

/// Continues the handshake of a connection that a client has made; see [`super::Transport::establish`].
pub(super) fn establish(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<HandshakeStep> {
    with_worker(|worker| worker.establish(socket, buffer))
}

/// Returns the session of an idle connection, for another process. Returns `None` if the connection has
/// further state.
pub(super) fn park(socket: BorrowedFd<'_>) -> Option<Vec<u8>> {
    with_worker(|worker| Ok(worker.park(socket))).ok().flatten()
}

/// Adds an idle connection with the session that another process has parked.
///
/// # Errors
/// `session` is not a session, or there is no memory for it.
pub(super) fn resume(socket: BorrowedFd<'_>, session: &[u8], server: &Arc<Tls>) -> io::Result<()> {
    WORKER.with_borrow_mut(|worker| {
        let worker = worker.get_or_insert_with(Box::default);
        worker.resume(socket, session, server)
    })
}

/// The function that reads a socket: without waiting, or waiting for as long as its timeout.
pub(super) type Receive = fn(BorrowedFd<'_>, &mut [u8]) -> io::Result<usize>;

/// Receives plaintext; see [`super::Transport::receive`].
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    receive: Receive,
) -> io::Result<usize> {
    with_worker(|worker| worker.receive(socket, buffer, receive))
}

/// Returns whether the last `receive` on this thread may have left input in the socket.
pub(super) fn may_have_more() -> bool {
    WORKER.with_borrow(|worker| worker.as_ref().is_some_and(|worker| worker.may_have_more))
}

/// Returns whether the output of a handshake waits for room in the socket.
pub(super) fn awaits_room(socket: BorrowedFd<'_>) -> bool {
    let awaits_room = with_worker(|worker| Ok(worker.awaits_room(socket)));
    awaits_room.unwrap_or(false)
}

/// Returns whether part of a record was received.
pub(super) fn has_part_of_record(socket: BorrowedFd<'_>) -> bool {
    let has_part = with_worker(|worker| Ok(worker.has_part_of_record(socket)));
    has_part.unwrap_or(false)
}

/// Returns whether a handshake was completed by the last `receive` on this thread.
pub(super) fn has_just_shaken_hands() -> bool {
    WORKER.with_borrow(|worker| worker.as_ref().is_some_and(|worker| worker.has_shaken_hands))
}

/// Returns whether a client has sent close_notify, or this side has ended the connection with close_notify
/// or an alert; see [`super::Transport::has_ended`].
pub(super) fn has_ended(socket: BorrowedFd<'_>) -> bool {
    let has_ended = with_worker(|worker| Ok(worker.has_ended(socket)));
    has_ended.unwrap_or(false)
}

/// Sends two pieces of plaintext; see [`super::Transport::send_two`].
pub(super) fn send(
    socket: BorrowedFd<'_>,
    first: &[u8],
    second: &[u8],
    more: bool,
) -> io::Result<usize> {
    with_worker(|worker| worker.send(socket, send::Source::Bytes(first, second), more))
}

/// Sends a piece of a file; see [`super::Transport::send_file`].
pub(super) fn send_file(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: &mut u64,
    len: usize,
) -> io::Result<usize> {
    let source = send::Source::File { file, offset: *offset, len };
    let sent = with_worker(|worker| worker.send(socket, source, false))?;
    *offset += sent as u64;
    Ok(sent)
}

/// Sends close_notify: this side sends no more.
pub(super) fn close_notify(socket: BorrowedFd<'_>) {
    let _ = with_worker(|worker| {
        worker.close_notify(socket);
        Ok(())
    });
}

/// Removes a connection, and zeroes its secrets.
pub(super) fn forget(socket: BorrowedFd<'_>) {
    let _ = with_worker(|worker| {
        worker.forget(socket.as_raw_fd());
        Ok(())
    });
}

/// Returns the certificate that the client of a connection has sent, as the value of `Client-Cert`.
pub(crate) fn client_certificate(socket: BorrowedFd<'_>) -> Option<Arc<[u8]>> {
    WORKER.with_borrow(|worker| {
        worker.as_ref()?.client_certificates.get(&socket.as_raw_fd()).map(Arc::clone)
    })
}

/// Adds to the counters the handshakes that have ended on this thread since the last call, and the attempts
/// to pass keys to the kernel.
pub(crate) fn count_handshakes(counters: &Counters) {
    WORKER.with_borrow_mut(|worker| {
        if let Some(worker) = worker {
            counters.add(Counter::TlsHandshakes, std::mem::take(&mut worker.succeeded));
            counters.add(Counter::TlsFailures, std::mem::take(&mut worker.failed));
            let kernel = &mut worker.kernel_counts;
            counters.add(Counter::TlsKernel, std::mem::take(&mut kernel.taken));
            counters.add(Counter::TlsKernelRefused, std::mem::take(&mut kernel.refused));
        }
    });
}

/// Begins a new iteration of the worker's loop, which has time for further steps of handshakes.
pub(crate) fn begin_iteration() {
    WORKER.with_borrow_mut(|worker| {
        if let Some(worker) = worker {
            worker.limits.begin_iteration();
        }
    });
}
