"""Conversations of `test-tls` after the handshake, where Pollux has a record layer of its own: what an honest client may
send must be served, everything else must get the alert that RFC 8446 (sections 4.6, 5 and 6) or RFC 5246 demands.

A conversation has a name, what may happen, and a function that sends. "served" means that a request after it gets the
right content; every other word is how the server ends the connection."""
from tls_peer import *

SMALL = b"the small file\n"
GET = "/small.txt"
UNEXPECTED, BAD_MAC, OVERFLOW, DECODE = "unexpected_message", "bad_record_mac", "record_overflow", "decode_error"
# The record layer's own limits (crates/tls).
EMPTY_MAX = UPDATES_MAX = 32
FULL = 1 << 14


def serves(peer):
    peer.send(DATA, peer.request(GET))
    content = peer.response()
    if content != SMALL:
        raise Wrong(f"{len(content)} bytes of something else")
    return "served"


def repeated(count, act):
    def all_of_them(peer):
        for _ in range(count):
            act(peer)
    return all_of_them


def sends(kind, content, **more):
    return lambda peer: peer.send(kind, content, **more)


def raw(data):
    return lambda peer: peer.send_raw(data)


def request_of(size):
    """A request that has exactly so many bytes, in several heads."""
    def make(peer):
        one = peer.request(GET, "X-Padding: " + "x" * 1000 + "\r\n")
        count = size // len(one) - 1
        rest = size - count * len(one)
        last = peer.request(GET, "X-Padding: \r\n")
        return count + 1, one * count + peer.request(GET, f"X-Padding: {'x' * (rest - len(last))}\r\n")
    return make


def pipelined(size, **more):
    def act(peer):
        count, data = request_of(size)(peer)
        assert len(data) == size
        peer.send(DATA, data, **more)
        if any(peer.response() != SMALL for _ in range(count)):
            raise Wrong("other content")
    return act


def damaged(at):
    def act(peer):
        sealed = bytearray(peer.seal(DATA, peer.request(GET)))
        sealed[at] ^= 1
        peer.send_raw(bytes(sealed))
    return act


def replayed(peer):
    sealed = peer.seal(DATA, peer.request(GET))
    peer.send_raw(sealed)
    if peer.response() != SMALL:
        raise Wrong("other content")
    peer.send_raw(sealed)


def lost(peer):
    peer.seal(DATA, peer.request(GET))
    peer.send(DATA, peer.request(GET))


def reordered(peer):
    first, second = peer.seal(DATA, peer.request(GET)), peer.seal(DATA, peer.request(GET))
    peer.send_raw(second + first)


def in_pieces(size, record_size=1 << 14):
    """A request in records of this size, and these in writes of this size."""
    def act(peer):
        request = peer.request(GET)
        data = b"".join(peer.seal(DATA, request[at:at + record_size]) for at in range(0, len(request), record_size))
        for at in range(0, len(data), size):
            peer.send_raw(data[at:at + size])
        if peer.response() != SMALL:
            raise Wrong("other content")
    return act


def half_closed(peer):
    """A request, and then close_notify: it is answered, and nothing behind it (RFC 8446 section 6.1)."""
    peer.send_raw(peer.seal(DATA, peer.request(GET)) + peer.seal(ALERT, b"\1\0") + peer.seal(DATA, peer.request(GET)))
    if peer.response() != SMALL:
        raise Wrong("other content")
    how = peer.end()
    return "bytes after close_notify" if peer.data else how


def cut(count):
    """The stream ends in the middle of a record, which must not be served."""
    def act(peer):
        sealed = peer.seal(DATA, peer.request(GET))
        peer.send_raw(sealed[:count] if count else b"")
        peer.finish_sending()
        how = peer.end()
        return "served a part" if peer.data else how
    return act


def bad_behind_a_request(peer):
    """The request may be answered; the alert must come."""
    good, bad = peer.seal(DATA, peer.request(GET)), bytearray(peer.seal(DATA, peer.request(GET)))
    bad[-1] ^= 1
    peer.send_raw(good + bytes(bad))
    how = peer.end()
    if peer.data and SMALL not in peer.data:
        raise Wrong("other content")
    return how


# TLS 1.3.


def update(request=0):
    return message(KEY_UPDATE, bytes([request]))


def updates(request, count=1, pieces=5, with_data=False):
    def act(peer):
        for _ in range(count):
            for at in range(0, 5, pieces):
                peer.send(HANDSHAKE, update(request)[at:at + pieces])
            peer.write = peer.write.next()
            if with_data:
                serves(peer)
    return act


def update_is_answered(peer):
    """RFC 8446 section 4.6.3: our request is answered before the next data, and once."""
    serves(peer)
    for count in range(1, 4):
        updates(1)(peer)
        serves(peer)
        if peer.key_updates != count:
            return f"{peer.key_updates} KeyUpdates for {count} requests"
    updates(1, 5)(peer)
    serves(peer)
    return "served" if peer.key_updates in range(4, 9) else f"{peer.key_updates} KeyUpdates"


def update_with_old_key(peer):
    peer.send(HANDSHAKE, update())
    peer.send(DATA, peer.request(GET))


def begun_message(kind, content):
    def act(peer):
        peer.send(HANDSHAKE, update()[:3])
        peer.send(kind, content)
    return act


def inner(data, **more):
    return lambda peer: peer.send_raw(peer.write.seal_inner(data, **more))


def longest_garbage(length):
    return lambda peer: peer.send_raw(b"\x17\3\3" + length.to_bytes(2, "big") + b"x" * length)


RECORDS_13 = [
    ("an empty record of data", "served", sends(DATA, b"")),
    (f"{EMPTY_MAX} empty records", "served", repeated(EMPTY_MAX, sends(DATA, b""))),
    (f"{EMPTY_MAX + 1} empty records", UNEXPECTED, repeated(EMPTY_MAX + 1, sends(DATA, b""))),
    ("an empty record with padding", "served", sends(DATA, b"", padding=100)),
    ("an empty record with as much padding as fits", "served", sends(DATA, b"", padding=FULL)),
    ("more padding than fits", OVERFLOW, sends(DATA, b"", padding=FULL + 1)),
    ("as much padding as the ciphertext has room for", OVERFLOW, sends(DATA, b"", padding=FULL + 239)),
    ("a full record of requests", "served", pipelined(FULL)),
    ("a record with one byte too many", OVERFLOW, sends(DATA, b"x" * (FULL + 1))),
    ("padding behind a request", "served", pipelined(FULL - 1000, padding=1000)),
    ("content and padding that are one byte too long", OVERFLOW, sends(DATA, b"x" * FULL, padding=1)),
    ("the longest ciphertext, not authentic", BAD_MAC, longest_garbage(FULL + 256)),
    ("a header with a longer length", OVERFLOW, raw(b"\x17\3\3" + (FULL + 257).to_bytes(2, "big"))),
    ("a header with the longest length", OVERFLOW, raw(b"\x17\3\3\xff\xff")),
    ("a record of zeros", UNEXPECTED, inner(bytes(100))),
    ("a record of nothing", UNEXPECTED, inner(b"")),
    ("records of one byte", "served", in_pieces(1 << 20, 1)),
    ("writes of one byte", "served", in_pieces(1)),
    ("records of 7 bytes in writes of 11", "served", in_pieces(11, 7)),
    ("any version in the header", "served", sends(DATA, b"", version=b"\3\1")),
    ("no version in the header", "served", sends(DATA, b"", version=b"\0\0")),
    *((f"an encrypted record whose outer type is {kind}", UNEXPECTED, inner(b"x\x17", outer=kind))
      for kind in (0, CCS, ALERT, HANDSHAKE, 24, 255)),
    *((f"content of type {kind}", UNEXPECTED, sends(kind, b"\1")) for kind in (1, CCS, 24, 25, 255)),
    *((f"a plaintext record of type {kind}", UNEXPECTED, raw(record(kind, b"\1")))
      for kind in (CCS, HANDSHAKE, 24, 99)),
    ("a plaintext alert", UNEXPECTED, raw(record(ALERT, b"\2\50"))),
    ("a plaintext close_notify", UNEXPECTED, raw(record(ALERT, b"\1\0"))),
    *((f"a record of data with {size} bytes, shorter than a tag", BAD_MAC, raw(record(DATA, bytes(size))))
      for size in (0, 1, 15)),
    *((f"a damaged byte at {at}", BAD_MAC, damaged(at)) for at in (1, 2, 5, 20, -17, -1)),
    ("a record that comes again", BAD_MAC, replayed),
    ("a record that is lost", BAD_MAC, lost),
    ("two records that change places", BAD_MAC, reordered),
    ("a bad record behind a request", BAD_MAC, bad_behind_a_request),
    # Alerts.
    ("an empty alert", UNEXPECTED, sends(ALERT, b"")),
    ("an empty alert with padding", UNEXPECTED, sends(ALERT, b"", padding=10)),
    ("half of an alert", DECODE, sends(ALERT, b"\2")),
    ("an alert that is too long", DECODE, sends(ALERT, b"\2\50\0")),
    ("two alerts in a record", DECODE, sends(ALERT, b"\1\x5a\1\x5a")),
    ("a fatal alert", "closed", sends(ALERT, b"\2\50")),
    ("a fatal alert that calls itself a warning", "closed", sends(ALERT, b"\1\50")),
    ("an alert that is not known", "closed", sends(ALERT, b"\1\xfe")),
    ("user_canceled", "served", sends(ALERT, b"\1\x5a")),
    ("user_canceled without end", UNEXPECTED, repeated(EMPTY_MAX + 1, sends(ALERT, b"\1\x5a"))),
    ("close_notify", "close_notify", sends(ALERT, b"\1\0")),
    ("close_notify that calls itself fatal", "close_notify", sends(ALERT, b"\2\0")),
    ("a request and then close_notify", "close_notify", half_closed),
    *((f"the stream is cut after {count} bytes of a record", "close_notify closed", cut(count))
      for count in (0, 1, 5, 20)),
    # Messages.
    ("an empty message record", UNEXPECTED, sends(HANDSHAKE, b"")),
    ("an empty message record with padding", UNEXPECTED, sends(HANDSHAKE, b"", padding=10)),
    *((f"a message of type {kind}", UNEXPECTED, sends(HANDSHAKE, message(kind, b"\0")))
      for kind in (0, 1, 2, 3, 4, 5, 6, 8, 11, 13, 15, 16, 20, 21, 22, 67, 254, 255)),
    ("a complete ClientHello", UNEXPECTED, lambda peer: peer.send(HANDSHAKE, Hello().encode())),
    ("a KeyUpdate", "served", updates(0)),
    ("a KeyUpdate byte by byte", "served", updates(1, pieces=1)),
    ("a KeyUpdate in two parts", "served", updates(0, pieces=4)),
    ("requested KeyUpdates are answered", "served", update_is_answered),
    ("many KeyUpdates, each with data", "served", updates(1, 2 * UPDATES_MAX, with_data=True)),
    (f"{UPDATES_MAX} KeyUpdates without data", "served", updates(0, UPDATES_MAX)),
    (f"{UPDATES_MAX + 1} KeyUpdates without data", UNEXPECTED, updates(1, UPDATES_MAX + 1)),
    *((f"a KeyUpdate that requests {value}", "illegal_parameter", updates(value)) for value in (2, 127, 255)),
    ("an empty KeyUpdate", DECODE, sends(HANDSHAKE, message(KEY_UPDATE, b""))),
    ("a KeyUpdate that is too long", DECODE, sends(HANDSHAKE, message(KEY_UPDATE, b"\0\0"))),
    ("a KeyUpdate of 16 MiB", DECODE, sends(HANDSHAKE, bytes([KEY_UPDATE]) + b"\xff\xff\xff")),
    ("two KeyUpdates in a record", UNEXPECTED, sends(HANDSHAKE, update() + update())),
    ("a KeyUpdate and the start of another", UNEXPECTED, sends(HANDSHAKE, update() + update()[:1])),
    ("data with the old key after a KeyUpdate", BAD_MAC, update_with_old_key),
    ("data between the parts of a KeyUpdate", UNEXPECTED, begun_message(DATA, b"x")),
    ("no data between the parts of a KeyUpdate", UNEXPECTED, begun_message(DATA, b"")),
    ("close_notify between the parts of a KeyUpdate", UNEXPECTED, begun_message(ALERT, b"\1\0")),
    ("an empty record between the parts of a KeyUpdate", UNEXPECTED, begun_message(HANDSHAKE, b"")),
    ("Finished again", UNEXPECTED, lambda peer: peer.send(HANDSHAKE, message(FINISHED, peer.mac(peer.client_secret)))),
]


# TLS 1.2.


def stalled(length):
    """A record that is refused by its header: the server must not wait for the rest, nor spin."""
    return lambda peer: peer.send_raw(b"\x17\3\3" + length.to_bytes(2, "big") + b"x" * (FULL + 300))


def renegotiation(peer):
    """RFC 5746 section 4.5: refused by a warning. Pollux then ends the connection, by close_notify."""
    peer.send(HANDSHAKE, Hello(versions=(0x0303,)).encode())
    try:
        peer.take(*peer.record())
    except Ended as ended:
        return peer.end() if str(ended) == "no_renegotiation" else str(ended)
    raise Wrong("no alert")


RECORDS_12 = [
    ("an empty record of data", "served", sends(DATA, b"")),
    (f"{EMPTY_MAX} empty records", "served", repeated(EMPTY_MAX, sends(DATA, b""))),
    (f"{EMPTY_MAX + 1} empty records", UNEXPECTED, repeated(EMPTY_MAX + 1, sends(DATA, b""))),
    ("a full record of requests", "served", pipelined(FULL)),
    ("a record with one byte too many", OVERFLOW, sends(DATA, b"x" * (FULL + 1))),
    ("a record with 1,000 bytes too many", OVERFLOW, sends(DATA, b"x" * (FULL + 1000))),
    *((f"{length} bytes of ciphertext are announced", OVERFLOW, stalled(length))
      for length in (FULL + 241, FULL + 256, FULL + 257, FULL + 2048, FULL + 2049, 65535)),
    ("a header with a length that is too long", OVERFLOW, raw(b"\x17\3\3" + (FULL + 2049).to_bytes(2, "big"))),
    ("records of one byte", "served", in_pieces(1 << 20, 1)),
    ("writes of one byte", "served", in_pieces(1)),
    ("records of 7 bytes in writes of 11", "served", in_pieces(11, 7)),
    *((f"a plaintext record of type {kind}", f"{UNEXPECTED} {BAD_MAC}", raw(record(kind, b"\1")))
      for kind in (CCS, ALERT, HANDSHAKE, DATA, 24, 99)),
    *((f"an encrypted record of type {kind}", UNEXPECTED, sends(kind, b"\1")) for kind in (0, CCS, 24, 255)),
    *((f"a record of data with {size} bytes, shorter than a tag", BAD_MAC, raw(record(DATA, bytes(size))))
      for size in (0, 1, 15)),
    *((f"a damaged byte at {at}", BAD_MAC, damaged(at)) for at in (1, 2, 5, 20, -17, -1)),
    ("a record that comes again", BAD_MAC, replayed),
    ("a record that is lost", BAD_MAC, lost),
    ("two records that change places", BAD_MAC, reordered),
    ("a bad record behind a request", BAD_MAC, bad_behind_a_request),
    ("an empty alert", UNEXPECTED, sends(ALERT, b"")),
    ("half of an alert", DECODE, sends(ALERT, b"\2")),
    ("two alerts in a record", DECODE, sends(ALERT, b"\1\x5a\1\x5a")),
    ("a fatal alert", "closed", sends(ALERT, b"\2\50")),
    ("a warning", "served", sends(ALERT, b"\1\x5a")),
    ("warnings without end", UNEXPECTED, repeated(EMPTY_MAX + 1, sends(ALERT, b"\1\x5a"))),
    ("close_notify", "close_notify", sends(ALERT, b"\1\0")),
    ("a request and then close_notify", "close_notify", half_closed),
    *((f"the stream is cut after {count} bytes of a record", "close_notify closed", cut(count))
      for count in (0, 1, 5, 20)),
    ("renegotiation", "close_notify", renegotiation),
    ("an empty message record", UNEXPECTED, sends(HANDSHAKE, b"")),
    *((f"a message of type {kind}", UNEXPECTED, sends(HANDSHAKE, message(kind, b"\0")))
      for kind in (0, 2, 4, 11, 13, 16, 20, 24, 255)),
]
