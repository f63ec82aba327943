//! The handshake messages that may arrive after the handshake: KeyUpdate and, for a client,
//! NewSessionTicket (RFC 8446 §4.6). A peer may split one into several records.

use crate::{Error, session::Role};

/// The message by which a TLS 1.2 server requests renegotiation.
pub(crate) const HELLO_REQUEST: u8 = 0;
/// The message by which a client begins renegotiation.
pub(crate) const CLIENT_HELLO: u8 = 1;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
/// Message type and length.
const HEADER_LEN: u8 = 4;
/// The longest ticket message: its fields cannot hold more (RFC 8446 §4.6.1).
const TICKET_MAX: u32 = 4 + 4 + 1 + 255 + 2 + 65_535 + 2 + 65_534;

/// A message that is not complete, in 4 bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Message {
    /// The length, as far as it has arrived; then the number of missing bytes of the body.
    len: [u8; 3],
    /// The number of bytes of the header that have arrived, and whether the header is a ticket's.
    state: u8,
}

impl Message {
    const IS_TICKET: u8 = 1 << 7;

    /// Whether no message is pending.
    pub(crate) fn is_complete(self) -> bool {
        self.state == 0 && self.len == [0; 3]
    }

    fn header_len(self) -> u8 {
        self.state & !Self::IS_TICKET
    }

    fn len(self) -> u32 {
        let [high, middle, low] = self.len;
        u32::from_be_bytes([0, high, middle, low])
    }

    fn set_len(&mut self, len: u32) {
        let [_, high, middle, low] = len.to_be_bytes();
        self.len = [high, middle, low];
    }
}

/// The meaning of some bytes of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    /// No action is necessary, or not yet.
    None,
    /// The peer's next record uses its next key.
    Keys {
        /// The peer requests that our key is replaced, too.
        is_requested: bool,
    },
}

impl Message {
    /// Whether a message has begun and not ended: then a record of any other type is invalid (RFC 8446
    /// §5.1).
    pub(crate) fn is_partial(self) -> bool {
        self.header_len() > 0
    }

    /// Processes the content of one record.
    pub(crate) fn read(&mut self, content: &[u8], role: Role) -> Result<Update, Error> {
        let mut rest = content;
        while let Some(&byte) = rest.first() {
            if self.header_len() < HEADER_LEN {
                rest = &rest[1..];
                self.take_header_byte(byte, role)?;
                continue;
            }
            if self.state & Self::IS_TICKET == 0 {
                let is_requested = match byte {
                    0 => false,
                    1 => true,
                    _ => return Err(Error::IllegalParameter),
                };
                // Data after the KeyUpdate in this record would have the old key (RFC 8446 §5.1).
                if rest.len() > 1 {
                    return Err(Error::UnexpectedMessage("data after a KeyUpdate in its record"));
                }
                *self = Self::default();
                return Ok(Update::Keys { is_requested });
            }
            let len = rest.len().min(self.len() as usize);
            rest = &rest[len..];
            self.set_len(self.len() - len as u32);
            if self.len() == 0 {
                *self = Self::default();
            }
        }
        Ok(Update::None)
    }

    fn take_header_byte(&mut self, byte: u8, role: Role) -> Result<(), Error> {
        if self.header_len() == 0 {
            match (byte, role) {
                (KEY_UPDATE, _) => {}
                (NEW_SESSION_TICKET, Role::Client) => self.state = Self::IS_TICKET,
                _ => {
                    return Err(Error::UnexpectedMessage(
                        "a handshake message after the handshake",
                    ));
                }
            }
        } else {
            self.set_len(self.len() << 8 | u32::from(byte));
        }
        self.state += 1;
        if self.header_len() == HEADER_LEN {
            let is_ticket = self.state & Self::IS_TICKET != 0;
            match self.len() {
                len if !is_ticket && len != 1 => {
                    return Err(Error::Decode("length of a KeyUpdate"));
                }
                len if is_ticket && (len == 0 || len > TICKET_MAX) => {
                    return Err(Error::Decode("length of a NewSessionTicket"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The KeyUpdate that we send. It never requests the peer's: two ends that request one would never
/// stop.
pub(crate) const OUR_KEY_UPDATE: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in_pieces(bytes: &[u8], piece: usize, role: Role) -> Result<Vec<Update>, Error> {
        let mut message = Message::default();
        bytes.chunks(piece).map(|piece| message.read(piece, role)).collect()
    }

    #[test]
    fn a_key_update_may_come_byte_by_byte() {
        for piece in 1..=5 {
            let updates = read_in_pieces(&[24, 0, 0, 1, 1], piece, Role::Server).unwrap();
            assert_eq!(updates.last(), Some(&Update::Keys { is_requested: true }));
            assert!(updates.iter().rev().skip(1).all(|update| *update == Update::None));
        }
    }

    #[test]
    fn a_ticket_is_skipped_by_a_client_and_refused_by_a_server() {
        let mut both = vec![4, 0, 1, 0];
        both.extend([7; 256]);
        both.extend([24, 0, 0, 1, 0]);
        for piece in [1, 3, 100, 261, 265] {
            let updates = read_in_pieces(&both, piece, Role::Client).unwrap();
            assert_eq!(updates.last(), Some(&Update::Keys { is_requested: false }), "{piece}");
        }
        assert!(read_in_pieces(&both, 300, Role::Server).is_err());
    }

    #[test]
    fn malformed_messages_are_refused() {
        let cases: [(&[u8], Error); 5] = [
            (&[24, 0, 0, 1, 2], Error::IllegalParameter),
            (&[24, 0, 0, 2, 0, 0], Error::Decode("length of a KeyUpdate")),
            (&[24, 0, 0, 0], Error::Decode("length of a KeyUpdate")),
            (
                &[24, 0, 0, 1, 0, 0],
                Error::UnexpectedMessage("data after a KeyUpdate in its record"),
            ),
            (&[1, 0, 0, 1], Error::UnexpectedMessage("a handshake message after the handshake")),
        ];
        for (bytes, error) in cases {
            let mut message = Message::default();
            assert_eq!(message.read(bytes, Role::Server), Err(error));
        }
    }
}
