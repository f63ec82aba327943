//! Our end of a connection after the handshake.

use pollux_tls::{Content, Error, Keys, Session};

/// Our end of a connection: opens the received records, in any pieces.
pub struct Ours {
    pub session: Session,
    pub keys: Keys,
    input: Vec<u8>,
    /// The data that has arrived.
    pub data: Vec<u8>,
    pub is_closed: bool,
}

impl Ours {
    pub fn new(session: Session, input: Vec<u8>) -> Self {
        let keys = session.derive_keys();
        Self { session, keys, input, data: Vec::new(), is_closed: false }
    }

    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.input.extend_from_slice(bytes);
        loop {
            let opening = self.session.open(&mut self.keys, &mut self.input)?;
            match opening.content {
                Content::Incomplete(_) => return Ok(()),
                Content::Data(range) => self.data.extend_from_slice(&self.input[range]),
                Content::Control | Content::Tickets(_) => {}
                Content::Closed => self.is_closed = true,
            }
            self.input.drain(..opening.consumed);
        }
    }

    pub fn send(&mut self, data: &[u8], room: usize) -> Vec<u8> {
        let mut sent = Vec::new();
        let mut rest = data;
        let mut out = vec![0; room];
        while !rest.is_empty() {
            let sealing = self.session.seal(&mut self.keys, rest, &mut out).unwrap();
            assert!(sealing.written > 0);
            sent.extend_from_slice(&out[..sealing.written]);
            rest = &rest[sealing.plaintext..];
        }
        sent
    }

    /// Acts as if it had been idle, and its keys had been discarded.
    pub fn park(&mut self) {
        self.session.rest();
        self.keys = self.session.derive_keys();
    }

    /// Acts as if another process went on with the connection; nothing happens where none can.
    pub fn move_on(&mut self) {
        if let Some(parked) = self.session.park() {
            self.session = Session::unpark(&parked).unwrap();
            self.park();
        }
    }
}
