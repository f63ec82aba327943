//! A session as bytes, for another process that goes on with the connection.

use crate::{
    Direction, EMPTY_RECORDS_MAX, KEY_UPDATES_WITHOUT_DATA_MAX, Role, Session, Suite,
    session::Flags, stored_secrets::Flow,
};

/// The most bytes of a parked session.
pub const PARKED_MAX: usize = HEADER_BYTES + 2 * crate::keys::SECRET_MAX;
/// Suite, flags, two counters and two sequence numbers.
const HEADER_BYTES: usize = 4 + 8 + 4;
/// More records are not sealed with one key.
const SEND_SEQUENCE_MAX: u32 = 1 << 31;
/// Nor are more received.
const RECEIVE_SEQUENCE_MAX: u64 = 1 << 62;

const SUITES: [Suite; 6] = [
    Suite::Tls13Aes128Gcm,
    Suite::Tls13Aes256Gcm,
    Suite::Tls13ChaCha20,
    Suite::Tls12Aes128Gcm,
    Suite::Tls12Aes256Gcm,
    Suite::Tls12ChaCha20,
];

impl Session {
    /// The session of a server as bytes, for another process to go on with. `None` where it has ended, has not
    /// begun, or has received a part of a message.
    ///
    /// The bytes have the connection's secrets: write over them after use. Only one of the two processes may
    /// seal anything from then on, or a nonce is used twice.
    pub fn park(&self) -> Option<Vec<u8>> {
        let flags = Flags::IS_CLIENT | Flags::HAS_RECEIVED_CLOSE | Flags::HAS_SENT_CLOSE;
        let is_open = self.is_established() && !self.flags.has(flags);
        if !is_open || !self.message.is_complete() {
            return None;
        }
        let owes_key_update = u8::from(self.owes_key_update());
        let len = self.suite.secret_len();
        let mut bytes = Vec::with_capacity(PARKED_MAX);
        bytes.extend([self.suite as u8, owes_key_update, self.key_updates, self.empty_records]);
        bytes.extend(self.receive_sequence.to_be_bytes());
        bytes.extend(self.send_sequence.to_be_bytes());
        bytes.extend_from_slice(&self.secret(Flow::Receive).0[..len]);
        bytes.extend_from_slice(&self.secret(Flow::Send).0[..len]);
        Some(bytes)
    }

    /// The session that [`Session::park`] has made these bytes of; `None` if they are no session.
    pub fn unpark(bytes: &[u8]) -> Option<Self> {
        let (&[suite, owes_key_update, key_updates, empty_records], rest) =
            bytes.split_first_chunk()?;
        let (receive_sequence, rest) = rest.split_first_chunk()?;
        let (send_sequence, secrets) = rest.split_first_chunk()?;
        let suite = *SUITES.get(usize::from(suite))?;
        let receive_sequence = u64::from_be_bytes(*receive_sequence);
        let send_sequence = u32::from_be_bytes(*send_sequence);
        let is_possible = secrets.len() == 2 * suite.secret_len()
            && owes_key_update <= 1
            && key_updates <= KEY_UPDATES_WITHOUT_DATA_MAX
            && empty_records <= EMPTY_RECORDS_MAX
            && receive_sequence <= RECEIVE_SEQUENCE_MAX
            && send_sequence <= SEND_SEQUENCE_MAX;
        if !is_possible {
            return None;
        }
        let (receive, send) = secrets.split_at(suite.secret_len());
        let receive = Direction { secret: receive, sequence: receive_sequence };
        let send = Direction { secret: send, sequence: send_sequence.into() };
        let mut session = Self::new(suite, Role::Server, &receive, &send);
        session.key_updates = key_updates;
        session.empty_records = empty_records;
        if owes_key_update == 1 {
            session.flags.set(Flags::OWES_KEY_UPDATE);
        }
        Some(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Content;

    fn pair(suite: Suite) -> (Session, Session) {
        let (one, other) = (vec![1; suite.secret_len()], vec![2; suite.secret_len()]);
        let direction = |secret| Direction { secret, sequence: 3 };
        let client = Session::new(suite, Role::Client, &direction(&one), &direction(&other));
        let server = Session::new(suite, Role::Server, &direction(&other), &direction(&one));
        (client, server)
    }

    fn sends(from: &mut Session, to: &mut Session, text: &[u8]) {
        let mut records = [0; 256];
        let mut keys = from.derive_keys();
        let written = from.seal(&mut keys, text, &mut records).unwrap().written;
        let mut keys = to.derive_keys();
        let opening = to.open(&mut keys, &mut records[..written]).unwrap();
        let Content::Data(range) = opening.content else { panic!("no data") };
        assert_eq!(&records[range], text);
    }

    #[test]
    fn a_parked_session_goes_on_where_it_was() {
        for suite in SUITES {
            let (mut client, mut server) = pair(suite);
            sends(&mut client, &mut server, b"before");
            sends(&mut server, &mut client, b"before, too");
            let parked = server.park().unwrap();
            assert!(parked.len() <= PARKED_MAX);
            let mut server = Session::unpark(&parked).unwrap();
            assert_eq!(server.park().as_ref(), Some(&parked));
            sends(&mut client, &mut server, b"behind");
            sends(&mut server, &mut client, b"behind, too");
        }
    }

    #[test]
    fn what_is_no_session_is_refused() {
        let (client, server) = pair(Suite::Tls13Aes256Gcm);
        assert!(client.park().is_none() && Session::none().park().is_none());
        let parked = server.park().unwrap();
        for len in 0..parked.len() {
            assert!(Session::unpark(&parked[..len]).is_none(), "{len} bytes");
        }
        assert!(Session::unpark(&[&parked[..], &[0]].concat()).is_none());
        for (at, value) in [(0, 6), (0, 0), (1, 2), (2, 33), (3, 33), (4, 0xff), (12, 0xff)] {
            let mut wrong = parked.clone();
            wrong[at] = value;
            assert!(Session::unpark(&wrong).is_none(), "byte {at}: {value}");
        }
    }
}
