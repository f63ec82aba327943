//! A session as bytes, for another process that continues the connection.

use crate::{
    Direction, EMPTY_RECORDS_MAX, KEY_UPDATES_WITHOUT_DATA_MAX, Role, Session, Suite,
    session::Flags, stored_secrets::Flow,
};

/// The most bytes of a parked session.
pub const PARKED_MAX: usize = HEADER_BYTES + 2 * crate::keys::SECRET_MAX;
/// Suite, flags, two counters and two sequence numbers.
const HEADER_BYTES: usize = 4 + 8 + 4;
/// The maximum number of records that are sealed with one key.
const SEND_SEQUENCE_MAX: u32 = 1 << 31;
/// The maximum number of records that are received.
const RECEIVE_SEQUENCE_MAX: u64 = 1 << 62;

/// The peer has requested a KeyUpdate.
const OWES_KEY_UPDATE: u8 = 1;
/// The kernel has the keys for sending; it keeps them with the descriptor.
const KERNEL_SEALS: u8 = 2;

impl Session {
    /// Returns the session of a server as bytes, for another process that continues it. `None` if the
    /// session has ended or has not begun, or if a message has arrived only in part.
    ///
    /// The bytes contain the connection's secrets: overwrite them after use. Only one of the two
    /// processes may seal records from then on, otherwise a nonce is used twice. If the kernel seals,
    /// it does so for the other process, too.
    pub fn park(&self) -> Option<Vec<u8>> {
        let flags = Flags::IS_CLIENT | Flags::HAS_RECEIVED_CLOSE | Flags::HAS_SENT_CLOSE;
        let is_open = self.is_established() && !self.flags.has(flags);
        if !is_open || !self.message.is_complete() {
            return None;
        }
        let mut flags = 0;
        if self.owes_key_update() {
            flags |= OWES_KEY_UPDATE;
        }
        if self.is_sealed_by_kernel() {
            flags |= KERNEL_SEALS;
        }
        let len = self.suite.secret_len();
        let mut bytes = Vec::with_capacity(PARKED_MAX);
        bytes.extend([self.suite as u8, flags, self.key_updates, self.empty_records]);
        bytes.extend(self.receive_sequence.to_be_bytes());
        bytes.extend(self.send_sequence.to_be_bytes());
        bytes.extend_from_slice(&self.secret(Flow::Receive).0[..len]);
        bytes.extend_from_slice(&self.secret(Flow::Send).0[..len]);
        Some(bytes)
    }

    /// Returns the session that [`Session::park`] made these bytes from; `None` if they are not a
    /// session.
    pub fn unpark(bytes: &[u8]) -> Option<Self> {
        let (&[suite, flags, key_updates, empty_records], rest) = bytes.split_first_chunk()?;
        let (receive_sequence, rest) = rest.split_first_chunk()?;
        let (send_sequence, secrets) = rest.split_first_chunk()?;
        let suite = *Suite::ALL.get(usize::from(suite))?;
        let receive_sequence = u64::from_be_bytes(*receive_sequence);
        let send_sequence = u32::from_be_bytes(*send_sequence);
        let is_possible = secrets.len() == 2 * suite.secret_len()
            && flags <= (OWES_KEY_UPDATE | KERNEL_SEALS)
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
        if flags & OWES_KEY_UPDATE != 0 {
            session.flags.set(Flags::OWES_KEY_UPDATE);
        }
        if flags & KERNEL_SEALS != 0 {
            session.flags.set_kernel_seals();
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
        for suite in Suite::ALL {
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
    fn the_kernel_seals_for_the_other_process_too() {
        let (_, mut server) = pair(Suite::Tls13Aes128Gcm);
        let mut keys = server.derive_keys();
        server.give_sending_to_kernel(&mut keys);
        let parked = server.park().unwrap();
        let server = Session::unpark(&parked).unwrap();
        assert!(server.is_sealed_by_kernel());
        assert_eq!(server.park(), Some(parked));
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
        for (at, value) in [(0, 6), (0, 0), (1, 4), (2, 33), (3, 33), (4, 0xff), (12, 0xff)] {
            let mut wrong = parked.clone();
            wrong[at] = value;
            assert!(Session::unpark(&wrong).is_none(), "byte {at}: {value}");
        }
    }
}
