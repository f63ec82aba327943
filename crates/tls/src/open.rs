//! Opens received records, in place.

use crate::{
    Error, Role, Session,
    keys::{self, Keys},
    post_handshake::{CLIENT_HELLO, HELLO_REQUEST, Update},
    record::{self, ContentType, EXPANSION_MAX_TLS13, HEADER_LEN, PLAINTEXT_MAX, TAG_LEN},
    session::Flags,
};
use ring::aead::Aad;
use std::ops::Range;

/// The result of opening the first record of some input.
#[derive(Debug, PartialEq, Eq)]
pub struct OpenedRecord {
    /// The length of the record with its header; 0 if it is not complete. After close_notify it is the
    /// length of all the input, which is ignored, once there is as much as the header of a record.
    pub consumed: usize,
    /// The content of the record.
    pub content: Content,
}

/// The content of a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Content {
    /// The record is not complete. It can be opened when the input has this many bytes.
    Incomplete(usize),
    /// Application data, which is now in this range of the input.
    Data(Range<usize>),
    /// Content for the record layer alone: a KeyUpdate, a ticket, an empty record. See
    /// [`Session::owes_key_update`].
    Control,
    /// Session tickets for a client, whole messages, which are now in this range of the input; for
    /// [`crate::TicketReceiver::receive_messages`]. A ticket that was split among records, or shares its
    /// record with a KeyUpdate, is [`Content::Control`] and lost, which costs a full handshake later.
    Tickets(Range<usize>),
    /// The peer sends no more data (close_notify).
    Closed,
}

impl Session {
    /// Opens the first record of `input`, in place. Call it again with the input after `consumed`.
    ///
    /// `keys` are this session's own; a KeyUpdate replaces them.
    ///
    /// # Errors
    /// The connection is over: send [`Session::seal_alert`] and close it.
    pub fn open(&mut self, keys: &mut Keys, input: &mut [u8]) -> Result<OpenedRecord, Error> {
        let Some(&[kind, major, minor, high, low]) = input.first_chunk::<HEADER_LEN>() else {
            return Ok(OpenedRecord { consumed: 0, content: Content::Incomplete(HEADER_LEN) });
        };
        let header = [kind, major, minor, high, low];
        let len = usize::from(u16::from_be_bytes([high, low]));
        if self.has_received_close() {
            // RFC 8446 §6.1: what follows close_notify must be ignored; RFC 5246 §7.2.1 says the same.
            return Ok(OpenedRecord { consumed: input.len(), content: Content::Closed });
        }
        // Checked before the record is complete: a record that will be refused needs no further bytes.
        self.check_header(kind, len)?;
        let consumed = HEADER_LEN + len;
        let Some(body) = input.get_mut(HEADER_LEN..consumed) else {
            return Ok(OpenedRecord { consumed: 0, content: Content::Incomplete(consumed) });
        };
        let (kind, content) = if self.suite.is_tls13() {
            self.decrypt_tls13(keys, header, body)?
        } else {
            self.decrypt_tls12(keys, header, body)?
        };
        self.receive_sequence += 1;
        let plaintext = &body[content.clone()];
        let content = match kind {
            ContentType::ApplicationData => self.on_data(content)?,
            ContentType::Alert => {
                self.on_alert([plaintext.first(), plaintext.get(1)], plaintext.len())?
            }
            ContentType::Handshake => self.on_handshake(keys, plaintext, content.start)?,
        };
        Ok(OpenedRecord { consumed, content })
    }

    fn check_header(&self, kind: u8, len: usize) -> Result<(), Error> {
        let expansion_max = if self.suite.is_tls13() {
            if kind != ContentType::ApplicationData.to_byte() {
                return Err(Error::UnexpectedMessage("a record that is not encrypted"));
            }
            EXPANSION_MAX_TLS13
        } else {
            if ContentType::from_byte(kind).is_none() {
                return Err(Error::UnexpectedMessage("a record of an unknown type"));
            }
            // RFC 5246 §6.2.3 allows 2048 bytes, which compression and other ciphers need. An AEAD adds no more than
            // this, so a longer record has too much plaintext, and a receiver's buffer has no room for it.
            self.suite.explicit_nonce_len() + TAG_LEN
        };
        if len > PLAINTEXT_MAX + expansion_max {
            return Err(Error::RecordOverflow);
        }
        if len < TAG_LEN + self.suite.explicit_nonce_len() {
            return Err(Error::BadRecordMac);
        }
        Ok(())
    }

    /// Returns the type of the content, and its position in `body`.
    fn decrypt_tls13(
        &self,
        keys: &Keys,
        header: [u8; HEADER_LEN],
        body: &mut [u8],
    ) -> Result<(ContentType, Range<usize>), Error> {
        let direction = &keys.receive;
        let nonce = keys::nonce(direction.nonce(self.receive_sequence));
        let opened = direction.aead.open_in_place(nonce, Aad::from(header), body);
        let inner = opened.map_err(|_| Error::BadRecordMac)?;
        if inner.len() > PLAINTEXT_MAX + 1 {
            return Err(Error::RecordOverflow);
        }
        // The last byte that is not zero is the type; the zeros after it are padding (RFC 8446 §5.4).
        let end = inner.iter().rposition(|&byte| byte != 0);
        let end = end.ok_or(Error::UnexpectedMessage("a record without a type"))?;
        let kind = ContentType::from_byte(inner[end]);
        let kind = kind.ok_or(Error::UnexpectedMessage("a record of an unknown type"))?;
        Ok((kind, 0..end))
    }

    fn decrypt_tls12(
        &self,
        keys: &Keys,
        header: [u8; HEADER_LEN],
        body: &mut [u8],
    ) -> Result<(ContentType, Range<usize>), Error> {
        let kind = ContentType::from_byte(header[0]);
        let kind = kind.ok_or(Error::UnexpectedMessage("a record of an unknown type"))?;
        let direction = &keys.receive;
        let explicit_len = self.suite.explicit_nonce_len();
        let (explicit, ciphertext) = body.split_at_mut(explicit_len);
        let nonce = match explicit_len {
            0 => direction.nonce(self.receive_sequence),
            _ => direction.nonce_with_explicit(explicit),
        };
        let len = ciphertext.len() - TAG_LEN;
        let version = [header[1], header[2]];
        let aad = record::additional_data_tls12(self.receive_sequence, header[0], version, len);
        let opened = direction.aead.open_in_place(keys::nonce(nonce), Aad::from(aad), ciphertext);
        opened.map_err(|_| Error::BadRecordMac)?;
        Ok((kind, explicit_len..explicit_len + len))
    }

    fn on_data(&mut self, content: Range<usize>) -> Result<Content, Error> {
        if self.message.is_partial() {
            return Err(Error::UnexpectedMessage("data inside a handshake message"));
        }
        if content.is_empty() {
            self.count_empty_record()?;
            return Ok(Content::Control);
        }
        self.count_data(content.len());
        Ok(Content::Data(HEADER_LEN + content.start..HEADER_LEN + content.end))
    }

    fn on_alert(&mut self, alert: [Option<&u8>; 2], len: usize) -> Result<Content, Error> {
        const CLOSE_NOTIFY: u8 = 0;
        const USER_CANCELED: u8 = 90;
        const WARNING: u8 = 1;
        if self.message.is_partial() {
            return Err(Error::UnexpectedMessage("an alert inside a handshake message"));
        }
        if len == 0 {
            // RFC 8446 §5.4 requires this alert.
            return Err(Error::UnexpectedMessage("an empty alert"));
        }
        let ([Some(&level), Some(&description)], 2) = (alert, len) else {
            return Err(Error::Decode("length of an alert"));
        };
        match description {
            CLOSE_NOTIFY => {
                self.flags.set(Flags::HAS_RECEIVED_CLOSE);
                return Ok(Content::Closed);
            }
            // TLS 1.3 has no other alert that is not fatal, regardless of its level (RFC 8446 §6). In TLS
            // 1.2 the level decides (RFC 5246 §7.2).
            USER_CANCELED if self.suite.is_tls13() => {}
            _ if !self.suite.is_tls13() && level == WARNING => {}
            _ => return Err(Error::PeerAlert(description)),
        }
        self.count_empty_record()?;
        Ok(Content::Control)
    }

    fn on_handshake(
        &mut self,
        keys: &mut Keys,
        content: &[u8],
        start: usize,
    ) -> Result<Content, Error> {
        let Some(&first) = content.first() else {
            return Err(Error::UnexpectedMessage("an empty handshake record"));
        };
        if !self.suite.is_tls13() {
            return Err(match (self.role(), first) {
                (Role::Server, CLIENT_HELLO) | (Role::Client, HELLO_REQUEST) => {
                    Error::Renegotiation
                }
                _ => Error::UnexpectedMessage("a handshake message after the handshake"),
            });
        }
        let is_continued = self.message.is_partial();
        match self.message.read(content, self.role())? {
            Update::Keys { is_requested } => {
                self.update_receive_keys(keys)?;
                if is_requested {
                    self.flags.set(Flags::OWES_KEY_UPDATE);
                }
                Ok(Content::Control)
            }
            // Tickets and fragments are bounded like empty records.
            Update::None => {
                self.count_empty_record()?;
                // Whole messages other than a KeyUpdate are tickets: no other message is accepted.
                if is_continued || self.message.is_partial() {
                    return Ok(Content::Control);
                }
                let start = HEADER_LEN + start;
                Ok(Content::Tickets(start..start + content.len()))
            }
        }
    }
}
