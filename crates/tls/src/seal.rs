//! Seals records to send, in the caller's buffer.

use crate::{
    Error, Session,
    keys::{self, Keys},
    post_handshake::OUR_KEY_UPDATE,
    record::{self, ContentType, HEADER_LEN, OVERHEAD_MAX, PLAINTEXT_MAX, TAG_LEN},
    session::Flags,
};
use ring::aead::Aad;

/// The content of a record at the beginning of a response: it fits into three segments, so that a
/// client can read the beginning of a page before the rest has arrived. A full record would have to be
/// complete first.
pub const SMALL_RECORD_BYTES: usize = 4000;
/// The number of such records before records have full size; at most 7, see `Flags`.
pub const SMALL_RECORDS: u8 = 4;
/// The size of a buffer for an alert, or a KeyUpdate, in any suite.
pub const CONTROL_RECORD_MAX: usize = OVERHEAD_MAX + OUR_KEY_UPDATE.len() + 1;
/// The size of a buffer for [`Session::seal_alert`].
pub const ALERT_MAX: usize = 2 * CONTROL_RECORD_MAX;

/// The result of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealProgress {
    /// Bytes of plaintext that are in the records.
    pub plaintext: usize,
    /// Bytes of the output that have been written.
    pub written: usize,
}

impl Session {
    /// Seals as much of `plaintext` as fits into `out`, in one record or several. A KeyUpdate that is
    /// due is sealed before it. If the key may seal no more records, the rest of `plaintext` is left
    /// for the next call.
    ///
    /// # Errors
    /// [`Error::KeyExhausted`], with TLS 1.2 only.
    ///
    /// # Panics
    /// If close_notify has been sealed.
    pub fn seal(
        &mut self,
        keys: &mut Keys,
        plaintext: &[u8],
        out: &mut [u8],
    ) -> Result<SealProgress, Error> {
        let mut done = SealProgress { plaintext: 0, written: self.update_keys_if_due(keys, out)? };
        if self.is_key_update_due() {
            // There is no room for the KeyUpdate. A few bytes of data would fit, but they would be
            // sealed with the wrong key.
            return Ok(done);
        }
        while done.plaintext < plaintext.len() {
            let rest = &plaintext[done.plaintext..];
            let len = rest.len().min(self.room_for_content(out.len() - done.written));
            if len == 0 {
                break;
            }
            let out = &mut out[done.written..];
            out[self.content_offset()..][..len].copy_from_slice(&rest[..len]);
            done.written += self.seal_in_place(keys, out, len)?;
            done.plaintext += len;
        }
        Ok(done)
    }

    /// The offset of the content in a record, for [`Session::seal_in_place`].
    pub fn content_offset(&self) -> usize {
        HEADER_LEN + self.suite.explicit_nonce_len()
    }

    /// The largest content of the next record, if there are `room` bytes for the record: 0 if the room
    /// is too small, or if the key may seal no further record.
    pub fn room_for_content(&self, room: usize) -> usize {
        if self.is_key_exhausted() {
            return 0;
        }
        let is_small = self.flags.small_records() < SMALL_RECORDS;
        let max = if is_small { SMALL_RECORD_BYTES } else { PLAINTEXT_MAX };
        max.min(room.saturating_sub(OVERHEAD_MAX))
    }

    /// Seals a KeyUpdate if one is due: the peer has requested it, or the key has sealed as many
    /// records as it may. Returns its length, 0 if none is due. [`Session::seal`] does this by itself;
    /// before [`Session::seal_in_place`] the caller must do it.
    ///
    /// # Errors
    /// [`Error::KeyExhausted`], with TLS 1.2 only.
    pub fn update_keys_if_due(&mut self, keys: &mut Keys, out: &mut [u8]) -> Result<usize, Error> {
        if !self.is_key_update_due() {
            return Ok(0);
        }
        if !self.suite.is_tls13() {
            return Err(Error::KeyExhausted);
        }
        if out.len() < CONTROL_RECORD_MAX {
            return Ok(0);
        }
        let len = self.seal_control(keys, ContentType::Handshake, &OUR_KEY_UPDATE, out);
        self.update_send_keys(keys);
        Ok(len)
    }

    /// Whether a KeyUpdate must be sent before any further data.
    pub fn is_key_update_due(&self) -> bool {
        self.is_key_exhausted() || self.owes_key_update()
    }

    /// Whether the key for sending has sealed as many records as it may.
    fn is_key_exhausted(&self) -> bool {
        self.send_sequence >= self.suite.records_max()
    }

    /// Seals a record whose `len` bytes of content are at [`Session::content_offset`] in `out`. Returns
    /// the record's length.
    ///
    /// # Errors
    /// [`Error::KeyExhausted`], with TLS 1.2 only.
    ///
    /// # Panics
    /// If `len` is more than [`Session::room_for_content`] says, if close_notify has been sealed, or if
    /// a TLS 1.3 key is exhausted and [`Session::update_keys_if_due`] was not called.
    pub fn seal_in_place(
        &mut self,
        keys: &mut Keys,
        out: &mut [u8],
        len: usize,
    ) -> Result<usize, Error> {
        if self.is_key_exhausted() {
            assert!(!self.suite.is_tls13(), "a key would seal more than it may");
            return Err(Error::KeyExhausted);
        }
        assert!(len <= self.room_for_content(out.len()), "room for a record");
        if self.flags.small_records() < SMALL_RECORDS {
            self.flags.set_small_records(self.flags.small_records() + 1);
        }
        Ok(self.seal_record(keys, ContentType::ApplicationData, out, len))
    }

    /// Seals close_notify: this end sends no more. Returns its length.
    ///
    /// # Panics
    /// If `out` has less than [`CONTROL_RECORD_MAX`] bytes, or close_notify has been sealed.
    pub fn seal_close(&mut self, keys: &mut Keys, out: &mut [u8]) -> usize {
        let len = self.seal_control(keys, ContentType::Alert, &[1, 0], out);
        self.flags.set(Flags::HAS_SENT_CLOSE);
        len
    }

    /// Seals the alert that tells the peer of an error. Returns its length; 0 if there is none to send. Nothing can
    /// be sent after an error, not even close_notify (RFC 8446 §6.2). Only the refusal of a renegotiation is a warning,
    /// which does not end the connection: this call also seals close_notify then (RFC 5246 §7.2.1).
    ///
    /// # Panics
    /// If `out` has less than [`ALERT_MAX`] bytes.
    pub fn seal_alert(&mut self, keys: &mut Keys, error: Error, out: &mut [u8]) -> usize {
        let mut len = 0;
        if let Some((level, description)) = error.alert()
            && !self.has_sent_close()
        {
            len = self.seal_control(keys, ContentType::Alert, &[level, description], out);
            if error == Error::Renegotiation {
                len += self.seal_close(keys, &mut out[len..]);
            }
        }
        self.flags.set(Flags::HAS_SENT_CLOSE);
        len
    }

    /// Seals a record of the record layer's own. Returns its length.
    ///
    /// # Panics
    /// If `out` has less than [`CONTROL_RECORD_MAX`] bytes, or close_notify has been sealed.
    pub(crate) fn seal_control(
        &mut self,
        keys: &mut Keys,
        kind: ContentType,
        content: &[u8],
        out: &mut [u8],
    ) -> usize {
        assert!(out.len() >= CONTROL_RECORD_MAX, "room for a record of the record layer's own");
        out[self.content_offset()..][..content.len()].copy_from_slice(content);
        self.seal_record(keys, kind, out, content.len())
    }

    fn seal_record(
        &mut self,
        keys: &mut Keys,
        kind: ContentType,
        out: &mut [u8],
        len: usize,
    ) -> usize {
        assert!(!self.has_sent_close(), "nothing is sent after close_notify");
        let sequence = self.send_sequence;
        // Panics on overflow, so that no number is used again.
        self.send_sequence =
            sequence.checked_add(1).expect("a key is replaced before 2^32 records");
        let sequence = u64::from(sequence);
        let nonce = keys.send.nonce_for_sealing(sequence);
        let start = self.content_offset();
        if self.suite.is_tls13() {
            out[start + len] = kind.to_byte();
            let end = start + len + 1;
            let header = record::header(ContentType::ApplicationData, len + 1 + TAG_LEN);
            out[..HEADER_LEN].copy_from_slice(&header);
            seal_content(keys, nonce, Aad::from(header), out, start, end)
        } else {
            let explicit_len = self.suite.explicit_nonce_len();
            let header = record::header(kind, explicit_len + len + TAG_LEN);
            out[..HEADER_LEN].copy_from_slice(&header);
            out[HEADER_LEN..start].copy_from_slice(&nonce[nonce.len() - explicit_len..]);
            let aad = record::additional_data_tls12(sequence, kind.to_byte(), [3, 3], len);
            seal_content(keys, nonce, Aad::from(aad), out, start, start + len)
        }
    }
}

/// Encrypts `out[start..end]` and appends the tag. Returns the record's length.
fn seal_content<A: AsRef<[u8]>>(
    keys: &Keys,
    nonce: [u8; ring::aead::NONCE_LEN],
    aad: Aad<A>,
    out: &mut [u8],
    start: usize,
    end: usize,
) -> usize {
    let sealed =
        keys.send.aead.seal_in_place_separate_tag(keys::nonce(nonce), aad, &mut out[start..end]);
    let tag = sealed.expect("a record is shorter than the AEAD's limit");
    out[end..][..TAG_LEN].copy_from_slice(tag.as_ref());
    end + TAG_LEN
}
