"""Messages, extensions and the protection of records for `tls_peer`, by RFC 8446 and RFC 5246 alone: this shares no code
with Pollux or rustls. It needs the PyPI package cryptography."""
import hashlib, hmac, os
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

CCS, ALERT, HANDSHAKE, DATA = 20, 21, 22, 23
CLIENT_HELLO, SERVER_HELLO, NEW_TICKET, CERTIFICATE, SERVER_KEY, CERTIFICATE_REQUEST = 1, 2, 4, 11, 12, 13
SERVER_DONE, CERTIFICATE_VERIFY, CLIENT_KEY, FINISHED, KEY_UPDATE, MESSAGE_HASH = 14, 15, 16, 20, 24, 254
# Extensions.
SNI, GROUPS, POINTS, SIGNATURES, ALPN, EMS, TICKET, PSK = 0, 10, 11, 13, 16, 23, 35, 41
EARLY_DATA, VERSIONS, COOKIE, PSK_MODES, KEY_SHARE, RENEGOTIATION = 42, 43, 44, 45, 51, 0xff01
X25519, P256, P384 = 29, 23, 24
ALERTS = {0: "close_notify", 10: "unexpected_message", 20: "bad_record_mac", 22: "record_overflow",
          40: "handshake_failure", 42: "bad_certificate", 43: "unsupported_certificate", 46: "certificate_unknown",
          47: "illegal_parameter", 48: "unknown_ca", 49: "access_denied", 50: "decode_error", 51: "decrypt_error",
          70: "protocol_version", 71: "insufficient_security", 80: "internal_error", 86: "inappropriate_fallback",
          100: "no_renegotiation", 109: "missing_extension", 110: "unsupported_extension", 112: "unrecognized_name",
          115: "unknown_psk_identity", 116: "certificate_required", 120: "no_application_protocol"}
RETRY_RANDOM = hashlib.sha256(b"HelloRetryRequest").digest()


class Ended(Exception):
    """The server has ended the connection, or says nothing: the name of its alert, "closed", "reset" or "silent"."""


class Wrong(Exception):
    """The server does what no server may do."""


class Suite:
    def __init__(self, code, digest, aead, key_len, signature=None):
        self.code, self.hash, self.aead, self.key_len, self.signature = code, digest, aead, key_len, signature
        self.hash_len = digest().digest_size
        # Of TLS 1.2: AES-GCM has four bytes of IV and sends the other eight.
        self.salt_len = 4 if aead is AESGCM else 12


SUITES = {suite.code: suite for suite in (
    Suite(0x1301, hashlib.sha256, AESGCM, 16), Suite(0x1302, hashlib.sha384, AESGCM, 32),
    Suite(0x1303, hashlib.sha256, ChaCha20Poly1305, 32), Suite(0xc02b, hashlib.sha256, AESGCM, 16, "ecdsa"),
    Suite(0xc02c, hashlib.sha384, AESGCM, 32, "ecdsa"), Suite(0xcca9, hashlib.sha256, ChaCha20Poly1305, 32, "ecdsa"),
    Suite(0xc02f, hashlib.sha256, AESGCM, 16, "rsa"), Suite(0xc030, hashlib.sha384, AESGCM, 32, "rsa"),
    Suite(0xcca8, hashlib.sha256, ChaCha20Poly1305, 32, "rsa"))}
SUITES_13 = [code for code, suite in SUITES.items() if not suite.signature]
SUITES_12 = [code for code, suite in SUITES.items() if suite.signature]


def vector(width, data):
    """A length of `width` bytes, and the data."""
    return len(data).to_bytes(width, "big") + data


def numbers(values, width=2):
    return b"".join(value.to_bytes(width, "big") for value in values)


def message(kind, body):
    return bytes([kind]) + vector(3, body)


def record(kind, content, version=b"\3\3"):
    """A record that is not encrypted."""
    return bytes([kind]) + version + vector(2, content)


def records(kind, content, size, version=b"\3\3"):
    return b"".join(record(kind, content[at:at + size], version) for at in range(0, len(content), size))


class Reader:
    def __init__(self, data):
        self.data = data

    def take(self, count):
        if len(self.data) < count:
            raise Wrong("a message of the server is too short")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, width):
        return int.from_bytes(self.take(width), "big")

    def vector(self, width):
        return self.take(self.number(width))


def extract(digest, salt, key):
    return hmac.new(salt, key, digest).digest()


def expand_label(digest, secret, label, context, length):
    info = length.to_bytes(2, "big") + vector(1, b"tls13 " + label) + vector(1, context)
    out, block, count = b"", b"", 1
    while len(out) < length:
        block = hmac.new(secret, block + info + bytes([count]), digest).digest()
        out, count = out + block, count + 1
    return out[:length]


def prf(digest, secret, label, seed, length):
    """TLS 1.2's (RFC 5246 section 5)."""
    out, chain = b"", label + seed
    while len(out) < length:
        chain = hmac.new(secret, chain, digest).digest()
        out += hmac.new(secret, chain + label + seed, digest).digest()
    return out[:length]


class Key13:
    """The key of one direction of TLS 1.3."""

    def __init__(self, suite, secret):
        self.suite, self.secret, self.sequence = suite, secret, 0
        self.aead = suite.aead(expand_label(suite.hash, secret, b"key", b"", suite.key_len))
        self.iv = expand_label(suite.hash, secret, b"iv", b"", 12)

    def nonce(self):
        self.sequence += 1
        return bytes(a ^ b for a, b in zip(self.iv, (self.sequence - 1).to_bytes(12, "big")))

    def seal(self, kind, content, padding=0, **header):
        return self.seal_inner(content + bytes([kind]) + bytes(padding), **header)

    def seal_inner(self, inner, version=b"\3\3", outer=DATA):
        header = bytes([outer]) + version + (len(inner) + 16).to_bytes(2, "big")
        return header + self.aead.encrypt(self.nonce(), inner, header)

    def open(self, header, body):
        inner = self.aead.decrypt(self.nonce(), body, header).rstrip(b"\0")
        return inner[-1], inner[:-1]

    def next(self):
        return Key13(self.suite, expand_label(self.suite.hash, self.secret, b"traffic upd", b"", self.suite.hash_len))


class Key12:
    """The key of one direction of TLS 1.2."""

    def __init__(self, suite, key, salt):
        self.suite, self.aead, self.salt, self.sequence = suite, suite.aead(key), salt, 0

    def nonce_and_data(self, header, explicit, length):
        number = self.sequence.to_bytes(8, "big")
        self.sequence += 1
        if self.suite.salt_len == 4:
            nonce = self.salt + explicit
        else:
            nonce = bytes(a ^ b for a, b in zip(self.salt, number.rjust(12, b"\0")))
        return nonce, number + header[:3] + length.to_bytes(2, "big")

    def seal(self, kind, content, version=b"\3\3", explicit=None):
        explicit = (explicit or os.urandom(8)) if self.suite.salt_len == 4 else b""
        header = bytes([kind]) + version
        nonce, data = self.nonce_and_data(header, explicit, len(content))
        return header + vector(2, explicit + self.aead.encrypt(nonce, content, data))

    def open(self, header, body):
        explicit, body = (body[:8], body[8:]) if self.suite.salt_len == 4 else (b"", body)
        nonce, data = self.nonce_and_data(header, explicit, len(body) - 16)
        return header[0], self.aead.decrypt(nonce, body, data)


class Hello:
    """A ClientHello. Extensions keep their order; a test may change or remove each part."""

    def __init__(self, versions=(0x0304,), suites=None, groups=(X25519, P256, P384), shares=(X25519,), session=None,
                 **more):
        self.legacy_version, self.random, self.session = b"\3\3", os.urandom(32), session
        if session is None:
            self.session = os.urandom(32) if 0x0304 in versions else b""
        self.suites = suites or (SUITES_13 if 0x0304 in versions else []) + (SUITES_12 if 0x0303 in versions else [])
        self.compression, self.private, self.psk, self.trailer = b"\0", {}, None, b""
        self.extensions = [(SNI, vector(2, b"\0" + vector(2, b"localhost"))), (EMS, b""),
                           (GROUPS, vector(2, numbers(groups))), (POINTS, b"\1\0"),
                           (SIGNATURES, vector(2, numbers([0x0403, 0x0503, 0x0804, 0x0805, 0x0806, 0x0401, 0x0501]))),
                           (ALPN, vector(2, vector(1, b"http/1.1")))]
        if 0x0304 in versions:
            self.extensions += [(VERSIONS, vector(1, numbers(versions))), (PSK_MODES, b"\1\1"),
                                (KEY_SHARE, self.key_shares(shares))]
        for name, value in more.items():
            setattr(self, name, value)

    def key_shares(self, groups):
        return vector(2, b"".join(group.to_bytes(2, "big") + vector(2, self.public(group)) for group in groups))

    def public(self, group):
        if group == X25519:
            key = self.private.setdefault(group, x25519.X25519PrivateKey.generate())
            return key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        curve = ec.SECP256R1() if group == P256 else ec.SECP384R1()
        key = self.private.setdefault(group, ec.generate_private_key(curve))
        return key.public_key().public_bytes(serialization.Encoding.X962,
                                             serialization.PublicFormat.UncompressedPoint)

    def shared(self, group, public):
        key = self.private.get(group)
        if key is None:
            raise Wrong(f"the server has chosen group {group}, which was not offered")
        if group == X25519:
            return key.exchange(x25519.X25519PublicKey.from_public_bytes(public))
        return key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(key.curve, public))

    def set(self, kind, body):
        """Sets an extension where it stands, or adds it; returns the hello."""
        kinds = [other for other, _ in self.extensions]
        if kind in kinds:
            self.extensions[kinds.index(kind)] = (kind, body)
        else:
            self.extensions.append((kind, body))
        return self

    def without(self, *kinds):
        self.extensions = [(kind, body) for kind, body in self.extensions if kind not in kinds]
        return self

    def body(self, extensions=None):
        if extensions is None:
            extensions = b"".join(kind.to_bytes(2, "big") + vector(2, body) for kind, body in self.extensions)
            extensions = vector(2, extensions) if self.extensions else b""
        return (self.legacy_version + self.random + vector(1, self.session) + vector(2, numbers(self.suites))
                + vector(1, self.compression) + extensions + self.trailer)

    def encode(self):
        return message(CLIENT_HELLO, self.body())

    def with_psk(self, ticket, change=lambda identities, binders: (identities, binders), identity=None):
        """Adds the extension pre_shared_key for a ticket; returns the message. `change` may alter the two lists."""
        suite, digest = ticket.suite, ticket.suite.hash
        identity = ticket.identity if identity is None else identity
        identities, binders = vector(2, identity) + ticket.age_add, vector(1, bytes(suite.hash_len))
        encode = lambda one, two: self.without(PSK).set(PSK, vector(2, one) + vector(2, two)).encode()
        early = extract(digest, bytes(suite.hash_len), ticket.secret)
        binder = expand_label(digest, early, b"res binder", digest().digest(), suite.hash_len)
        finished = expand_label(digest, binder, b"finished", b"", suite.hash_len)
        start = encode(identities, binders)[:-len(binders) - 2]
        mac = hmac.new(finished, digest(start).digest(), digest).digest()
        self.psk = ticket
        return encode(*change(identities, vector(1, mac)))


class Ticket:
    def __init__(self, suite, secret, identity, age_add=b"\0\0\0\0"):
        self.suite, self.secret, self.identity, self.age_add = suite, secret, identity, age_add
