//! Kernel TLS: the kernel seals what a connection sends, once a long file is to be sent on it.
//!
//! The keys go to the kernel when the first piece of a file of at least [`FILE_MIN`] bytes is due, so a connection that
//! never sends one has nothing in the kernel besides its socket. They cannot come back. Receiving stays with
//! [`pollux_tls`].

use super::{send::Source, worker::Extra};
use anyhow::bail;
use pollux_sys as sys;
use pollux_tls::{ControlMessage, Direction, Error, Keys, Role, Session, Suite};
use std::{
    io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsFd as _, BorrowedFd},
};

/// The shortest piece of a file for which the kernel gets the keys. The value is a choice, not measured: a connection
/// that sends only short files keeps its keys here, and needs no kernel memory for them.
pub(super) const FILE_MIN: usize = 64 << 10;

/// What the kernel can do, as a trial has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelTls {
    /// A bit for each suite, by its number.
    suites: u8,
    /// Whether the kernel can change keys: Linux 6.14.
    changes_keys: bool,
}

impl KernelTls {
    /// Tries each suite on a connection of its own. A process with root's rights thereby loads the module.
    ///
    /// # Errors
    /// The kernel seals nothing; the message says why and what to do.
    pub(super) fn find() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut found = Self { suites: 0, changes_keys: false };
        let mut refusal = None;
        for suite in Suite::ALL {
            let socket = TcpStream::connect(listener.local_addr()?)?;
            sys::attach_kernel_tls(socket.as_fd()).map_err(|error| {
                let reason = sys::kernel_tls_refusal(&error);
                anyhow::anyhow!(
                    "{reason}; load it, or leave the flag out: Pollux then encrypts by itself"
                )
            })?;
            let try_key = |byte| {
                let secret = vec![byte; suite.secret_len()];
                let direction = Direction { secret: &secret, sequence: 0 };
                let session = Session::new(suite, Role::Server, &direction, &direction);
                sys::set_kernel_tls_keys(socket.as_fd(), session.sending_keys().as_bytes())
            };
            match try_key(1) {
                Ok(()) => {
                    found.suites |= 1 << suite as u8;
                    found.changes_keys |= suite.is_tls13() && try_key(2).is_ok();
                }
                Err(error) => refusal = Some((suite, error)),
            }
        }
        if let (0, Some((suite, error))) = (found.suites, &refusal) {
            bail!("the kernel refuses each cipher suite, {suite:?} with: {error}");
        }
        if let Some((suite, error)) = refusal {
            tracing::warn!(
                "--kernel-tls: the kernel does not know {suite:?}, such connections are encrypted here: {error}"
            );
        }
        tracing::info!(
            "the kernel encrypts on TLS connections that send long files; {}",
            match found.changes_keys {
                true => "it can change keys",
                false =>
                    "it cannot change keys (Linux 6.14), so a client's KeyUpdate ends such a connection",
            }
        );
        Ok(found)
    }

    fn knows(self, suite: Suite) -> bool {
        self.suites & 1 << suite as u8 != 0
    }

    /// Whether the kernel is to seal what follows on a connection, now that this is to be sent.
    #[inline]
    pub(super) fn takes(self, session: &Session, source: &Source<'_>) -> bool {
        matches!(source, Source::File { len, .. } if *len >= FILE_MIN)
            && session.role() == Role::Server
            && !session.has_received_close()
            && self.knows(session.suite())
    }
}

/// What happened to keys that the kernel was to have.
#[derive(Debug, Default)]
pub(super) struct KernelCounts {
    /// Connections whose sending keys it has taken.
    pub(super) taken: u64,
    /// Attempts that it has refused.
    pub(super) refused: u64,
    has_warned: bool,
}

impl KernelCounts {
    /// Gives the kernel the keys for sending. Where it refuses them, this process goes on to seal.
    #[cold]
    pub(super) fn give(&mut self, socket: BorrowedFd<'_>, session: &mut Session, keys: &mut Keys) {
        let Err(error) = give(socket, session, keys) else {
            self.taken += 1;
            return;
        };
        self.refused += 1;
        // The client has ended its side: the kernel takes no keys any more.
        if error.kind() != io::ErrorKind::NotConnected && !self.has_warned {
            self.has_warned = true;
            tracing::warn!(
                "the kernel refuses the keys of a TLS connection, which is encrypted here instead (this is logged \
                 once; `kernel_refused` counts): {error}"
            );
        }
    }
}

fn give(socket: BorrowedFd<'_>, session: &mut Session, keys: &mut Keys) -> io::Result<()> {
    match sys::attach_kernel_tls(socket) {
        // An earlier attempt came as far as this.
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
        outcome => outcome?,
    }
    sys::set_kernel_tls_keys(socket, session.sending_keys().as_bytes())?;
    session.give_sending_to_kernel(keys);
    Ok(())
}

/// Sends plaintext, of which the kernel makes records.
///
/// The kernel may have taken records for which the socket had no room, and it drops them when the socket is closed or
/// shut down then. So where the socket is full at the end of what was to be sent, one byte is not reported as sent until
/// there is room again: until then nobody closes the connection, and with a third of the buffer free the kernel sends
/// the records before, or together with, close_notify.
///
/// # Errors
/// As [`super::Transport::send`](crate::transport::Transport::send). The connection is over where a KeyUpdate is due
/// and the kernel cannot change keys.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    session: &mut Session,
    extra: &mut Option<Box<Extra>>,
    source: &Source<'_>,
    more: bool,
    kernel: Option<KernelTls>,
) -> io::Result<usize> {
    update_keys_if_due(socket, session, kernel)?;
    let sent = match *source {
        Source::Bytes(bytes, []) | Source::Bytes([], bytes) => sys::send_now(socket, bytes, more)?,
        Source::Bytes(first, _) if more => sys::send_now(socket, first, true)?,
        Source::Bytes(first, second) => sys::send_two(socket, first, second)?,
        Source::File { file, mut offset, len } => sys::sendfile(socket, file, &mut offset, len)?,
    };
    session.count_kernel_records(sent);
    if sent > 0 && sent == source.len() && !more && !sys::is_writable(socket)? {
        extra.get_or_insert_with(Box::<Extra>::default).sealed_ahead = 1;
        return if sent > 1 { Ok(sent - 1) } else { Err(io::ErrorKind::WouldBlock.into()) };
    }
    Ok(sent)
}

/// Whether a KeyUpdate ends a connection, because the kernel cannot change its keys.
pub(super) fn cannot_update_keys(session: &Session, kernel: Option<KernelTls>) -> bool {
    session.is_key_update_due()
        && !(session.suite().is_tls13() && kernel.is_some_and(|kernel| kernel.changes_keys))
}

/// Sends a KeyUpdate if one is due, and gives the kernel the next keys.
fn update_keys_if_due(
    socket: BorrowedFd<'_>,
    session: &mut Session,
    kernel: Option<KernelTls>,
) -> io::Result<()> {
    if !session.is_key_update_due() {
        return Ok(());
    }
    if cannot_update_keys(session, kernel) {
        close(socket, session);
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    let message = ControlMessage::KEY_UPDATE;
    let sent = sys::send_record(socket, message.kind(), message.content())?;
    let keys = session.next_sending_keys();
    let outcome = match sent == message.content().len() {
        true => sys::set_kernel_tls_keys(socket, keys.as_bytes()),
        false => Err(io::ErrorKind::WriteZero.into()),
    };
    outcome.inspect_err(|error| {
        // The client expects other keys than the kernel has, so nothing can be sent, not even an alert.
        session.close_message();
        tracing::warn!("closing a TLS connection, the kernel refuses its next keys: {error}");
    })
}

/// Sends close_notify, if it has not been sent.
pub(super) fn close(socket: BorrowedFd<'_>, session: &mut Session) {
    send_last(socket, session.close_message());
}

/// Sends the alert that tells the client of an error.
pub(super) fn alert(socket: BorrowedFd<'_>, session: &mut Session, error: Error) {
    send_last(socket, session.alert_message(error));
}

fn send_last(socket: BorrowedFd<'_>, message: Option<ControlMessage>) {
    if let Some(message) = message {
        let _ = sys::send_record(socket, message.kind(), message.content());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_file_to_a_client_is_for_the_kernel() {
        let kernel = KernelTls { suites: 1 << Suite::Tls13Aes128Gcm as u8, changes_keys: false };
        let direction = Direction { secret: &[1; 32], sequence: 0 };
        let session = |suite, role| Session::new(suite, role, &direction, &direction);
        let server = session(Suite::Tls13Aes128Gcm, Role::Server);
        let null = std::fs::File::open("/dev/null").unwrap();
        let file = |len| Source::File { file: null.as_fd(), offset: 0, len };
        assert!(kernel.takes(&server, &file(FILE_MIN)));
        assert!(!kernel.takes(&server, &file(FILE_MIN - 1)));
        assert!(!kernel.takes(&server, &Source::Bytes(&[0; FILE_MIN], &[])));
        assert!(!kernel.takes(&session(Suite::Tls13ChaCha20, Role::Server), &file(FILE_MIN)));
        assert!(!kernel.takes(&session(Suite::Tls13Aes128Gcm, Role::Client), &file(FILE_MIN)));
    }

    /// On a kernel without TLS the reason is said; with it, the common suite is known.
    #[test]
    fn a_trial_finds_what_the_kernel_can() {
        match KernelTls::find() {
            Ok(kernel) => assert!(kernel.knows(Suite::Tls13Aes128Gcm)),
            Err(error) => assert!(error.to_string().contains("leave the flag out"), "{error}"),
        }
    }
}
