"""Conversations of `test-tls` in the handshake. rustls leads it; Pollux passes it one record at a time and goes on with
the connection afterwards. The form is that of `tls_records`: a name, what may happen, and a function of the port."""
from tls_records import *

ALERT_FOR_A_SUITE = "handshake_failure"
FALLBACK_SCSV, RENEGOTIATION_SCSV, GREASE = 0x5600, 0x00ff, 0x2a2a


def completes(peer):
    """Goes on with a handshake after the ClientHello, and requests a file."""
    peer.server_hello()
    if peer.retried:
        peer.retry()
    if peer.version == 0x0304:
        peer.flight().finish()
    else:
        peer.flight12().finish12()
    return serves(peer)


def tries(make=Hello, change=lambda hello: None, size=1 << 14, version=b"\3\1"):
    """A handshake with a hello that `change` alters; it may return the encoded message."""
    def act(port):
        hello = make()
        encoded = change(hello)
        encoded = encoded if isinstance(encoded, bytes) else hello.encode()
        peer = Peer(port)
        peer.hello, peer.transcript = hello, encoded
        peer.send_raw(records(HANDSHAKE, encoded, size, version))
        return completes(peer)
    return act


def extension(kind, body):
    return tries(change=lambda hello: hello.set(kind, body))


def without(*kinds):
    return tries(change=lambda hello: hello.without(*kinds))


def field(**values):
    return tries(lambda: Hello(**values))


def body(change):
    """A handshake whose hello has a body that `change` returns."""
    return tries(change=lambda hello: message(CLIENT_HELLO, change(hello)))


def names(*entries):
    return vector(2, b"".join(bytes([kind]) + vector(2, name) for kind, name in entries))


def protocols(*entries):
    return vector(2, b"".join(vector(1, entry) for entry in entries))


def share(group, public):
    return vector(2, group.to_bytes(2, "big") + vector(2, public))


def p256_share(public):
    return tries(change=lambda hello: hello.set(GROUPS, b"\0\2\0\x17").set(KEY_SHARE, share(P256, public)))


def first(data):
    """Bytes instead of a ClientHello."""
    def act(port):
        peer = Peer(port)
        peer.send_raw(data() if callable(data) else data)
        peer.finish_sending()
        return peer.end()
    return act


def shares_twice(hello):
    one = hello.key_shares([X25519])[2:]
    hello.set(KEY_SHARE, vector(2, one + one))


def last_then_more(hello):
    hello.set(PSK, vector(2, vector(2, b"x" * 32) + bytes(4)) + vector(2, vector(1, bytes(32)))).set(GREASE, b"")


HELLOS_13 = [
    ("a hello of TLS 1.3", "served", tries()),
    *((f"suite {code:#x} alone", "served", field(suites=[code])) for code in SUITES_13),
    *((f"group {group} alone", "served", field(groups=(group,), shares=(group,))) for group in (X25519, P256, P384)),
    ("suites that nobody knows", ALERT_FOR_A_SUITE, field(suites=[GREASE, 0x13ff])),
    ("suites of TLS 1.2 alone", ALERT_FOR_A_SUITE, field(suites=SUITES_12)),
    ("an unknown suite among the others", "served", field(suites=[GREASE, 0x1301])),
    ("no suites", "decode_error illegal_parameter handshake_failure",
     tries(change=lambda hello: setattr(hello, "suites", []))),
    ("half a suite", "decode_error", body(lambda hello: hello.body().replace(vector(2, numbers(SUITES_13)),
                                                                             vector(2, numbers(SUITES_13) + b"x")))),
    *((f"a session of {size} bytes", "served", field(session=b"s" * size)) for size in (0, 1, 31, 32)),
    ("a session of 33 bytes", "decode_error", field(session=b"s" * 33)),
    ("compression beside none", "illegal_parameter", field(compression=b"\1\0")),
    ("compression alone", "illegal_parameter", field(compression=b"\1")),
    ("no compression methods", "decode_error illegal_parameter", field(compression=b"")),
    ("legacy_version 3.4", "served", field(legacy_version=b"\3\4")),
    *((f"legacy_version {major}.{minor}", "protocol_version", field(legacy_version=bytes([major, minor])))
      for major, minor in ((3, 0), (2, 0), (0, 2), (1, 3))),
    ("a random of zeros", "served", field(random=bytes(32))),
    ("bytes behind the extensions", "decode_error", field(trailer=b"\0")),
    ("no extensions", "protocol_version missing_extension handshake_failure",
     tries(change=lambda hello: setattr(hello, "extensions", []))),
    ("extensions longer than the message", "decode_error", body(lambda hello: hello.body(b"\xff\xff" + bytes(9)))),
    ("an extension longer than the extensions", "decode_error", body(lambda hello: hello.body(b"\0\4\0\0\0\1"))),
    ("half of the message", "decode_error", body(lambda hello: hello.body()[:60])),
    ("an empty message", "decode_error", body(lambda hello: b"")),
    ("an extension twice", "decode_error illegal_parameter",
     tries(change=lambda hello: hello.extensions.append((ALPN, protocols(b"http/1.1"))))),
    ("unknown extensions", "served", tries(change=lambda hello: hello.set(GREASE, b"").set(0xfafa, b"x" * 99))),
    ("500 unknown extensions", "served",
     tries(change=lambda hello: hello.extensions.extend((0x4000 + at, b"") for at in range(500)))),
    # Versions.
    ("no versions", "decode_error", extension(VERSIONS, b"\0")),
    ("half a version", "decode_error", extension(VERSIONS, b"\3\3\4\3")),
    ("an unknown version alone", "protocol_version", extension(VERSIONS, vector(1, numbers([0x7f1c, GREASE])))),
    ("an unknown version first", "served", extension(VERSIONS, vector(1, numbers([GREASE, 0x0305, 0x0304])))),
    ("TLS 1.1 alone", "protocol_version", extension(VERSIONS, vector(1, numbers([0x0302])))),
    # Names.
    ("no name", "served", without(SNI)),
    ("a name that the server does not have", "served", extension(SNI, names((0, b"nowhere.example")))),
    ("a name of 253 bytes", "served", extension(SNI, names((0, b".".join([b"a" * 62] * 4) + b".b")))),
    ("no names in the list", "decode_error", extension(SNI, names())),
    ("an empty name", "decode_error illegal_parameter", extension(SNI, names((0, b"")))),
    ("a name with a zero", "decode_error illegal_parameter unrecognized_name", extension(SNI, names((0, b"local\0host")))),
    ("two names", "decode_error illegal_parameter", extension(SNI, names((0, b"localhost"), (0, b"localhost")))),
    ("an address as name", "served decode_error illegal_parameter", extension(SNI, names((0, b"127.0.0.1")))),
    ("a name longer than the list", "decode_error", extension(SNI, b"\0\5\0\0\xff\0\0")),
    ("bytes behind the names", "decode_error", extension(SNI, names((0, b"localhost")) + b"x")),
    # Protocols.
    ("no protocols", "served", without(ALPN)),
    ("no protocols in the list", "decode_error", extension(ALPN, protocols())),
    ("an empty protocol", "decode_error illegal_parameter", extension(ALPN, protocols(b""))),
    ("a protocol longer than the list", "decode_error", extension(ALPN, b"\0\5\xffhttp")),
    ("bytes behind the protocols", "decode_error", extension(ALPN, protocols(b"http/1.1") + b"x")),
    ("unknown protocols", "no_application_protocol", extension(ALPN, protocols(b"h2", b"spdy/3"))),
    ("HTTP/1.1 behind HTTP/2", "served", extension(ALPN, protocols(b"h2", b"http/1.1"))),
    # Groups and shares.
    ("no groups extension", "missing_extension", without(GROUPS)),
    ("no shares extension", "missing_extension", without(KEY_SHARE)),
    ("no groups in the list", "decode_error", extension(GROUPS, b"\0\0")),
    ("half a group", "decode_error", extension(GROUPS, b"\0\3\0\x1d\0")),
    ("unknown groups", "handshake_failure",
     tries(change=lambda hello: hello.set(GROUPS, b"\0\2\x2a\x2a").set(KEY_SHARE, share(GREASE, b"x")))),
    ("no shares: a retry", "served", extension(KEY_SHARE, b"\0\0")),
    ("a share of an unknown group: a retry", "served",
     tries(change=lambda hello: hello.set(GROUPS, b"\0\4\x2a\x2a\0\x1d").set(KEY_SHARE, share(GREASE, b"x")))),
    ("a share twice", "illegal_parameter", tries(change=shares_twice)),
    *((f"a share of X25519 with {size} bytes", "illegal_parameter", extension(KEY_SHARE, share(X25519, b"x" * size)))
      for size in (1, 31, 33)),
    ("an empty share", "decode_error illegal_parameter", extension(KEY_SHARE, share(X25519, b""))),
    ("a share of X25519 that is zero", "illegal_parameter", extension(KEY_SHARE, share(X25519, bytes(32)))),
    ("a share of P-256 that is no point", "illegal_parameter", p256_share(b"\4" + b"x" * 64)),
    ("a share of P-256 that is zero", "illegal_parameter", p256_share(b"\4" + bytes(64))),
    ("a compressed share of P-256", "illegal_parameter", p256_share(b"\2" + b"x" * 32)),
    ("a share longer than the list", "decode_error", extension(KEY_SHARE, b"\0\6\0\x1d\0\x20xx")),
    # Signatures, the cookie, keys agreed on before.
    ("no signature algorithms", "missing_extension", without(SIGNATURES)),
    ("no signature algorithms in the list", "decode_error", extension(SIGNATURES, b"\0\0")),
    ("unknown signature algorithms", "handshake_failure", extension(SIGNATURES, b"\0\2\x2a\x2a")),
    ("SHA-1 alone", "handshake_failure", extension(SIGNATURES, vector(2, numbers([0x0201, 0x0203])))),
    ("half a signature algorithm", "decode_error", extension(SIGNATURES, b"\0\3\4\3\0")),
    ("a cookie that nobody has given", "served illegal_parameter", extension(COOKIE, vector(2, b"x" * 30))),
    ("an empty cookie", "decode_error served", extension(COOKIE, b"\0\0")),
    ("no modes for keys agreed on before", "decode_error", extension(PSK_MODES, b"\0")),
    ("pre_shared_key that is not the last", "illegal_parameter", tries(change=last_then_more)),
    # Sizes and records.
    *((f"a hello with {size} bytes more", "served", extension(GREASE, bytes(size))) for size in (17_000, 40_000, 60_000)),
    ("a hello above 64 KiB", "decode_error illegal_parameter record_overflow handshake_failure",
     tries(change=lambda hello: hello.set(GREASE, bytes(65_531 - len(hello.body()) + len(hello.body(b"")))))),
    ("a hello in records of one byte", "served", tries(size=1)),
    ("a hello in records of 50 bytes", "served", tries(size=50)),
    *((f"version 3.{minor} in the records", "served", tries(version=bytes([3, minor]))) for minor in (0, 2, 3, 4)),
    ("version 5.5 in the records", "protocol_version decode_error", tries(version=b"\5\5")),
    ("two hellos in a record", "unexpected_message", tries(change=lambda hello: hello.encode() + hello.encode())),
    ("a message that is longer than 16 MB", "decode_error illegal_parameter", first(record(HANDSHAKE, b"\1\xff\xff\xff"))),
    ("a record with one byte too many", "record_overflow", tries(change=lambda hello: hello.set(GREASE, bytes(20_000)), size=FULL + 1)),
    ("a record that is longer than any", "record_overflow", first(b"\x16\3\1\xff\xff" + bytes(20_000))),
    ("an empty record first", "decode_error unexpected_message", first(record(HANDSHAKE, b""))),
    ("data first", "unexpected_message", first(record(DATA, b"GET / HTTP/1.1\r\n\r\n"))),
    ("change_cipher_spec first", "unexpected_message", first(record(CCS, b"\1"))),
    ("a heartbeat first", "unexpected_message decode_error", first(record(24, b"\1\x40\0"))),
    ("a type that nobody knows first", "unexpected_message", first(record(99, b"x"))),
    ("an alert first", "closed", first(record(ALERT, b"\2\50"))),
    ("half of an alert first", "decode_error", first(record(ALERT, b"\2"))),
    *((f"a message of type {kind} first", "unexpected_message", first(record(HANDSHAKE, message(kind, b""))))
      for kind in (0, 14, 20)),
    ("a hello of SSL 2", "closed decode_error unexpected_message protocol_version",
     first(b"\x80\x2e\1\0\2\0\x15\0\0\0\x10" + b"\1\0\x80" * 7 + os.urandom(16))),
    ("a hello of SSL 2 with TLS 1.3", "unexpected_message", first(b"\x80\x2e\1\3\4" + bytes(43))),
    ("noise", "closed decode_error unexpected_message protocol_version record_overflow", first(b"\xa5" * 300)),
    ("nothing", "closed", first(b"")),
    ("half of a hello", "closed", first(lambda: record(HANDSHAKE, Hello().encode())[:100])),
]


# After the server's messages of TLS 1.3.


def finish_with(*parts, more=b""):
    """Sends Finished in parts of these sizes."""
    def act(peer):
        whole, at = peer.finished() + more, 0
        for size in [*parts, len(whole) - sum(parts)]:
            peer.send(HANDSHAKE, whole[at:at + size])
            at += size
        peer.use_app_keys()
    return act


def wrong_finished(change):
    return lambda peer: peer.send(HANDSHAKE, message(FINISHED, change(peer.finished()[4:])))


def together(count):
    """Finished, KeyUpdates and a request in one write, then the rest of it after `count` bytes."""
    def act(peer):
        data = peer.seal(HANDSHAKE, peer.finished())
        peer.use_app_keys()
        data += peer.seal(HANDSHAKE, update(1))
        peer.write = peer.write.next()
        data += peer.seal(DATA, b"") + peer.seal(DATA, peer.request(GET), padding=3000)
        peer.send_raw(data[:count])
        peer.send_raw(data[count:])
        if peer.response() != SMALL:
            raise Wrong("other content")
    return act


def then(*acts):
    def act(peer):
        for one in acts:
            one(peer)
    return act


def at_every_place(port):
    """The client's last flight and a request, cut in two at many places."""
    for count in [*range(1, 200, 3), *range(200, 3400, 400)]:
        peer = Peer(port).start(Hello()).server_hello().flight()
        together(count)(peer)
    return "served"


FINISH = finish_with()
AFTER_FLIGHT_13 = [
    ("Finished", "served", FINISH),
    ("Finished byte by byte", "served", finish_with(*[1] * 35)),
    ("Finished with padding", "served", lambda peer: (peer.send(HANDSHAKE, peer.finished(), padding=5000), peer.use_app_keys())),
    ("Finished, KeyUpdate and a request in one write", "served", together(1 << 16)),
    ("change_cipher_spec before Finished", "served", then(raw(record(CCS, b"\1")), FINISH)),
    ("change_cipher_spec twice", "served unexpected_message", then(raw(record(CCS, b"\1") * 2), FINISH)),
    ("change_cipher_spec a hundred times", "unexpected_message", then(raw(record(CCS, b"\1") * 100), FINISH)),
    *((f"change_cipher_spec with {content}", "unexpected_message decode_error illegal_parameter",
       then(raw(record(CCS, content)), FINISH)) for content in (b"", b"\2", b"\1\1")),
    ("an encrypted change_cipher_spec", "unexpected_message", sends(CCS, b"\1")),
    ("change_cipher_spec after Finished", "unexpected_message", then(FINISH, raw(record(CCS, b"\1")))),
    ("a wrong Finished", "decrypt_error", wrong_finished(lambda mac: bytes(len(mac)))),
    ("a short Finished", "decode_error", wrong_finished(lambda mac: mac[:-1])),
    ("a long Finished", "decode_error", wrong_finished(lambda mac: mac + b"\0")),
    ("an empty Finished", "decode_error", wrong_finished(lambda mac: b"")),
    ("a KeyUpdate behind Finished in its record", "unexpected_message", finish_with(more=update())),
    ("a byte behind Finished in its record", "unexpected_message", finish_with(more=b"\x18")),
    ("Finished in the clear", "unexpected_message", lambda peer: peer.send_raw(record(HANDSHAKE, peer.finished()))),
    ("a damaged Finished", "bad_record_mac", lambda peer: peer.send_raw(peer.seal(HANDSHAKE, peer.finished())[:-1] + b"x")),
    ("a KeyUpdate before Finished", "unexpected_message", sends(HANDSHAKE, update())),
    ("data before Finished", "unexpected_message", sends(DATA, b"GET / HTTP/1.1\r\n\r\n")),
    ("no data before Finished", "unexpected_message", sends(DATA, b"")),
    ("data between the parts of Finished", "unexpected_message",
     lambda peer: (peer.send(HANDSHAKE, peer.finished()[:9]), peer.send(DATA, b"x"))),
    *((f"an empty record of type {kind} before Finished, {padding} bytes of padding", "unexpected_message",
       sends(kind, b"", padding=padding)) for kind in (ALERT, HANDSHAKE, DATA) for padding in (0, 1, 3000, FULL)),
    ("a record with one byte too many", "record_overflow", sends(HANDSHAKE, bytes(FULL + 1))),
    ("a record with too much padding", "record_overflow", sends(HANDSHAKE, b"", padding=FULL + 1)),
    ("a record of zeros", "unexpected_message", inner(bytes(100))),
    ("a record of nothing", "unexpected_message", inner(b"")),
    ("content of a type that nobody knows", "unexpected_message", sends(99, b"\1")),
    ("a certificate that nobody has requested", "unexpected_message", sends(HANDSHAKE, message(CERTIFICATE, bytes(4)))),
    ("the end of early data that was refused", "unexpected_message", sends(HANDSHAKE, message(5, b""))),
    ("a fatal alert", "closed", sends(ALERT, b"\2\50")),
    ("close_notify", "close_notify", sends(ALERT, b"\1\0")),
    ("an alert in the clear", "closed unexpected_message bad_record_mac", raw(record(ALERT, b"\2\50"))),
]


# A retry.


def after_retry(change=lambda hello: None, raw_bytes=b""):
    def act(port):
        peer = Peer(port).start(Hello(shares=())).server_hello()
        if not peer.retried:
            return "no retry"
        peer.send_raw(raw_bytes)
        peer.retry(change)
        peer.flight().finish()
        return serves(peer)
    return act


RETRIES = [
    ("a retry", "served", after_retry()),
    ("a retry with change_cipher_spec", "served", after_retry(raw_bytes=record(CCS, b"\1"))),
    ("a retry without the share", "illegal_parameter", after_retry(lambda hello: hello.set(KEY_SHARE, b"\0\0"))),
    ("a retry with the share of another group", "illegal_parameter",
     after_retry(lambda hello: hello.set(KEY_SHARE, hello.key_shares([P384])))),
    ("a retry with another suite", "illegal_parameter", after_retry(lambda hello: setattr(hello, "suites", [0x1303]))),
    ("a retry of Finished", "unexpected_message", after_retry(raw_bytes=record(HANDSHAKE, message(FINISHED, bytes(32))))),
    ("data before the second hello", "unexpected_message", after_retry(raw_bytes=record(DATA, b"x"))),
]


# Sessions of TLS 1.3.


def ticket_of(port, **more):
    peer = connect13(port, Hello(**more))
    serves(peer)
    if len(peer.tickets) != 1:
        raise Wrong(f"{len(peer.tickets)} tickets")
    return peer.tickets[0]


def resumes(change=lambda identities, binders: (identities, binders), prepare=lambda hello: None, full=False,
            identity=lambda identity: identity, times=1, behind=b""):
    """A handshake with a ticket. It must resume the session, or with `full` must not."""
    def act(port):
        ticket = ticket_of(port)
        for _ in range(times):
            hello = Hello()
            prepare(hello)
            encoded = hello.with_psk(ticket, change, identity(ticket.identity))
            peer = Peer(port).start(hello, encoded)
            peer.send_raw(behind)
            peer.server_hello()
            peer.flight().finish()
            if EARLY_DATA in peer.encrypted:
                raise Wrong("the server takes early data")
            if peer.is_resumed == full:
                raise Wrong("the session is resumed" if full else "the session is not resumed")
            serves(peer)
        return "served"
    return act


def flipped(data, at=-1):
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def allows_early_data(hello):
    hello.set(EARLY_DATA, b"")


def early(count, size=200):
    return b"".join(record(DATA, os.urandom(size)) for _ in range(count))


TICKETS_13 = [
    ("a session", "served", resumes()),
    ("a session three times", "served", resumes(times=3)),
    ("a session with another suite of the same hash", "served", resumes(prepare=lambda h: setattr(h, "suites", [0x1303]), full=True)),
    ("a session with suites of another hash", "served", resumes(prepare=lambda h: setattr(h, "suites", [0x1302]), full=True)),
    ("a session for another name", "served",
     resumes(prepare=lambda h: h.set(SNI, names((0, b"nowhere.example"))), full=True)),
    ("a binder with a wrong bit", "decrypt_error illegal_parameter", resumes(lambda i, b: (i, flipped(b)))),
    ("a binder of zeros", "decrypt_error illegal_parameter", resumes(lambda i, b: (i, b[:1] + bytes(32)))),
    ("a binder of 31 bytes", "decode_error decrypt_error illegal_parameter", resumes(lambda i, b: (i, vector(1, b[1:32])))),
    ("an empty binder", "decode_error decrypt_error illegal_parameter", resumes(lambda i, b: (i, b"\0"))),
    ("half of a binder", "decode_error", resumes(lambda i, b: (i, b[:20]))),
    ("no binders", "decode_error illegal_parameter", resumes(lambda i, b: (i, b""))),
    ("more binders than tickets", "illegal_parameter", resumes(lambda i, b: (i, b + b))),
    ("fewer binders than tickets", "illegal_parameter", resumes(lambda i, b: (i + i, b))),
    ("no tickets", "decode_error illegal_parameter", resumes(lambda i, b: (b"", b))),
    ("half of a ticket", "decode_error", resumes(lambda i, b: (i[:20], b))),
    ("an empty ticket", "decode_error illegal_parameter served", resumes(identity=lambda i: b"", full=True)),
    ("a ticket of one byte", "served", resumes(identity=lambda i: b"x", full=True)),
    ("a ticket with a wrong name", "served", resumes(identity=lambda i: flipped(i, 0), full=True)),
    ("a ticket with a wrong nonce", "served", resumes(identity=lambda i: flipped(i, 10), full=True)),
    ("a ticket with a wrong bit", "served", resumes(identity=lambda i: flipped(i, 40), full=True)),
    ("a ticket that is cut", "served", resumes(identity=lambda i: i[:-1], full=True)),
    ("a ticket with a byte more", "served", resumes(identity=lambda i: i + b"x", full=True)),
    ("a ticket of 30,000 bytes", "served", resumes(identity=lambda i: i * (30_000 // len(i)), full=True)),
    ("a ticket without modes", "missing_extension", resumes(prepare=lambda h: h.without(PSK_MODES))),
    ("a ticket without key exchange", "served", resumes(prepare=lambda h: h.set(PSK_MODES, b"\1\0"), full=True)),
    ("early data", "served", resumes(prepare=allows_early_data, behind=early(3))),
    ("early data, a whole record", "served", resumes(prepare=allows_early_data, behind=early(1, FULL))),
    ("early data in several long records", "served", resumes(prepare=allows_early_data, behind=early(5, 3000))),
    ("early data around change_cipher_spec", "served",
     resumes(prepare=allows_early_data, behind=early(1, 8000) + record(CCS, b"\1") + early(1, 8000))),
    ("early data, but none comes", "served", resumes(prepare=allows_early_data)),
    ("early data that was not announced", "bad_record_mac unexpected_message", resumes(behind=early(1))),
    ("early data without end", "bad_record_mac unexpected_message",
     resumes(prepare=allows_early_data, behind=early(20, 16_000))),
    ("early data without a ticket", "served illegal_parameter missing_extension", tries(change=allows_early_data)),
]
