"""A TLS client for `test-tls` of which every byte can be chosen. It checks what the server sends: signatures, Finished,
records, alerts and their order."""
import hmac, socket
from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from tls_messages import *

PATIENCE_S = 5


class Peer:
    """One connection."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received, self.messages, self.data = b"", b"", b""
        self.read = self.write = self.suite = self.version = None
        self.transcript, self.tickets, self.key_updates = b"", [], 0
        self.is_complete = self.retried = self.is_resumed = self.has_ems = False
        self.encrypted, self.certificate_request = {}, None

    def close(self):
        self.socket.close()

    # Records.

    def send_raw(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            # What the server said before can still be read.
            pass

    def finish_sending(self):
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            # The server has ended the connection.
            pass

    def seal(self, kind, content, **more):
        return self.write.seal(kind, content, **more) if self.write else record(kind, content)

    def send(self, kind, content, **more):
        self.send_raw(self.seal(kind, content, **more))

    def fill(self, count):
        while len(self.received) < count:
            try:
                got = self.socket.recv(65536)
            except TimeoutError:
                raise Ended("silent")
            except ConnectionResetError:
                raise Ended("reset")
            if not got:
                raise Ended("closed")
            self.received += got

    def record(self):
        """The next record: type and content, decrypted. An alert ends the connection."""
        self.fill(5)
        header, length = self.received[:5], int.from_bytes(self.received[3:5], "big")
        if header[0] not in (CCS, ALERT, HANDSHAKE, DATA) or length > (1 << 14) + 256 or header[1] != 3:
            raise Wrong(f"no record: {header.hex()}")
        self.fill(5 + length)
        body, self.received = self.received[5:5 + length], self.received[5 + length:]
        kind = header[0]
        if self.read and not (kind == CCS and self.version == 0x0304):
            try:
                kind, body = self.read.open(header, body)
            except InvalidTag:
                raise Wrong("a record of the server cannot be decrypted")
        if kind == ALERT:
            if len(body) != 2:
                raise Wrong(f"an alert of {len(body)} bytes")
            name = ALERTS.get(body[1], str(body[1]))
            fatal = body[1] not in (0, 100)
            if body[0] != 1 + fatal:
                raise Wrong(f"{name} has the level {body[0]}")
            raise Ended(name)
        return kind, body

    def message(self):
        """The next handshake message: type, body, all of it."""
        while len(self.messages) < 4 or len(self.messages) < 4 + int.from_bytes(self.messages[1:4], "big"):
            kind, content = self.record()
            if kind == CCS and content == b"\1":
                if self.version == 0x0303:
                    raise Wrong("a change_cipher_spec where a message must be")
                continue
            if kind != HANDSHAKE:
                raise Wrong(f"a record of type {kind} in the handshake")
            self.messages += content
        length = 4 + int.from_bytes(self.messages[1:4], "big")
        whole, self.messages = self.messages[:length], self.messages[length:]
        return whole[0], whole[4:], whole

    def expect(self, wanted):
        kind, body, whole = self.message()
        if kind != wanted:
            raise Wrong(f"a message of type {kind} where {wanted} must be")
        self.transcript += whole
        return body

    def end(self):
        """Reads until the end of the connection, which it returns in a word."""
        try:
            while True:
                kind, content = self.record()
                self.take(kind, content)
        except Ended as ended:
            how = str(ended)
        if how in ("closed", "reset", "silent"):
            return how
        # Nothing may follow an alert, and the socket must close.
        try:
            self.fill(len(self.received) + 1)
            raise Wrong(f"bytes after {how}")
        except Ended as ended:
            if str(ended) == "silent":
                raise Wrong(f"open after {how}")
        return how

    def take(self, kind, content):
        """Handles a record after the handshake."""
        if kind == DATA:
            self.data += content
        elif kind == HANDSHAKE and self.version == 0x0304:
            self.messages += content
            while self.messages:
                kind, body, _ = self.message()
                if kind == NEW_TICKET:
                    self.take_ticket(body)
                elif kind == KEY_UPDATE and body == b"\0" and not self.messages:
                    self.key_updates += 1
                    self.read = self.read.next()
                else:
                    raise Wrong(f"a message of type {kind} after the handshake")
        else:
            raise Wrong(f"a record of type {kind} after the handshake")

    def take_ticket(self, body):
        reader = Reader(body)
        lifetime, age_add, nonce, identity = reader.number(4), reader.take(4), reader.vector(1), reader.vector(2)
        extensions = reader.vector(2)
        if lifetime > 7 * 86400 or reader.data or extensions:
            raise Wrong("a ticket that lasts too long, has more, or allows early data")
        secret = expand_label(self.suite.hash, self.resumption, b"resumption", nonce, self.suite.hash_len)
        self.tickets.append(Ticket(self.suite, secret, identity, age_add))

    # HTTP.

    def request(self, path, more=""):
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()

    def response(self):
        """The content of the next response; it must have the status 200."""
        while b"\r\n\r\n" not in self.data:
            self.take(*self.record())
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise Wrong(f"the response {head.splitlines()[0]}")
        fields = dict(line.lower().split(b": ", 1) for line in head.splitlines()[1:])
        length = int(fields[b"content-length"])
        while len(self.data) < length:
            self.take(*self.record())
        content, self.data = self.data[:length], self.data[length:]
        return content

    # The handshake.

    def digest(self, data=None):
        return self.suite.hash(self.transcript if data is None else data).digest()

    def start(self, hello, raw=None):
        """Sends a ClientHello, `raw` instead of its encoding."""
        self.hello = hello
        encoded = raw or hello.encode()
        self.transcript += encoded
        self.send_raw(records(HANDSHAKE, encoded, 1 << 14, b"\3\1"))
        return self

    def server_hello(self):
        """Reads a ServerHello or a HelloRetryRequest, after which `retried` is set and `retry_group` says what to send."""
        reader = Reader(self.expect(SERVER_HELLO))
        version, self.server_random, session = reader.number(2), reader.take(32), reader.vector(1)
        self.suite, compression = SUITES[reader.number(2)], reader.number(1)
        self.extensions, rest = {}, Reader(reader.vector(2) if reader.data else b"")
        while rest.data:
            kind = rest.number(2)
            self.extensions[kind] = rest.vector(2)
        if version != 0x0303 or compression or reader.data:
            raise Wrong("a malformed ServerHello")
        self.version = int.from_bytes(self.extensions.get(VERSIONS, b"\3\3"), "big")
        if self.version == 0x0304 and session != self.hello.session:
            raise Wrong("the ServerHello has another legacy_session_id")
        if self.suite.code not in self.hello.suites:
            raise Wrong("the ServerHello has a suite that was not offered")
        self.session_echoed = bool(session) and session == self.hello.session
        if self.server_random == RETRY_RANDOM:
            if self.retried:
                raise Wrong("a second HelloRetryRequest")
            self.retried, self.retry_group = True, int.from_bytes(self.extensions[KEY_SHARE], "big")
            size = len(self.hello.encode())
            first, second = self.transcript[:size], self.transcript[size:]
            self.transcript = message(MESSAGE_HASH, self.digest(first)) + second
        elif self.version == 0x0304:
            self.handshake_keys()
        return self

    def retry(self, change=lambda hello: None):
        """Answers a HelloRetryRequest."""
        self.hello.set(KEY_SHARE, self.hello.key_shares([self.retry_group]))
        change(self.hello)
        return self.start(self.hello).server_hello()

    def handshake_keys(self):
        suite, hello = self.suite, self.hello
        share = Reader(self.extensions[KEY_SHARE])
        shared = hello.shared(share.number(2), share.vector(2))
        self.is_resumed = PSK in self.extensions
        if self.is_resumed and not hello.psk:
            raise Wrong("a session is resumed that was not offered")
        psk = hello.psk.secret if self.is_resumed else bytes(suite.hash_len)
        empty = suite.hash().digest()
        derive = lambda secret, label, digest: expand_label(suite.hash, secret, label, digest, suite.hash_len)
        early = extract(suite.hash, bytes(suite.hash_len), psk)
        handshake = extract(suite.hash, derive(early, b"derived", empty), shared)
        self.master = extract(suite.hash, derive(handshake, b"derived", empty), bytes(suite.hash_len))
        self.client_secret = derive(handshake, b"c hs traffic", self.digest())
        self.server_secret = derive(handshake, b"s hs traffic", self.digest())
        self.write, self.read = Key13(suite, self.client_secret), Key13(suite, self.server_secret)

    def mac(self, secret):
        key = expand_label(self.suite.hash, secret, b"finished", b"", self.suite.hash_len)
        return hmac.new(key, self.digest(), self.suite.hash).digest()

    def flight(self):
        """Reads and checks the server's messages up to Finished (TLS 1.3)."""
        reader = Reader(Reader(self.expect(8)).vector(2))
        while reader.data:
            kind = reader.number(2)
            self.encrypted[kind] = reader.vector(2)
        if not self.is_resumed:
            kind, body, whole = self.message()
            if kind == CERTIFICATE_REQUEST:
                self.transcript += whole
                self.certificate_request = body
                kind, body, whole = self.message()
            if kind != CERTIFICATE:
                raise Wrong(f"a message of type {kind} where the certificate must be")
            self.transcript += whole
            reader = Reader(body)
            reader.vector(1)
            signed = b" " * 64 + b"TLS 1.3, server CertificateVerify\0" + self.digest()
            self.verify(Reader(reader.vector(3)).vector(3), Reader(self.expect(CERTIFICATE_VERIFY)), signed)
        wanted = self.mac(self.server_secret)
        if self.expect(FINISHED) != wanted:
            raise Wrong("the server's Finished")
        self.app_secrets = [expand_label(self.suite.hash, self.master, label, self.digest(), self.suite.hash_len)
                            for label in (b"c ap traffic", b"s ap traffic")]
        self.read = Key13(self.suite, self.app_secrets[1])
        return self

    def verify(self, certificate, reader, signed):
        """Checks the server's signature."""
        scheme, signature = reader.number(2), reader.vector(2)
        key = x509.load_der_x509_certificate(certificate).public_key()
        digest = {4: hashes.SHA256, 5: hashes.SHA384, 6: hashes.SHA512}[scheme >> 8 if scheme >> 8 != 8 else scheme & 255]()
        try:
            if not isinstance(key, rsa.RSAPublicKey):
                key.verify(signature, signed, ec.ECDSA(digest))
            elif scheme >> 8 == 8:
                key.verify(signature, signed, padding.PSS(padding.MGF1(digest), padding.PSS.DIGEST_LENGTH), digest)
            else:
                key.verify(signature, signed, padding.PKCS1v15(), digest)
        except InvalidSignature:
            raise Wrong("the server's signature")

    def finished(self):
        """Our Finished, with the empty certificate before it if the server has requested one."""
        before = b""
        if self.certificate_request is not None:
            before = message(CERTIFICATE, bytes(4))
            self.transcript += before
        own = message(FINISHED, self.mac(self.client_secret))
        self.transcript += own
        return before + own

    def use_app_keys(self):
        self.resumption = expand_label(self.suite.hash, self.master, b"res master", self.digest(), self.suite.hash_len)
        self.write, self.is_complete = Key13(self.suite, self.app_secrets[0]), True
        return self

    def finish(self):
        self.send(HANDSHAKE, self.finished())
        return self.use_app_keys()

    # TLS 1.2.

    def flight12(self):
        """Reads the server's messages up to ServerHelloDone."""
        certificate = Reader(Reader(self.expect(CERTIFICATE)).vector(3)).vector(3)
        body = self.expect(SERVER_KEY)
        reader = Reader(body)
        if reader.number(1) != 3:
            raise Wrong("no named curve")
        self.group, self.server_public = reader.number(2), reader.vector(1)
        parameters = body[:4 + len(self.server_public)]
        self.verify(certificate, reader, self.hello.random + self.server_random + parameters)
        kind, body, whole = self.message()
        self.transcript += whole
        if kind == CERTIFICATE_REQUEST:
            self.certificate_request = body
            kind, body, whole = self.message()
            self.transcript += whole
        if kind != SERVER_DONE or body:
            raise Wrong(f"a message of type {kind} where ServerHelloDone must be")
        self.has_ems = EMS in self.extensions
        return self

    def client_key(self):
        """Our ClientKeyExchange, with the empty certificate before it if one is requested; the keys are ready then."""
        before = message(CERTIFICATE, bytes(3)) if self.certificate_request is not None else b""
        public = self.hello.public(self.group)
        own = before + message(CLIENT_KEY, vector(1, public))
        self.transcript += own
        secret = self.hello.shared(self.group, self.server_public)
        if self.has_ems:
            self.master = prf(self.suite.hash, secret, b"extended master secret", self.digest(), 48)
        else:
            self.master = prf(self.suite.hash, secret, b"master secret", self.hello.random + self.server_random, 48)
        self.prepare12()
        return own

    def prepare12(self):
        suite = self.suite
        block = Reader(prf(suite.hash, self.master, b"key expansion", self.server_random + self.hello.random,
                           2 * (suite.key_len + suite.salt_len)))
        keys = [block.take(suite.key_len) for _ in range(2)]
        self.next_write, self.next_read = (Key12(suite, key, block.take(suite.salt_len)) for key in keys)

    def finished12(self):
        own = message(FINISHED, prf(self.suite.hash, self.master, b"client finished", self.digest(), 12))
        self.transcript += own
        return own

    def change_write(self):
        self.write = self.next_write

    def server_finished12(self):
        """Reads the server's ticket, change_cipher_spec and Finished."""
        kind, content = self.record()
        if kind == HANDSHAKE and content[0] == NEW_TICKET:
            self.transcript += content
            reader = Reader(content[4:])
            reader.number(4)
            self.ticket12 = (self.suite, self.master, reader.vector(2))
            kind, content = self.record()
        if (kind, content) != (CCS, b"\1"):
            raise Wrong("no change_cipher_spec")
        self.read = self.next_read
        wanted = prf(self.suite.hash, self.master, b"server finished", self.digest(), 12)
        if self.expect(FINISHED) != wanted:
            raise Wrong("the server's Finished")
        return self

    def finish12(self):
        self.send(HANDSHAKE, self.client_key())
        self.send(CCS, b"\1")
        self.change_write()
        self.send(HANDSHAKE, self.finished12())
        self.server_finished12()
        self.is_complete = True
        return self

    def resume12(self, master):
        """Completes an abbreviated handshake, after a ServerHello that has echoed the session."""
        self.master, self.is_resumed, self.has_ems = master, True, EMS in self.extensions
        self.prepare12()
        self.server_finished12()
        self.send(CCS, b"\1")
        self.change_write()
        self.send(HANDSHAKE, self.finished12())
        self.is_complete = True
        return self


def connect13(port, hello=None, raw=None):
    peer = Peer(port).start(hello or Hello(), raw).server_hello()
    if peer.version != 0x0304:
        raise Wrong("another version than TLS 1.3")
    if peer.retried:
        peer.retry()
    return peer.flight().finish()


def connect12(port, hello=None):
    peer = Peer(port).start(hello or Hello(versions=(0x0303,))).server_hello()
    if peer.version != 0x0303:
        raise Wrong("another version than TLS 1.2")
    return peer.flight12().finish12()
