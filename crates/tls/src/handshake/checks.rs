//! What this crate checks in a handshake beside rustls, and the alerts for it.

use super::{
    Connection, HANDSHAKE_RECORD_MAX, Handshake, HandshakeError,
    alerts::{
        self, ALERT, APPLICATION_DATA, BAD_RECORD_MAC, CHANGE_CIPHER_SPEC, CLOSE_NOTIFY,
        DECODE_ERROR, FATAL, Fault, HANDSHAKE, HEARTBEAT, RECORD_OVERFLOW, UNEXPECTED_MESSAGE,
        WARNING,
    },
    client_hello::ClientHello,
    record_len,
};
use crate::{
    CONTROL_RECORD_MAX, Cipher, Error, Role, Session, Suite,
    keys::Secret,
    record::{ContentType, EXPANSION_MAX_TLS13, HEADER_LEN, PLAINTEXT_MAX, RECORD_MAX, TAG_LEN},
    session::Direction,
};
use rustls::ProtocolVersion;

/// How many bytes of early data are skipped: as many as a full record has, and as servers that accept early data permit.
/// As there, headers, types and tags do not count (RFC 8446 §4.2.10), so a client may divide its data into records of any
/// size for which HANDSHAKE_TOTAL_MAX leaves room.
const EARLY_DATA_MAX: usize = PLAINTEXT_MAX;
/// The half of a nonce in front of a ciphertext of AES-GCM in TLS 1.2 (RFC 5288 §3).
const EXPLICIT_NONCE_LEN: usize = 8;

impl Handshake {
    pub(super) fn is_server(&self) -> bool {
        matches!(self.connection, Connection::Server(_))
    }

    /// Whether this end is a server of TLS 1.3 that has sent all of its messages.
    fn has_answered_tls13(&self) -> bool {
        self.is_server() && self.secrets.server.is_some()
    }

    /// Whether this end is a server, and has agreed on TLS 1.3: by its hello, or by HelloRetryRequest.
    fn is_tls13_server(&self) -> bool {
        let Connection::Server(connection) = &self.connection else { return false };
        connection.protocol_version() == Some(ProtocolVersion::TLSv1_3)
    }

    /// Offers the next record to rustls, if it is complete: rustls gets one record at a time, so that it never opens a
    /// record after the handshake. Early data is skipped instead. Returns whether there was a record.
    ///
    /// # Errors
    /// The record is not allowed.
    pub(super) fn offer_record(&mut self) -> Result<bool, Fault> {
        let unseen = &self.input[self.offered..];
        let Some(&[kind, _, _, high, low]) = unseen.first_chunk::<HEADER_LEN>() else {
            return Ok(false);
        };
        let body_len = usize::from(u16::from_be_bytes([high, low]));
        // Checked before the record is complete: a record that will be refused needs no further bytes.
        self.check_header(kind, body_len)?;
        let len = HEADER_LEN + body_len;
        if len > HANDSHAKE_RECORD_MAX {
            // rustls refuses such a record by its header, so the rest of the record is not needed.
            self.offered = self.input.len();
            self.records += 1;
            return Ok(true);
        }
        let Some(record) = unseen.get(..len) else { return Ok(false) };
        // While rustls keeps a part of a message, no other message begins.
        if self.offered == 0 {
            if kind == HANDSHAKE && self.expects_hello() {
                self.hello = ClientHello::read(&record[HEADER_LEN..]);
                if let Some(fault) = self.hello.and_then(ClientHello::fault) {
                    return Err(fault);
                }
            }
            if !self.has_changed_cipher && alerts::is_close_notify(record) {
                return Err(Fault::Closed);
            }
        }
        if kind == APPLICATION_DATA
            && self.is_tls13_server()
            && self.hello.is_some_and(|hello| hello.may_send_early_data)
        {
            if self.skip_early_data()? {
                return Ok(true);
            }
            if let Some(hello) = &mut self.hello {
                hello.may_send_early_data = false;
            }
        }
        self.has_changed_cipher |= kind == CHANGE_CIPHER_SPEC;
        self.offered += len;
        self.records += 1;
        Ok(true)
    }

    /// Skips the whole records of early data in front of the first message with the key of the handshake. They are
    /// skipped together, because a client may send thousands of them, and a key takes longer to derive than to use.
    /// Returns whether there were any.
    ///
    /// # Errors
    /// There is more early data than is skipped.
    fn skip_early_data(&mut self) -> Result<bool, Fault> {
        // Behind HelloRetryRequest there is no key yet, and each encrypted record is early data (RFC 8446 §4.2.10).
        let secret = self.secrets.client_handshake.as_ref();
        let mut opener = secret.and_then(|secret| self.session_at_zero(secret)).map(|session| {
            let keys = session.derive_keys();
            (session, keys)
        });
        let (mut len, mut copy) = (0, Vec::new());
        let unseen = &self.input[self.offered..];
        while let Some(next) = record_len(&unseen[len..])
            && let Some(record) = unseen.get(len..len + next)
            && record[0] == APPLICATION_DATA
            && next <= RECORD_MAX
        {
            if let Some((session, keys)) = &mut opener {
                copy.clear();
                copy.extend_from_slice(record);
                if session.open(keys, &mut copy) != Err(Error::BadRecordMac) {
                    break;
                }
            }
            // Padding and content cannot be distinguished. Records without content are counted too: their number is limited.
            let content_len = next.saturating_sub(HEADER_LEN + 1 + TAG_LEN);
            self.skipped += content_len.max(1);
            if self.skipped > EARLY_DATA_MAX {
                let alert = if opener.is_some() { BAD_RECORD_MAC } else { UNEXPECTED_MESSAGE };
                return Err(Fault::Refused(alert, "too much early data"));
            }
            self.records += 1;
            len += next;
        }
        // Otherwise rustls would keep these records, and count each one again with each later record.
        self.input.drain(self.offered..self.offered + len);
        Ok(len > 0)
    }

    /// Checks the parts of a record's header that rustls does not check, or reports by another alert.
    fn check_header(&self, kind: u8, body_len: usize) -> Result<(), Fault> {
        // rustls would wait for the rest of such a record, for example of a hello of SSL 2.0: its length is elsewhere.
        if !(CHANGE_CIPHER_SPEC..=HEARTBEAT).contains(&kind) {
            return Err(Fault::Refused(UNEXPECTED_MESSAGE, "a record of an unknown type"));
        }
        let max = match kind {
            CHANGE_CIPHER_SPEC | ALERT | HANDSHAKE if !self.has_changed_cipher => PLAINTEXT_MAX,
            APPLICATION_DATA if self.is_tls13_server() => PLAINTEXT_MAX + EXPANSION_MAX_TLS13,
            _ => usize::MAX,
        };
        if body_len > max {
            return Err(Fault::Refused(RECORD_OVERFLOW, "a record is longer than allowed"));
        }
        // A client that cannot read this end's messages sends its alert unencrypted.
        let may_follow = matches!(kind, CHANGE_CIPHER_SPEC | ALERT | APPLICATION_DATA);
        if self.has_answered_tls13() && !may_follow {
            return Err(Fault::Refused(UNEXPECTED_MESSAGE, "a record that is not encrypted"));
        }
        Ok(())
    }

    /// Whether a message of the client that begins now is a hello, as far as this end knows.
    fn expects_hello(&self) -> bool {
        let Connection::Server(connection) = &self.connection else { return false };
        self.secrets.server.is_none()
            && connection.protocol_version() != Some(ProtocolVersion::TLSv1_2)
    }

    /// A server's record layer with this secret in both directions, and no record sealed or opened.
    pub(super) fn session_at_zero(&self, secret: &Secret) -> Option<Session> {
        let Connection::Server(connection) = &self.connection else { return None };
        let suite = Suite::tls13(connection.negotiated_cipher_suite()?.suite())?;
        let direction = Direction { secret: &secret.0[..suite.secret_len()], sequence: 0 };
        Some(Session::new(suite, Role::Server, &direction, &direction))
    }

    /// The fault of the record that rustls has decrypted in place just now, with this result, if rustls does not see
    /// the fault, or reports another one.
    pub(super) fn fault_of_record(&self, result: &Result<(), rustls::Error>) -> Option<Fault> {
        use rustls::Error::{DecryptError, PeerSentOversizedRecord};
        match result {
            Err(DecryptError) => self
                .finds_odd_finished()
                .then_some(Fault::Refused(DECODE_ERROR, "a Finished of a wrong length")),
            Err(PeerSentOversizedRecord) => None,
            _ => self
                .finds_empty_record()
                .then_some(Fault::Refused(UNEXPECTED_MESSAGE, "an empty record")),
        }
    }

    /// Whether the record that rustls has decrypted in place just now has no content: only its type, and perhaps
    /// padding (RFC 8446 §5.4).
    fn finds_empty_record(&self) -> bool {
        let Connection::Server(connection) = &self.connection else { return false };
        let record = &self.input[..self.offered];
        let Some((&[kind, ..], body)) = record.split_first_chunk::<HEADER_LEN>() else {
            return false;
        };
        if connection.protocol_version() == Some(ProtocolVersion::TLSv1_2) {
            let suite = connection.negotiated_cipher_suite();
            let has_explicit_nonce =
                suite.is_some_and(|suite| !Cipher::ChaCha20Poly1305.is_of(suite.suite()));
            let empty_len = TAG_LEN + if has_explicit_nonce { EXPLICIT_NONCE_LEN } else { 0 };
            return self.has_changed_cipher && kind == HANDSHAKE && body.len() == empty_len;
        }
        // Without a known hello the record may be early data, which rustls has skipped and not decrypted.
        let may_be_early = self.hello.is_none_or(|hello| hello.may_send_early_data);
        if kind != APPLICATION_DATA || !self.has_answered_tls13() || may_be_early {
            return false;
        }
        let inner = &body[..body.len().saturating_sub(TAG_LEN)];
        inner.iter().rposition(|&byte| byte != 0) == Some(0)
    }

    /// Whether the client's Finished, which rustls has refused just now, has a length that no Finished has. rustls has
    /// decrypted it in place. If it was divided into several records, it is not recognized.
    fn finds_odd_finished(&self) -> bool {
        const FINISHED: u8 = 20;
        /// RFC 5246 §7.4.9.
        const FINISHED_LEN_TLS12: usize = 12;
        let Connection::Server(connection) = &self.connection else { return false };
        let suite = connection.negotiated_cipher_suite();
        let suite = suite.and_then(|suite| Suite::tls13(suite.suite()));
        let expected = suite.map_or(FINISHED_LEN_TLS12, Suite::secret_len);
        let record = &self.input[..self.offered];
        let Some(&[FINISHED, high, middle, low]) =
            record.get(HEADER_LEN..).and_then(<[u8]>::first_chunk::<4>)
        else {
            return false;
        };
        let len = u32::from_be_bytes([0, high, middle, low]) as usize;
        len != expected && HEADER_LEN + 4 + len + TAG_LEN <= record.len()
    }

    /// Appends the alert for a record that this crate refuses. Returns the error.
    pub(super) fn refuse(&self, fault: Fault, out: &mut Vec<u8>) -> HandshakeError {
        match fault {
            Fault::Closed => {
                self.put_alert([WARNING, CLOSE_NOTIFY], out);
                HandshakeError::Closed
            }
            Fault::Refused(description, reason) => {
                self.put_alert([FATAL, description], out);
                HandshakeError::Refused(reason)
            }
        }
    }

    /// Replaces the alert of rustls, if it made one, where the RFCs demand another one: that of `fault`, if there is
    /// one. `out` has what rustls has sent in this step from `start` on, and its alert from `before_alert` on.
    pub(super) fn correct_alert(
        &self,
        error: &rustls::Error,
        fault: Option<Fault>,
        start: usize,
        before_alert: usize,
        out: &mut Vec<u8>,
    ) {
        let fatal = |description| [FATAL, description];
        let has_alert = out.len() > before_alert;
        let better = if alerts::is_end(error) {
            // Both ends close (RFC 8446 §6.1).
            Some([WARNING, CLOSE_NOTIFY])
        } else if let Some(Fault::Refused(description, _)) = fault {
            Some(fatal(description))
        } else {
            alerts::better_alert(error, self.is_old, self.hello).map(fatal)
        };
        let Some(alert) = better.or_else(|| match has_alert {
            true => None,
            false => alerts::missing_alert(error).map(fatal),
        }) else {
            return;
        };
        // If rustls has sealed other records in this step, the number of the next one is not known.
        if self.is_plain || (self.has_answered_tls13() && before_alert == start) {
            out.truncate(before_alert);
            self.put_alert(alert, out);
        }
    }

    /// Appends an alert. If it must be encrypted and the key is not known, nothing is sent.
    ///
    /// The alert has the number 0 under the server's key for data. Before the handshake ends, rustls seals nothing
    /// under this key but its own alert, which is not sent if this one is. After an alert the key is forgotten.
    pub(super) fn put_alert(&self, alert: [u8; 2], out: &mut Vec<u8>) {
        if self.is_plain {
            out.extend(alerts::plain_alert(alert));
            return;
        }
        let session = self.secrets.server.as_ref();
        if let Some(mut session) = session.and_then(|secret| self.session_at_zero(secret)) {
            let mut keys = session.derive_keys();
            let mut record = [0; CONTROL_RECORD_MAX];
            let len = session.seal_control(&mut keys, ContentType::Alert, &alert, &mut record);
            out.extend_from_slice(&record[..len]);
        }
    }
}
