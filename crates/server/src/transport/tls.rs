//! TLS beneath a connection: what is received is opened, what is sent is sealed, and nobody above knows.
//!
//! A worker is a thread, and its sessions are a variable of that thread: engines address a peer by its
//! descriptor, and so does this. An idle connection is one entry of a table, 104 bytes; what a connection
//! has besides (a handshake, part of a record, records that the socket has not taken) is there for as long
//! as it is needed.
//!
//! # What an engine must know
//!
//! - Nothing is kept here that could be given: all plaintext that has been opened is in the caller's buffer,
//!   which must have room for a whole record ([`pollux_tls::RECORD_MAX`]). Whether the socket is drained is
//!   not to be seen from the length, though: [`super::Transport::may_have_more`] says.
//! - A send that takes fewer bytes than it was given must be repeated with the same bytes: they may have
//!   been sealed already, and only wait to leave.
//! - A handshake goes on inside receive, which says `WouldBlock` until it is over. `Interrupted` says that
//!   it is to go on after others had their turn.

mod client;
mod handshake;
mod kernel;
mod limits;
mod receive;
mod send;
mod settings;
mod worker;

pub use client::OriginTls;
pub(crate) use client::{HandshakeStep, TlsPeer};
pub(crate) use limits::HANDSHAKE_TIMEOUT;
pub(crate) use settings::provided;
pub use settings::{ClientCertificates, KernelTlsMode, Tls, TlsConfig};

use crate::stats::{Counter, Counters};
pub use pollux_tls::{CertificateFiles, Certificates, MinVersion};
use std::{
    cell::RefCell,
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    sync::Arc,
};
use worker::Worker;

thread_local! {
    /// This thread's sessions; none where it has none.
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

/// Takes in a connection that a client has made.
///
/// # Errors
/// There is no memory for it.
pub(super) fn accept(socket: BorrowedFd<'_>, server: &Arc<Tls>) -> io::Result<()> {
    WORKER.with_borrow_mut(|worker| {
        let worker = worker.get_or_insert_with(Box::default);
        worker.accept(socket, server)
    })
}

/// Begins a handshake on a connection that this end has made, to be continued by [`shake_hands`].
///
/// # Errors
/// There is no memory for it, or rustls refuses the configuration.
pub(super) fn connect(socket: BorrowedFd<'_>, peer: &Arc<TlsPeer>) -> io::Result<()> {
    WORKER.with_borrow_mut(|worker| {
        let worker = worker.get_or_insert_with(Box::default);
        worker.connect(socket, peer)
    })
}

/// Goes on with a handshake that [`connect`] has begun; see [`super::Transport::shake_hands`].
pub(super) fn shake_hands(socket: BorrowedFd<'_>) -> io::Result<HandshakeStep> {
    with_worker(|worker| worker.client_handshake(socket))
}

/// The session of an idle connection, for another process. `None` where there is more than the session.
pub(super) fn park(socket: BorrowedFd<'_>) -> Option<Vec<u8>> {
    with_worker(|worker| Ok(worker.park(socket))).ok().flatten()
}

/// Takes in an idle connection with the session that another process has parked.
///
/// # Errors
/// It is no session; there is no memory for it.
pub(super) fn resume(socket: BorrowedFd<'_>, session: &[u8], server: &Arc<Tls>) -> io::Result<()> {
    WORKER.with_borrow_mut(|worker| {
        let worker = worker.get_or_insert_with(Box::default);
        worker.resume(socket, session, server)
    })
}

/// How a socket is read: without waiting, or for as long as its timeout.
pub(super) type Receive = fn(BorrowedFd<'_>, &mut [u8]) -> io::Result<usize>;

/// Receives plaintext; see [`super::Transport::receive`].
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    receive: Receive,
) -> io::Result<usize> {
    with_worker(|worker| worker.receive(socket, buffer, receive))
}

/// Whether the last `receive` on this thread may have left something in the socket.
pub(super) fn may_have_more() -> bool {
    WORKER.with_borrow(|worker| worker.as_ref().is_some_and(|worker| worker.may_have_more))
}

/// Whether a client has said that it sends no more, or this end has sent an alert; see
/// [`super::Transport::has_ended`].
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

/// Says that this end sends no more (close_notify).
pub(super) fn close_notify(socket: BorrowedFd<'_>) {
    let _ = with_worker(|worker| {
        worker.close_notify(socket);
        Ok(())
    });
}

/// Forgets a connection, and zeroes its secrets.
pub(super) fn forget(socket: BorrowedFd<'_>) {
    let _ = with_worker(|worker| {
        worker.forget(socket.as_raw_fd());
        Ok(())
    });
}

/// The certificate that the client of a connection has shown, as the value of `Client-Cert`.
pub(crate) fn client_certificate(socket: BorrowedFd<'_>) -> Option<Arc<[u8]>> {
    WORKER.with_borrow(|worker| {
        worker.as_ref()?.client_certificates.get(&socket.as_raw_fd()).map(Arc::clone)
    })
}

/// Adds the handshakes that have ended on this thread since the last call, and the keys that the kernel was to have.
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

/// A new iteration of the worker's loop has begun: handshakes have their budget again.
pub(crate) fn begin_iteration() {
    WORKER.with_borrow_mut(|worker| {
        if let Some(worker) = worker {
            worker.limits.begin_iteration();
        }
    });
}
