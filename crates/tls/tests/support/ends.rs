//! The other end of a connection, straight from the RFCs: keys, nonces and records by ring alone. The fuzz targets
//! include this file, too.

use pollux_tls::Suite;
use ring::{
    aead::{self, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{self, KeyType, Prk},
};

/// A traffic secret (TLS 1.3), or a key and its IV (TLS 1.2).
pub(super) fn secret(suite: Suite, fill: u8) -> Vec<u8> {
    let len = match suite {
        Suite::Tls13Aes128Gcm | Suite::Tls13ChaCha20 => 32,
        Suite::Tls13Aes256Gcm => 48,
        Suite::Tls12Aes128Gcm => 16 + 12,
        Suite::Tls12Aes256Gcm | Suite::Tls12ChaCha20 => 32 + 12,
    };
    (0..len).map(|at: u8| at.wrapping_mul(7) ^ fill).collect()
}

pub(super) fn is_tls13(suite: Suite) -> bool {
    matches!(suite, Suite::Tls13Aes128Gcm | Suite::Tls13Aes256Gcm | Suite::Tls13ChaCha20)
}

fn algorithm(suite: Suite) -> &'static aead::Algorithm {
    match suite {
        Suite::Tls13Aes128Gcm | Suite::Tls12Aes128Gcm => &aead::AES_128_GCM,
        Suite::Tls13Aes256Gcm | Suite::Tls12Aes256Gcm => &aead::AES_256_GCM,
        Suite::Tls13ChaCha20 | Suite::Tls12ChaCha20 => &aead::CHACHA20_POLY1305,
    }
}

struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label without a context (RFC 8446 §7.1).
fn expand(suite: Suite, secret: &[u8], label: &str, len: usize) -> Vec<u8> {
    let hash = match suite {
        Suite::Tls13Aes256Gcm => hkdf::HKDF_SHA384,
        _ => hkdf::HKDF_SHA256,
    };
    let label = format!("tls13 {label}");
    let info: [&[u8]; 4] = [&[0, len as u8], &[label.len() as u8], label.as_bytes(), &[0]];
    let mut out = vec![0; len];
    let prk = Prk::new_less_safe(hash, secret);
    prk.expand(&info, Len(len)).and_then(|okm| okm.fill(&mut out)).expect("a short output");
    out
}

/// Key, IV and number of one direction.
struct Direction {
    suite: Suite,
    secret: Vec<u8>,
    key: LessSafeKey,
    iv: Vec<u8>,
    sequence: u64,
}

impl Direction {
    fn new(suite: Suite, secret: Vec<u8>) -> Self {
        let algorithm = algorithm(suite);
        let (key, iv) = if is_tls13(suite) {
            (expand(suite, &secret, "key", algorithm.key_len()), expand(suite, &secret, "iv", 12))
        } else {
            (secret[..algorithm.key_len()].to_vec(), secret[algorithm.key_len()..].to_vec())
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, &key).expect("the key's length"));
        Self { suite, secret, key, iv, sequence: 0 }
    }

    fn update(&mut self) {
        let len = self.secret.len();
        *self = Self::new(self.suite, expand(self.suite, &self.secret, "traffic upd", len));
    }

    /// The nonce of the record with the next number.
    fn nonce(&self) -> [u8; 12] {
        let mut nonce: [u8; 12] = self.iv.as_slice().try_into().expect("12 bytes");
        for (byte, of_sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= of_sequence;
        }
        nonce
    }

    /// Whether records carry half of their nonce (RFC 5288 §3).
    fn has_explicit_nonce(&self) -> bool {
        matches!(self.suite, Suite::Tls12Aes128Gcm | Suite::Tls12Aes256Gcm)
    }

    fn additional_data(&self, kind: u8, len: usize) -> Vec<u8> {
        let [high, low] = (len as u16).to_be_bytes();
        [&self.sequence.to_be_bytes()[..], &[kind, 3, 3, high, low]].concat()
    }
}

/// Seals records of any kind.
pub(super) struct Sealer(Direction);

impl Sealer {
    pub(super) fn new(suite: Suite, secret: Vec<u8>) -> Self {
        Self(Direction::new(suite, secret))
    }

    pub(super) fn update(&mut self) {
        self.0.update();
    }

    /// The next record has this number.
    #[allow(dead_code, reason = "only a connection whose handshake was real begins in the middle")]
    pub(super) fn continue_at(&mut self, sequence: u64) {
        self.0.sequence = sequence;
    }

    /// TLS 1.2 has no padding.
    pub(super) fn seal(&mut self, kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
        let direction = &mut self.0;
        let (nonce, suite) = (direction.nonce(), direction.suite);
        let mut body = content.to_vec();
        let (header_kind, explicit) = if is_tls13(suite) {
            body.push(kind);
            body.resize(body.len() + padding, 0);
            (23, &[][..])
        } else if direction.has_explicit_nonce() {
            (kind, &nonce[4..])
        } else {
            (kind, &[][..])
        };
        let [high, low] = ((explicit.len() + body.len() + 16) as u16).to_be_bytes();
        let header = [header_kind, 3, 3, high, low];
        let aad = if is_tls13(suite) {
            header.to_vec()
        } else {
            direction.additional_data(kind, body.len())
        };
        let sealing_nonce = Nonce::assume_unique_for_key(nonce);
        let sealed =
            direction.key.seal_in_place_append_tag(sealing_nonce, Aad::from(aad), &mut body);
        sealed.expect("a short record");
        direction.sequence += 1;
        [&header, explicit, &body].concat()
    }
}

/// Opens records, and panics over what is not right.
pub(super) struct Opener(Direction);

impl Opener {
    pub(super) fn new(suite: Suite, secret: Vec<u8>) -> Self {
        Self(Direction::new(suite, secret))
    }

    pub(super) fn update(&mut self) {
        self.0.update();
    }

    /// The next record has this number.
    #[allow(dead_code, reason = "only a connection whose handshake was real begins in the middle")]
    pub(super) fn continue_at(&mut self, sequence: u64) {
        self.0.sequence = sequence;
    }

    /// Type and content of the first record, and what is behind it.
    pub(super) fn open<'a>(&mut self, input: &'a [u8]) -> (u8, Vec<u8>, &'a [u8]) {
        let direction = &mut self.0;
        let (header, rest) = input.split_at(5);
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let (body, rest) = rest.split_at(len);
        assert_eq!(&header[1..3], [3, 3]);
        let nonce = direction.nonce();
        let mut body = body.to_vec();
        if direction.has_explicit_nonce() {
            assert_eq!(body[..8], nonce[4..]);
            body.drain(..8);
        }
        let aad = if is_tls13(direction.suite) {
            assert_eq!(header[0], 23);
            header.to_vec()
        } else {
            direction.additional_data(header[0], body.len() - 16)
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = direction.key.open_in_place(nonce, Aad::from(aad), &mut body);
        let mut content = opened.expect("our record is authentic").to_vec();
        direction.sequence += 1;
        let kind = match is_tls13(direction.suite) {
            true => content.pop().expect("a type"),
            false => header[0],
        };
        assert!(content.len() <= 1 << 14);
        (kind, content, rest)
    }
}
