//! Kernel TLS: the kernel encrypts the output of a connection from its first long file on.
//!
//! The kernel gets the keys when the first piece of a file of at least [`FILE_MIN`] bytes is to be sent. So
//! a connection that never sends such a file has nothing in the kernel besides its socket. The kernel does
//! not return the keys. [`pollux_tls`] still decrypts input.

use super::{send::Source, worker::Extra};
use anyhow::bail;
use pollux_sys as sys;
use pollux_tls::{ControlMessage, Direction, Error, Keys, Role, Session, Suite};
use std::{
    io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsFd as _, BorrowedFd},
};

/// The shortest piece of a file, in bytes, for which the kernel gets the keys. The value is a choice and
/// was not measured: a connection that sends only short files keeps its keys in this process, and needs no
/// kernel memory for them.
pub(super) const FILE_MIN: usize = 64 << 10;

/// The abilities of the kernel, found by a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelTls {
    /// The suites that the kernel supports: one bit for each, by its number.
    suites: u8,
    /// Whether the kernel can change keys: Linux 6.14.
    changes_keys: bool,
}

impl KernelTls {
    /// Tries each suite on a separate connection. If the process has root's rights, this loads the kernel
    /// module.
    ///
    /// # Errors
    /// The kernel supports no suite; the message gives the reason and the remedy.
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

    /// Returns whether the kernel should encrypt the output of a connection from now on, given that
    /// `source` is to be sent.
    #[inline]
    pub(super) fn takes(self, session: &Session, source: &Source<'_>) -> bool {
        matches!(source, Source::File { len, .. } if *len >= FILE_MIN)
            && session.role() == Role::Server
            && !session.has_received_close()
            && self.knows(session.suite())
    }
}

/// The results of passing keys to the kernel.
#[derive(Debug, Default)]
pub(super) struct KernelCounts {
    /// The number of connections whose sending keys the kernel has accepted.
    pub(super) taken: u64,
    /// The number of attempts that the kernel has refused.
    pub(super) refused: u64,
    has_warned: bool,
}

impl KernelCounts {
    /// Passes the sending keys to the kernel. If the kernel refuses them, this process continues to
    /// encrypt.
    #[cold]
    pub(super) fn give(&mut self, socket: BorrowedFd<'_>, session: &mut Session, keys: &mut Keys) {
        let Err(error) = give(socket, session, keys) else {
            self.taken += 1;
            return;
        };
        self.refused += 1;
        // NotConnected: the client has closed its side, and the kernel accepts no keys any more.
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
        // An earlier attempt has attached it already.
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
        outcome => outcome?,
    }
    sys::set_kernel_tls_keys(socket, session.sending_keys().as_bytes())?;
    session.give_sending_to_kernel(keys);
    Ok(())
}

/// Sends plaintext, which the kernel encrypts into records.
///
/// The kernel may have taken records for which the socket had no room; it drops them if the socket is
/// closed or shut down at that moment. Therefore, if the socket is full at the end of the output, one byte
/// is not reported as sent until there is room again. Until then, the caller does not close the connection.
/// When a third of the buffer is free, the kernel sends the records before close_notify, or together with
/// it.
///
/// # Errors
/// The same as [`super::Transport::send`](crate::transport::Transport::send). The connection ends if a
/// KeyUpdate is due and the kernel cannot change keys.
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

/// Returns whether a KeyUpdate ends a connection, because the kernel cannot change its keys.
pub(super) fn cannot_update_keys(session: &Session, kernel: Option<KernelTls>) -> bool {
    session.is_key_update_due()
        && !(session.suite().is_tls13() && kernel.is_some_and(|kernel| kernel.changes_keys))
}

/// Sends a KeyUpdate if one is due, and passes the next keys to the kernel.
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
        // The client expects other keys than those of the kernel, so nothing can be sent, not even an
        // alert.
        session.close_message();
        tracing::warn!("closing a TLS connection, the kernel refuses its next keys: {error}");
    })
}

/// Sends close_notify, if it has not been sent.
pub(super) fn close(socket: BorrowedFd<'_>, session: &mut Session) {
    send_last(socket, session.close_message());
}

/// Sends the alert that reports an error to the client, and close_notify if the alert is only a warning.
pub(super) fn alert(socket: BorrowedFd<'_>, session: &mut Session, error: Error) {
    send_last(socket, session.alert_message(error));
    close(socket, session);
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

    /// On a kernel without TLS, the error gives the reason; on a kernel with TLS, the common suite is
    /// supported.
    #[test]
    fn a_trial_finds_what_the_kernel_can() {
        match KernelTls::find() {
            Ok(kernel) => assert!(kernel.knows(Suite::Tls13Aes128Gcm)),
            Err(error) => assert!(error.to_string().contains("leave the flag out"), "{error}"),
        }
    }
}
