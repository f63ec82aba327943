//! The state of an idle connection after its handshake: everything that its record layer needs to
//! continue, and nothing that can be derived again.

use crate::{
    Error, Suite,
    keys::{DirectionKeys, Keys, Secret},
    post_handshake::Message,
    seal::SMALL_RECORDS,
    stored_secrets::{Flow, StoredSecrets},
};

/// The role of this end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// This end connected.
    Client,
    /// This end accepted.
    Server,
}

/// The most KeyUpdates without application data between them; rustls has the same bound. A record of data
/// takes one KeyUpdate off the count, and one more for each [`DATA_PER_KEY_UPDATE`] bytes: if each record
/// took off all, a peer could send 32 KeyUpdates with each byte, and each costs more than that byte.
pub const KEY_UPDATES_WITHOUT_DATA_MAX: u8 = 32;
/// See [`KEY_UPDATES_WITHOUT_DATA_MAX`].
pub const DATA_PER_KEY_UPDATE: usize = 512;
/// The most records without content, or warnings, in a row.
pub const EMPTY_RECORDS_MAX: u8 = 32;

/// A connection after its handshake, parked: suite, secrets and sequence numbers.
///
/// It has no key that is ready for use: [`Session::derive_keys`] makes those (1.5 to 4.3 µs), and
/// [`crate::KeyCache`] stores them for connections that are busy. It cannot be copied, and its secrets
/// are zeroed when it is dropped.
pub struct Session {
    /// In TLS 1.3 traffic secrets, in TLS 1.2 keys and IVs.
    secrets: StoredSecrets,
    /// The number of the next record with the present key. The peer chooses when it replaces its key;
    /// our key is replaced long before 2^32 records.
    pub(crate) receive_sequence: u64,
    pub(crate) send_sequence: u32,
    /// Identifies the keys in a cache that were derived from these secrets; 0 if none were.
    pub(crate) keys_id: u32,
    /// A post-handshake message that is not complete.
    pub(crate) message: Message,
    pub(crate) suite: Suite,
    pub(crate) flags: Flags,
    pub(crate) key_updates: u8,
    pub(crate) empty_records: u8,
}

/// The state of a session, one bit for each fact. The upper three bits are the number of records sealed
/// since the session was idle, up to the number from which records have full size; or they mean that
/// the kernel seals the records.
#[derive(Clone, Copy)]
pub(crate) struct Flags(u8);

impl Flags {
    pub(crate) const IS_CLIENT: u8 = 1;
    /// The peer has requested a KeyUpdate of ours.
    pub(crate) const OWES_KEY_UPDATE: u8 = 1 << 1;
    pub(crate) const HAS_RECEIVED_CLOSE: u8 = 1 << 2;
    pub(crate) const HAS_SENT_CLOSE: u8 = 1 << 3;
    /// There is a connection: the session is not just zeros.
    pub(crate) const IS_ESTABLISHED: u8 = 1 << 4;

    const SMALL_RECORDS_SHIFT: u32 = 5;
    /// In place of a count: the kernel has the keys for sending, and decides the length of records.
    const KERNEL_SEALS: u8 = 7;

    pub(crate) fn small_records(self) -> u8 {
        self.0 >> Self::SMALL_RECORDS_SHIFT
    }
    pub(crate) fn set_small_records(&mut self, count: u8) {
        let others = self.0 & ((1 << Self::SMALL_RECORDS_SHIFT) - 1);
        self.0 = others | count << Self::SMALL_RECORDS_SHIFT;
    }
    pub(crate) fn kernel_seals(self) -> bool {
        self.small_records() == Self::KERNEL_SEALS
    }
    pub(crate) fn set_kernel_seals(&mut self) {
        self.set_small_records(Self::KERNEL_SEALS);
    }
    pub(crate) fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
    pub(crate) fn set(&mut self, bit: u8) {
        self.0 |= bit;
    }
    pub(crate) fn clear(&mut self, bit: u8) {
        self.0 &= !bit;
    }
}

// A count of small records must never have the value that means the kernel.
const _: () = assert!(SMALL_RECORDS < Flags::KERNEL_SEALS);

/// The secret, and the number of the next record, of one direction.
pub struct Direction<'a> {
    /// TLS 1.3: the traffic secret. TLS 1.2: the key, and then 12 bytes of IV.
    pub secret: &'a [u8],
    /// Sequence number of the next record.
    pub sequence: u64,
}

impl Session {
    /// Creates a session from the secrets of a handshake. Connections of this crate's own handshakes
    /// get theirs from [`crate::Handshake`].
    ///
    /// # Panics
    /// If a secret does not have the suite's length, or 2^32 records have been sent with one key.
    pub fn new(suite: Suite, role: Role, receive: &Direction<'_>, send: &Direction<'_>) -> Self {
        for direction in [receive, send] {
            assert_eq!(direction.secret.len(), suite.secret_len(), "length of a secret");
        }
        let mut session = Self {
            receive_sequence: receive.sequence,
            send_sequence: send.sequence.try_into().expect("fewer than 2^32 records are sent"),
            suite,
            ..Self::none()
        };
        session.secrets.set(Flow::Receive, suite, &Secret::new(receive.secret));
        session.secrets.set(Flow::Send, suite, &Secret::new(send.secret));
        session.flags.set(Flags::IS_ESTABLISHED);
        if role == Role::Client {
            session.flags.set(Flags::IS_CLIENT);
        }
        session
    }

    /// The value of an entry without a session: zeros.
    pub(crate) fn none() -> Self {
        Self {
            secrets: StoredSecrets::none(),
            receive_sequence: 0,
            send_sequence: 0,
            keys_id: 0,
            message: Message::default(),
            suite: Suite::Tls13Aes128Gcm,
            flags: Flags(0),
            key_updates: 0,
            empty_records: 0,
        }
    }

    /// Whether there is a connection: an entry of a [`crate::SessionTable`] may be empty, or its
    /// handshake may not be complete.
    #[inline]
    pub fn is_established(&self) -> bool {
        self.flags.has(Flags::IS_ESTABLISHED)
    }

    /// Expands the keys of both directions.
    pub fn derive_keys(&self) -> Keys {
        let receive = self.secret(Flow::Receive);
        Keys {
            receive: DirectionKeys::derive(self.suite, &receive, self.receive_sequence),
            send: match self.is_sealed_by_kernel() {
                // The kernel counts its records by itself: a record sealed here would use a nonce
                // twice.
                true => DirectionKeys::blank(self.suite),
                false => {
                    let send = self.secret(Flow::Send);
                    DirectionKeys::derive(self.suite, &send, self.send_sequence.into())
                }
            },
        }
    }

    /// The suite of this connection.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// The role of this end.
    pub fn role(&self) -> Role {
        if self.flags.has(Flags::IS_CLIENT) { Role::Client } else { Role::Server }
    }

    /// Whether the peer has announced, by close_notify, that it sends no more. An end of the stream
    /// without it is a truncation: an attacker may have caused it (RFC 8446 §6.1).
    pub fn has_received_close(&self) -> bool {
        self.flags.has(Flags::HAS_RECEIVED_CLOSE)
    }

    /// Whether close_notify has been sealed: nothing more may be sent.
    pub fn has_sent_close(&self) -> bool {
        self.flags.has(Flags::HAS_SENT_CLOSE)
    }

    /// Whether the peer has requested a KeyUpdate, which the next sealed record brings with it.
    pub fn owes_key_update(&self) -> bool {
        self.flags.has(Flags::OWES_KEY_UPDATE)
    }

    /// Marks the connection as idle: the next response begins with small records again.
    pub fn rest(&mut self) {
        if !self.is_sealed_by_kernel() {
            self.flags.set_small_records(0);
        }
    }

    /// Replaces the key for receiving by the peer's next key.
    pub(crate) fn update_receive_keys(&mut self, keys: &mut Keys) -> Result<(), Error> {
        self.key_updates += 1;
        if self.key_updates > KEY_UPDATES_WITHOUT_DATA_MAX {
            return Err(Error::TooManyUselessRecords);
        }
        let secret = self.replace_secret(Flow::Receive);
        keys.receive = DirectionKeys::derive(self.suite, &secret, 0);
        self.receive_sequence = 0;
        Ok(())
    }

    /// Replaces the key for sending by our next key.
    pub(crate) fn update_send_keys(&mut self, keys: &mut Keys) {
        let secret = self.replace_send_secret();
        keys.send = DirectionKeys::derive(self.suite, &secret, 0);
    }

    /// Replaces our traffic secret by the next one. Returns it.
    pub(crate) fn replace_send_secret(&mut self) -> Secret {
        self.send_sequence = 0;
        self.flags.clear(Flags::OWES_KEY_UPDATE);
        self.replace_secret(Flow::Send)
    }

    /// Replaces a traffic secret by its successor. Returns the successor.
    fn replace_secret(&mut self, flow: Flow) -> Secret {
        let mut secret = self.secret(flow);
        secret.update(self.suite);
        self.secrets.set(flow, self.suite, &secret);
        secret
    }

    /// A copy of the secret of one direction.
    pub(crate) fn secret(&self, flow: Flow) -> Secret {
        self.secrets.get(flow)
    }

    /// Counts a record of `len` bytes of data.
    #[inline]
    pub(crate) fn count_data(&mut self, len: usize) {
        self.empty_records = 0;
        // A record has at most 2^14 bytes.
        self.key_updates = self.key_updates.saturating_sub(1 + (len / DATA_PER_KEY_UPDATE) as u8);
    }

    /// Counts a record without content.
    pub(crate) fn count_empty_record(&mut self) -> Result<(), Error> {
        self.empty_records += 1;
        if self.empty_records > EMPTY_RECORDS_MAX {
            return Err(Error::TooManyUselessRecords);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Session {
    /// Without the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("suite", &self.suite)
            .field("role", &self.role())
            .field("receive_sequence", &self.receive_sequence)
            .field("send_sequence", &self.send_sequence)
            .finish_non_exhaustive()
    }
}

/// The memory of an idle connection: the goal of the whole design.
const _: () = assert!(size_of::<Session>() <= 96);
