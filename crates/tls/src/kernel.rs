//! Kernel TLS, without the kernel: the keys for sending in the form in which Linux takes them, and the
//! remaining work for a session whose records the kernel seals.
//!
//! Such a session still opens the records that it receives. For control records ([`ControlMessage`])
//! the caller passes type and content to the kernel. The kernel counts its records by itself, so a
//! session only estimates their number.

use crate::{
    Error, Keys, Session, Suite,
    keys::{DirectionKeys, KEY_MAX, raw_key_and_iv},
    post_handshake::OUR_KEY_UPDATE,
    record::ContentType,
    session::Flags,
    stored_secrets::Flow,
};
use zeroize::Zeroize;

/// The least content of a record that the kernel seals, except for the last record of one call: it
/// gathers whole pages of a file. The first page may be a part of one.
pub const KERNEL_RECORD_MIN: usize = 4096;

/// linux/tls.h.
const VERSION_TLS12: u16 = 0x0303;
const VERSION_TLS13: u16 = 0x0304;
const AES_GCM_128: u16 = 51;
const AES_GCM_256: u16 = 52;
const CHACHA20_POLY1305: u16 = 54;
/// AES-GCM: the part of the nonce that all records share.
const SALT_LEN: usize = 4;
/// The most bytes of a `struct tls12_crypto_info_…`.
const CRYPTO_INFO_MAX: usize = 56;

/// The keys for sending, as the kernel takes them (TLS_TX): a `struct tls12_crypto_info_…` of linux/tls.h. Zeroed when
/// dropped.
pub struct SendingKeys {
    bytes: [u8; CRYPTO_INFO_MAX],
    len: usize,
}

impl SendingKeys {
    /// The structure.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl Drop for SendingKeys {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

/// A record that the record layer itself produces, for the kernel to seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlMessage {
    kind: ContentType,
    content: [u8; OUR_KEY_UPDATE.len()],
    len: usize,
}

impl ControlMessage {
    /// The KeyUpdate before [`Session::next_sending_keys`].
    pub const KEY_UPDATE: Self =
        Self { kind: ContentType::Handshake, content: OUR_KEY_UPDATE, len: OUR_KEY_UPDATE.len() };

    fn alert(level: u8, description: u8) -> Self {
        Self { kind: ContentType::Alert, content: [level, description, 0, 0, 0], len: 2 }
    }

    /// The type of the record.
    pub fn kind(&self) -> u8 {
        self.kind.to_byte()
    }

    /// The record's content.
    pub fn content(&self) -> &[u8] {
        &self.content[..self.len]
    }
}

impl Session {
    /// Returns the keys for sending, for the kernel. Call [`Session::give_sending_to_kernel`] as soon
    /// as the kernel has them; no record may be sealed in between.
    pub fn sending_keys(&self) -> SendingKeys {
        let (mut key, mut iv) = ([0; KEY_MAX], [0; ring::aead::NONCE_LEN]);
        let key_len = self.suite.aead().key_len();
        raw_key_and_iv(self.suite, &self.secret(Flow::Send), &mut key[..key_len], &mut iv);
        let version = if self.suite.is_tls13() { VERSION_TLS13 } else { VERSION_TLS12 };
        let cipher = match self.suite {
            Suite::Tls13Aes128Gcm | Suite::Tls12Aes128Gcm => AES_GCM_128,
            Suite::Tls13Aes256Gcm | Suite::Tls12Aes256Gcm => AES_GCM_256,
            Suite::Tls13ChaCha20 | Suite::Tls12ChaCha20 => CHACHA20_POLY1305,
        };
        let mut keys = SendingKeys { bytes: [0; CRYPTO_INFO_MAX], len: 0 };
        keys.push(&version.to_ne_bytes());
        keys.push(&cipher.to_ne_bytes());
        if cipher == CHACHA20_POLY1305 {
            keys.push(&iv);
            keys.push(&key[..key_len]);
        } else {
            let (salt, rest) = iv.split_at_mut(SALT_LEN);
            if !self.suite.is_tls13() {
                leave_own_nonces(rest);
            }
            keys.push(rest);
            keys.push(&key[..key_len]);
            keys.push(salt);
        }
        keys.push(&u64::from(self.send_sequence).to_be_bytes());
        key.zeroize();
        iv.zeroize();
        keys
    }

    /// Records that the kernel has the keys for sending. `keys` are this session's own. Sealing a
    /// record in this session panics from then on, in release builds too, because it would use a nonce
    /// of the kernel's.
    pub fn give_sending_to_kernel(&mut self, keys: &mut Keys) {
        keys.send = DirectionKeys::blank(self.suite);
        self.flags.set_kernel_seals();
    }

    /// Whether the kernel has the keys for sending.
    #[inline]
    pub fn is_sealed_by_kernel(&self) -> bool {
        self.flags.kernel_seals()
    }

    /// Adds the largest possible number of records in which the kernel sends `len` bytes from one call
    /// ([`Session::is_key_update_due`]).
    pub fn count_kernel_records(&mut self, len: usize) {
        let records = len / KERNEL_RECORD_MIN + 2;
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        self.send_sequence = self.send_sequence.saturating_add(records).min(1 << 31);
    }

    /// Moves to our next keys for sending, which the kernel gets after it has sent
    /// [`ControlMessage::KEY_UPDATE`].
    ///
    /// # Panics
    /// If the kernel does not seal, or this is TLS 1.2, which cannot change keys.
    pub fn next_sending_keys(&mut self) -> SendingKeys {
        assert!(self.is_sealed_by_kernel() && self.suite.is_tls13(), "the kernel has no such keys");
        self.replace_send_secret();
        self.sending_keys()
    }

    /// close_notify for the kernel to send: this end sends no more. `None` if it has been sent.
    pub fn close_message(&mut self) -> Option<ControlMessage> {
        let is_first = !self.has_sent_close();
        self.flags.set(Flags::HAS_SENT_CLOSE);
        is_first.then(|| ControlMessage::alert(1, 0))
    }

    /// The alert that tells the peer of an error, for the kernel to send; `None` if there is none to send. Nothing can
    /// be sent after an error, not even close_notify (RFC 8446 §6.2). Only the refusal of a renegotiation is a warning,
    /// which [`Session::close_message`] must follow.
    pub fn alert_message(&mut self, error: Error) -> Option<ControlMessage> {
        let is_open = !self.has_sent_close();
        if error != Error::Renegotiation {
            self.flags.set(Flags::HAS_SENT_CLOSE);
        }
        let (level, description) = error.alert().filter(|_| is_open)?;
        Some(ControlMessage::alert(level, description))
    }
}

/// Moves the explicit nonce at which the kernel begins in TLS 1.2 into a range that this crate does not
/// use. This crate uses the IV exclusive-or sequence numbers of 32 bits, so the upper half of its
/// nonces is that of the IV. The kernel adds one for each record, less than 2^32 times. With the IV
/// itself it would repeat nonces of this crate.
fn leave_own_nonces(explicit: &mut [u8]) {
    explicit[0] ^= 0x80;
    explicit[4..].fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Content, Direction, Role};
    use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey};

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    fn pair(suite: Suite, sequence: u64) -> (Session, Session) {
        let (one, other) = (vec![1; suite.secret_len()], vec![2; suite.secret_len()]);
        let direction = |secret| Direction { secret, sequence };
        let client = Session::new(suite, Role::Client, &direction(&other), &direction(&one));
        let server = Session::new(suite, Role::Server, &direction(&one), &direction(&other));
        (client, server)
    }

    /// RFC 8448 §3: "{server} derive write traffic keys for application data".
    #[test]
    fn the_structure_has_the_keys_of_the_rfc() {
        let secret = hex("a11af9f05531f856ad47116b45a95032 8204b4f44bfb6b3a4b4f1f3fcb631643");
        let direction = Direction { secret: &secret, sequence: 1 };
        let session = Session::new(Suite::Tls13Aes128Gcm, Role::Server, &direction, &direction);
        let expected = [
            &0x0304u16.to_ne_bytes()[..],
            &51u16.to_ne_bytes(),
            &hex("dd 83 54 9a ad f1 e9 84"),
            &hex("9f 02 28 3b 6c 9c 07 ef c2 6b b9 f2 ac 92 e3 56"),
            &hex("cf 78 2b 88"),
            &hex("00 00 00 00 00 00 00 01"),
        ];
        assert_eq!(session.sending_keys().as_bytes(), expected.concat());
    }

    /// Seals one record of data as Linux does with the structure (net/tls/tls_sw.c).
    fn kernel_seals(suite: Suite, info: &[u8], content: &[u8]) -> Vec<u8> {
        let cipher = u16::from_ne_bytes([info[2], info[3]]);
        let (iv_len, key_len, salt_len) = match cipher {
            AES_GCM_128 => (8, 16, 4),
            AES_GCM_256 => (8, 32, 4),
            _ => (12, 32, 0),
        };
        assert_eq!(info.len(), 4 + iv_len + key_len + salt_len + 8);
        let (iv, rest) = info[4..].split_at(iv_len);
        let (key, rest) = rest.split_at(key_len);
        let (salt, sequence) = rest.split_at(salt_len);
        let mut nonce: [u8; 12] = [salt, iv].concat().try_into().unwrap();
        let has_explicit = !suite.is_tls13() && cipher != CHACHA20_POLY1305;
        if !has_explicit {
            nonce[4..].iter_mut().zip(sequence).for_each(|(byte, number)| *byte ^= number);
        }
        let key = LessSafeKey::new(UnboundKey::new(suite.aead(), key).unwrap());
        let mut body = content.to_vec();
        let explicit: &[u8] = if has_explicit { iv } else { &[] };
        let seal = |aad: &[u8], body: &mut Vec<u8>| {
            let nonce = Nonce::assume_unique_for_key(nonce);
            key.seal_in_place_append_tag(nonce, Aad::from(aad), body).unwrap();
        };
        if suite.is_tls13() {
            body.push(23);
            let header = [23, 3, 3, 0, (body.len() + 16) as u8];
            seal(&header, &mut body);
            return [&header[..], &body].concat();
        }
        let aad = [sequence, &[23, 3, 3, 0, content.len() as u8]].concat();
        seal(&aad, &mut body);
        let header = [23, 3, 3, 0, (explicit.len() + body.len()) as u8];
        [&header[..], explicit, &body].concat()
    }

    #[test]
    fn a_client_opens_what_the_kernel_seals_behind_our_records() {
        for suite in Suite::ALL {
            let (mut client, mut server) = pair(suite, 0);
            let (mut client_keys, mut keys) = (client.derive_keys(), server.derive_keys());
            let mut records = [0; 256];
            let written = server.seal(&mut keys, b"head", &mut records).unwrap().written;
            client.open(&mut client_keys, &mut records[..written]).unwrap();

            let info = server.sending_keys();
            server.give_sending_to_kernel(&mut keys);
            let mut record = kernel_seals(suite, info.as_bytes(), b"body");
            let opening = client.open(&mut client_keys, &mut record).unwrap();
            let Content::Data(range) = opening.content else { panic!("{suite:?}") };
            assert_eq!(&record[range], b"body", "{suite:?}");

            if !suite.is_tls13() {
                continue;
            }
            // The kernel has sent the KeyUpdate, and counts from 0 with the next keys.
            client.update_receive_keys(&mut client_keys).unwrap();
            let info = server.next_sending_keys();
            let mut record = kernel_seals(suite, info.as_bytes(), b"more");
            let opening = client.open(&mut client_keys, &mut record).unwrap();
            let Content::Data(range) = opening.content else { panic!("{suite:?}") };
            assert_eq!(&record[range], b"more", "{suite:?}");
        }
    }

    #[test]
    fn in_tls_1_2_the_kernel_repeats_no_nonce_of_ours() {
        for suite in [Suite::Tls12Aes128Gcm, Suite::Tls12Aes256Gcm] {
            let (_, mut server) = pair(suite, 0);
            let mut keys = server.derive_keys();
            let mut ours = Vec::new();
            for _ in 0..100 {
                let mut record = [0; 64];
                server.seal(&mut keys, b"x", &mut record).unwrap();
                ours.push(u64::from_be_bytes(*record[5..].first_chunk().unwrap()));
            }
            let info = server.sending_keys();
            let first = u64::from_be_bytes(*info.as_bytes()[4..].first_chunk().unwrap());
            let kernels = first..first + (1 << 32);
            // None of them is among the 2^32 nonces that this crate could use.
            let possible = ours[0] & !0xffff_ffff..=ours[0] | 0xffff_ffff;
            assert!(ours.iter().all(|nonce| possible.contains(nonce)));
            assert!(!kernels.contains(possible.start()) && !kernels.contains(possible.end()));
        }
    }

    #[test]
    #[should_panic = "nonce would be used twice"]
    fn what_the_kernel_seals_cannot_be_sealed_here() {
        let (_, mut server) = pair(Suite::Tls13Aes128Gcm, 5);
        let mut keys = server.derive_keys();
        server.give_sending_to_kernel(&mut keys);
        let _ = server.seal(&mut keys, b"x", &mut [0; 64]);
    }

    #[test]
    #[should_panic = "nonce would be used twice"]
    fn nor_with_keys_that_are_derived_again() {
        let (_, mut server) = pair(Suite::Tls12ChaCha20, 5);
        server.give_sending_to_kernel(&mut server.derive_keys());
        server.rest();
        let mut keys = server.derive_keys();
        let _ = server.seal(&mut keys, b"x", &mut [0; 64]);
    }

    #[test]
    fn a_key_of_the_kernel_is_replaced_in_time() {
        let (_, mut server) = pair(Suite::Tls13Aes128Gcm, 0);
        server.give_sending_to_kernel(&mut server.derive_keys());
        let mut sent = 0u64;
        while !server.is_key_update_due() {
            server.count_kernel_records(1 << 20);
            sent += 1 << 20;
        }
        // 2^24.5 full records (RFC 8446 §5.5), and at least some gigabytes between two KeyUpdates.
        assert!((16 << 30..1 << 38).contains(&sent), "{sent}");
        server.next_sending_keys();
        assert!(!server.is_key_update_due());
    }

    #[test]
    fn control_messages_are_those_of_the_record_layer() {
        let (_, mut server) = pair(Suite::Tls13Aes128Gcm, 0);
        let update = ControlMessage::KEY_UPDATE;
        assert_eq!((update.kind(), update.content()), (22, &[24, 0, 0, 1, 0][..]));
        let close = server.close_message().unwrap();
        assert_eq!((close.kind(), close.content()), (21, &[1, 0][..]));
        assert!(server.has_sent_close() && server.close_message().is_none());
        assert!(server.alert_message(Error::BadRecordMac).is_none());
        let (_, mut server) = pair(Suite::Tls13Aes128Gcm, 0);
        let alert = server.alert_message(Error::BadRecordMac).unwrap();
        assert_eq!((alert.kind(), alert.content()), (21, &[2, 20][..]));
        assert!(server.has_sent_close());
        let (_, mut server) = pair(Suite::Tls12Aes128Gcm, 0);
        let warning = server.alert_message(Error::Renegotiation).unwrap();
        assert_eq!((warning.kind(), warning.content()), (21, &[1, 100][..]));
        assert_eq!(server.close_message(), Some(close));
    }
}
