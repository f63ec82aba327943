"""Kernel memory of a connection on which the kernel encrypts, and whether an upgrade keeps such connections.

  pollux vm --module none --kernel 6.12 -- python3 docs/runs/2026-11-28-kernel-tls/measure.py POLLUX

Memory is the sum of all slab caches (/proc/slabinfo, objects in use times their size), before and after each of the
same connections has downloaded 100,000 bytes of a long file, divided by their number.
"""
import json, os, ssl, subprocess, sys, tempfile, time, socket

CONNECTIONS = 500
pollux = sys.argv[1]
folder = tempfile.mkdtemp(dir="/dev/shm")
os.chdir(folder)
os.mkdir("site")
content = os.urandom(1_500_000)
open("site/big", "wb").write(content)
subprocess.run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost "
               "-keyout a.key -out a.pem -addext subjectAltName=IP:127.0.0.1", shell=True, check=True,
               stderr=subprocess.DEVNULL)


def slab():
    total = 0
    for line in open("/proc/slabinfo"):
        fields = line.split()
        if len(fields) > 3 and fields[1].isdigit():
            total += int(fields[1]) * int(fields[3])
    return total


def connect(port):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port)))


def get(stream, first, last):
    stream.sendall(f"GET /big HTTP/1.1\r\nHost: a\r\nRange: bytes={first}-{last}\r\n\r\n".encode())
    got = b""
    while b"\r\n\r\n" not in got:
        got += stream.recv(65536)
    head, _, body = got.partition(b"\r\n\r\n")
    while len(body) < last - first + 1:
        piece = stream.recv(65536)
        assert piece, "the connection ended"
        body += piece
    assert body == content[first : last + 1], "other bytes"


print("kernel", os.uname().release, flush=True)
server = subprocess.Popen([pollux, "serve", "site", "--json", "--listen", "127.0.0.1:0", "--tls-cert", "a.pem",
                           "--tls-key", "a.key", "--kernel-tls", "send", "--control", "ctl", "--keep-alive", "10m"],
                          stdout=subprocess.PIPE, text=True)
port = int(json.loads(server.stdout.readline())["addresses"][0].rpartition(":")[2])
streams = []
for number in range(CONNECTIONS):
    streams.append(connect(port))
    get(streams[-1], 0, 999)
print("suite", streams[0].cipher()[0], flush=True)
time.sleep(3)
before = slab()
for stream in streams:
    get(stream, 0, 999)
time.sleep(3)
again = slab()
for stream in streams:
    get(stream, 1000, 100_999)
time.sleep(3)
after = slab()
print("bytes a connection after another short response:", (again - before) // CONNECTIONS)
print("bytes a connection after a download:", (after - again) // CONNECTIONS, flush=True)

subprocess.run([pollux, "ctl", "--control", "ctl", "upgrade"], check=True)
for stream in streams:
    get(stream, 200_000, 299_999)
print("after an upgrade each of", len(streams), "connections sends the right bytes")
