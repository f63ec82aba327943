"""Conversations of `test-tls` in the handshake of TLS 1.2, and with servers that have more settings."""
from tls_handshakes import *

FAILURE = "handshake_failure"


def hello12(**more):
    return Hello(versions=(0x0303,), **more)


def tries12(change=lambda hello: None, **more):
    return tries(hello12, change, **more)


def extension12(kind, content):
    return tries12(lambda hello: hello.set(kind, content))


def suites12(*codes):
    return tries12(lambda hello: setattr(hello, "suites", list(codes)))


def downgrade(port):
    """RFC 8446 section 4.1.3: a server that could have chosen TLS 1.3 says so in its random."""
    peer = Peer(port).start(hello12()).server_hello()
    if peer.server_random[-8:] != b"DOWNGRD\1":
        return "no sentinel"
    peer.flight12().finish12()
    return serves(peer)


def without_ems(port):
    peer = Peer(port).start(hello12().without(EMS)).server_hello()
    if EMS in peer.extensions:
        return "an extension that was not offered"
    peer.flight12().finish12()
    return serves(peer)


def secure_renegotiation(port):
    peer = Peer(port).start(hello12().set(RENEGOTIATION, b"\0")).server_hello()
    if peer.extensions.get(RENEGOTIATION) != b"\0":
        return "no renegotiation_info"
    peer.flight12().finish12()
    return serves(peer)


HELLOS_12 = [
    ("a hello of TLS 1.2", "served", tries12()),
    ("a hello that says nothing of TLS 1.3", "served", downgrade),
    ("a hello that prefers TLS 1.2", "served", tries(change=lambda hello: (
        setattr(hello, "suites", SUITES_12), hello.set(VERSIONS, vector(1, numbers([0x0303]))).without(KEY_SHARE))[0])),
    ("no extended master secret", "served", without_ems),
    ("renegotiation_info", "served", secure_renegotiation),
    ("renegotiation_info as a suite", "served", suites12(RENEGOTIATION_SCSV, *SUITES_12)),
    ("renegotiation_info that is not empty", "handshake_failure", extension12(RENEGOTIATION, vector(1, b"x" * 12))),
    *((f"group {group} alone", "served", tries(lambda group=group: hello12(groups=(group,)))) for group in (X25519, P256, P384)),
    ("unknown groups", FAILURE, extension12(GROUPS, b"\0\2\x2a\x2a")),
    ("no groups extension", "served handshake_failure", tries12(lambda hello: hello.without(GROUPS))),
    ("no signature algorithms", "served handshake_failure", tries12(lambda hello: hello.without(SIGNATURES))),
    ("SHA-1 alone", FAILURE, extension12(SIGNATURES, vector(2, numbers([0x0201, 0x0203])))),
    ("no point formats", "served", tries12(lambda hello: hello.without(POINTS))),
    ("compressed points alone", "illegal_parameter handshake_failure", extension12(POINTS, b"\1\1")),
    ("compression beside none", "served", tries(lambda: hello12(compression=b"\1\0"))),
    ("compression alone", "illegal_parameter handshake_failure decode_error", tries(lambda: hello12(compression=b"\1"))),
    *((f"legacy_version 3.{minor} alone", "protocol_version", tries(lambda v=minor: hello12(legacy_version=bytes([3, v]))))
      for minor in (0, 1, 2)),
    *((f"legacy_version 3.{minor}, no signature algorithms", "protocol_version",
       tries(lambda v=minor: hello12(legacy_version=bytes([3, v])).without(SIGNATURES))) for minor in (0, 1, 2)),
    *((f"legacy_version 3.{minor}", "served", tries(lambda v=minor: hello12(legacy_version=bytes([3, v])))) for minor in (4, 255)),
    ("the fallback suite", "inappropriate_fallback", suites12(FALLBACK_SCSV, *SUITES_12)),
    ("CBC alone", FAILURE, suites12(0xc009, 0xc013, 0xc023, 0xc027)),
    ("RSA key exchange alone", FAILURE, suites12(0x009c, 0x009d, 0x002f)),
    ("finite-field Diffie-Hellman alone", FAILURE, suites12(0x009e, 0x0033)),
    ("no authentication", FAILURE, suites12(0xc018, 0x0034)),
    ("no encryption", FAILURE, suites12(0x0000, 0x0002, 0xc006)),
    ("CCM alone", FAILURE, suites12(0xc0ac, 0xc0ae)),
    ("unknown protocols", "no_application_protocol", extension12(ALPN, protocols(b"h2"))),
    ("a hello with 40,000 bytes more", "served", extension12(GREASE, bytes(40_000))),
    ("a hello in records of one byte", "served", tries12(size=1)),
    ("an extended master secret with content", "decode_error illegal_parameter", extension12(EMS, b"x")),
    ("a request for a stapled answer", "served", extension12(5, b"\1\0\0\0\0")),
    ("a maximal fragment length", "served", extension12(1, b"\1")),
    ("encrypt-then-MAC, heartbeat", "served", tries12(lambda hello: (hello.set(22, b""), hello.set(15, b"\1"))[0])),
]


def key_message(content):
    return lambda peer: peer.send(HANDSHAKE, message(CLIENT_KEY, content))


def last_flight(peer, size=1 << 14, change=lambda finished: finished, finished_size=1 << 14, behind=b""):
    """ClientKeyExchange, change_cipher_spec, Finished and perhaps more in one write."""
    data = records(HANDSHAKE, peer.client_key(), size) + record(CCS, b"\1")
    peer.change_write()
    finished = change(peer.finished12())
    data += b"".join(peer.seal(HANDSHAKE, finished[at:at + finished_size]) for at in range(0, len(finished), finished_size))
    peer.send_raw(data + (peer.seal(DATA, behind) if behind else b""))


def completes12(**more):
    return lambda peer: (last_flight(peer, **more), peer.server_finished12())


def with_request(peer):
    last_flight(peer, behind=peer.request(GET))
    peer.server_finished12()
    if peer.response() != SMALL:
        raise Wrong("other content")


def changed(*acts):
    """The keys change, and then these."""
    def act(peer):
        peer.send(HANDSHAKE, peer.client_key())
        peer.send(CCS, b"\1")
        peer.change_write()
        for one in acts:
            one(peer)
    return act


def no_change(peer):
    peer.send(HANDSHAKE, peer.client_key())
    peer.send_raw(record(HANDSHAKE, peer.finished12()))


def no_key(peer):
    peer.client_key()
    peer.send(CCS, b"\1")


AFTER_FLIGHT_12 = [
    ("all in one write", "served", completes12()),
    ("ClientKeyExchange byte by byte", "served", completes12(size=1)),
    ("Finished byte by byte", "served", completes12(finished_size=1)),
    ("all with a request in one write", "served", with_request),
    ("change_cipher_spec before ClientKeyExchange", "unexpected_message", no_key),
    ("no change_cipher_spec", "unexpected_message", no_change),
    ("change_cipher_spec twice", "unexpected_message", changed(raw(record(CCS, b"\1")))),
    ("an encrypted change_cipher_spec behind it", "unexpected_message", changed(sends(CCS, b"\1"))),
    *((f"change_cipher_spec with {content}", expected,
       lambda peer, content=content: (peer.send(HANDSHAKE, peer.client_key()), peer.send(CCS, content)))
      for content, expected in ((b"", "unexpected_message decode_error"), (b"\2", "unexpected_message"),
                                (b"\1\1", "unexpected_message"))),
    ("Finished in the clear after the change", "unexpected_message bad_record_mac decode_error",
     changed(lambda peer: peer.send_raw(record(HANDSHAKE, peer.finished12())))),
    ("a wrong Finished", "decrypt_error", changed(sends(HANDSHAKE, message(FINISHED, bytes(12))))),
    ("a short Finished", "decode_error", changed(sends(HANDSHAKE, message(FINISHED, bytes(11))))),
    ("an empty Finished", "decode_error", changed(sends(HANDSHAKE, message(FINISHED, b"")))),
    ("an empty record instead of Finished", "unexpected_message", changed(sends(HANDSHAKE, b""))),
    ("a damaged Finished", "bad_record_mac",
     changed(lambda peer: peer.send_raw(flipped(peer.seal(HANDSHAKE, peer.finished12()))))),
    ("a message behind Finished in its record", "unexpected_message",
     lambda peer: last_flight(peer, change=lambda finished: finished + message(1, b""))),
    ("data instead of Finished", "unexpected_message", changed(sends(DATA, b"GET / HTTP/1.1\r\n\r\n"))),
    ("no data instead of Finished", "unexpected_message", changed(sends(DATA, b""))),
    ("data before the keys", "unexpected_message", sends(DATA, b"GET / HTTP/1.1\r\n\r\n")),
    ("ClientKeyExchange twice", "unexpected_message",
     lambda peer: peer.send_raw(record(HANDSHAKE, peer.client_key()) * 2)),
    ("an empty ClientKeyExchange", "decode_error", key_message(b"")),
    ("an empty key", "decode_error illegal_parameter handshake_failure", key_message(b"\0")),
    ("a key that is cut", "decode_error", key_message(b"\x20" + b"x" * 9)),
    ("a key that is too short", "decode_error illegal_parameter handshake_failure", key_message(vector(1, b"x" * 31))),
    ("a key that is too long", "decode_error illegal_parameter handshake_failure", key_message(vector(1, b"x" * 33))),
    ("a byte behind the key", "decode_error", key_message(vector(1, b"x" * 32) + b"x")),
    ("a key that is zero", "illegal_parameter handshake_failure decode_error", key_message(vector(1, bytes(32)))),
    ("a hello", "unexpected_message", lambda peer: peer.send(HANDSHAKE, hello12().encode())),
    ("a certificate that nobody has requested", "unexpected_message", sends(HANDSHAKE, message(CERTIFICATE, bytes(3)))),
    ("an empty record", "unexpected_message decode_error", sends(HANDSHAKE, b"")),
    ("a fatal alert", "closed", sends(ALERT, b"\2\50")),
    ("close_notify", "close_notify", sends(ALERT, b"\1\0")),
]


def session12(port, prepare=lambda hello: None):
    hello = hello12().set(TICKET, b"")
    prepare(hello)
    peer = Peer(port).start(hello).server_hello()
    peer.flight12().finish12()
    serves(peer)
    return peer.ticket12


def resumes12(full=False, first_prepare=lambda hello: None, prepare=lambda hello: None, change=lambda identity: identity):
    def act(port):
        suite, master, identity = session12(port, first_prepare)
        hello = hello12(session=os.urandom(32)).set(TICKET, change(identity))
        prepare(hello)
        peer = Peer(port).start(hello).server_hello()
        if peer.session_echoed == full:
            raise Wrong("the session is resumed" if full else "the session is not resumed")
        if full:
            peer.flight12().finish12()
        elif peer.suite is not suite:
            raise Wrong("the session has another suite")
        else:
            peer.resume12(master)
        return serves(peer)
    return act


TICKETS_12 = [
    ("a session", "served", resumes12()),
    ("a session without extended master secret", "served",
     resumes12(first_prepare=lambda h: h.without(EMS), prepare=lambda h: h.without(EMS))),
    ("a session that did not have extended master secret", "served", resumes12(full=True, first_prepare=lambda h: h.without(EMS))),
    ("a session that loses extended master secret", "handshake_failure illegal_parameter",
     resumes12(prepare=lambda h: h.without(EMS))),
    ("a session without its suite", "served", resumes12(full=True, first_prepare=lambda h: setattr(h, "suites", h.suites[:1]),
                                                        prepare=lambda h: setattr(h, "suites", h.suites[1:]))),
    ("a session for another name", "served", resumes12(full=True, prepare=lambda h: h.set(SNI, names((0, b"nowhere.example"))))),
    *((f"a ticket with a wrong bit at {at}", "served", resumes12(full=True, change=lambda i, at=at: flipped(i, at)))
      for at in (0, 10, 40, -1)),
    ("a ticket that is cut", "served", resumes12(full=True, change=lambda i: i[:-1])),
    ("a ticket of noise", "served", resumes12(full=True, change=lambda i: os.urandom(5000))),
]


# Servers with more settings.


def versions_of(port, *versions):
    return completes(Peer(port).start(Hello(versions=versions)))


ONLY_13 = [
    ("TLS 1.3", "served", tries()),
    ("TLS 1.2", "protocol_version", tries12()),
    ("TLS 1.2 by supported_versions", "protocol_version", extension(VERSIONS, vector(1, numbers([0x0303])))),
    ("TLS 1.3 and 1.2", "served", lambda port: versions_of(port, 0x0304, 0x0303)),
    ("TLS 1.3 behind 1.2", "served", lambda port: versions_of(port, 0x0303, 0x0304)),
]


def shows(der, *more):
    """The client's messages after the server's (TLS 1.3), with a certificate and these."""
    def act(port):
        peer = Peer(port).start(Hello()).server_hello().flight()
        if peer.certificate_request is None:
            return "no certificate is requested"
        certificate = message(CERTIFICATE, b"\0" + vector(3, vector(3, der()) + b"\0\0"))
        peer.transcript += certificate
        peer.send(HANDSHAKE, certificate)
        for one in more:
            peer.send(HANDSHAKE, one(peer))
        return peer.end()
    return act


def client_certificates(trusted, unknown):
    """Conversations with a server that requires certificates, given a trusted one and another, DER."""
    finished = lambda peer: message(FINISHED, peer.mac(peer.client_secret))
    proof = lambda signature: lambda peer: message(CERTIFICATE_VERIFY, b"\4\3" + vector(2, signature))
    return [
        ("no certificate", "certificate_required", tries()),
        ("no certificate (TLS 1.2)", "certificate_required handshake_failure", tries12()),
        ("Finished without the certificate", "unexpected_message", lambda port: (
            lambda peer: (peer.send(HANDSHAKE, finished(peer)), peer.end())[1])(Peer(port).start(Hello()).server_hello().flight())),
        ("no proof of the key", "unexpected_message", shows(lambda: trusted, finished)),
        ("an empty proof of the key", "decrypt_error decode_error illegal_parameter", shows(lambda: trusted, proof(b""))),
        ("a wrong proof of the key", "decrypt_error", shows(lambda: trusted, proof(b"0\6\2\1\1\2\1\1"))),
        ("a certificate of another authority", "unknown_ca bad_certificate certificate_unknown decrypt_error",
         shows(lambda: unknown, proof(b"x"))),
        ("a certificate that is none", "bad_certificate decode_error", shows(lambda: b"x" * 90, proof(b"x"))),
        ("an empty certificate", "decode_error bad_certificate", shows(lambda: b"", proof(b"x"))),
    ]
