"""Plain HTTP, TLS in the server, and kernel TLS side by side: memory of an idle connection, and CPU time per MB.

  pollux vm --module none --kernel 6.12 -- python3 docs/runs/2026-11-30-kernel-tls/measure.py POLLUX

Memory: 500 connections of each server download 100,000 bytes of a long file and are idle then. User memory is the
growth of the server's anonymous pages, kernel memory that of all slab caches (/proc/slabinfo, objects in use times their
size; both ends of a connection), divided by the connections. CPU time: user and system time of the server's processes
while `pollux load` downloads a file of 1.5 MB, with 6 rounds in which the servers take turns; ratios are those within a
round, with Student's interval of their logarithms (95 %).
"""
import json, math, os, socket, ssl, statistics, subprocess, sys, tempfile, time

CONNECTIONS, ROUNDS, REQUESTS, T_95 = 500, 6, 12, 2.571
SERVERS = {"plain": [], "TLS": ["--kernel-tls", "off"], "kernel TLS": ["--kernel-tls", "send"]}
pollux = sys.argv[1]
folder = tempfile.mkdtemp(dir="/dev/shm")
os.chdir(folder)
os.mkdir("site")
content = os.urandom(1_500_000)
with open("site/big", "wb") as file:
    file.write(content)
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


CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE


class Server:
    def __init__(self, name):
        self.is_tls = name != "plain"
        tls = ["--tls-cert", "a.pem", "--tls-key", "a.key"] + SERVERS[name] if self.is_tls else []
        command = [pollux, "serve", "site", "--json", "--listen", "127.0.0.1:0", "--keep-alive", "1h", "--workers", "1",
                   "--idle-eviction", "off"] + tls
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = int(json.loads(self.process.stdout.readline())["addresses"][0].rpartition(":")[2])
        children = open(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read().split()
        self.pids = [self.process.pid, *map(int, children)]

    def cpu_s(self):
        fields = [open(f"/proc/{pid}/stat").read().rpartition(")")[2].split() for pid in self.pids]
        return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")

    def anonymous(self):
        lines = [line for pid in self.pids for line in open(f"/proc/{pid}/status")]
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    def connect(self):
        stream = socket.create_connection(("127.0.0.1", self.port))
        if not self.is_tls:
            return stream
        return CONTEXT.wrap_socket(stream)

    def download(self):
        scheme = "https" if self.is_tls else "http"
        command = [pollux, "load", f"{scheme}://127.0.0.1:{self.port}/big", "--requests", str(REQUESTS), "--connections", "2",
                   "--json", "--timeout", "60s", "--max-lag", "1m"] + (["--insecure"] if self.is_tls else [])
        before = self.cpu_s()
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        report = json.loads(ended.stdout)
        assert report["requests"]["completed"] == REQUESTS, (ended.returncode, ended.stdout[:2000])
        return (self.cpu_s() - before) * 1e3 / (REQUESTS * len(content) / 1e6)

    def stop(self):
        self.process.terminate()
        self.process.wait()


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
for name in SERVERS:
    server = Server(name)
    # The first connections are not counted: they make the server allocate what it allocates once.
    streams = [server.connect() for _ in range(20)]
    for stream in streams:
        get(stream, 1000, 100_999)
    time.sleep(2)
    user, kernel = server.anonymous(), slab()
    more = [server.connect() for _ in range(CONNECTIONS)]
    for stream in more:
        get(stream, 1000, 100_999)
    time.sleep(3)
    suite = more[0].cipher()[0] if server.is_tls else "-"
    print(f"{name} ({suite}): {(server.anonymous() - user) / CONNECTIONS:.0f} bytes of user memory and "
          f"{(slab() - kernel) / CONNECTIONS:.0f} of kernel memory for an idle connection after a download", flush=True)
    for stream in streams + more:
        stream.close()
    server.stop()
    time.sleep(1)

servers = {name: Server(name) for name in SERVERS}
ms = {name: [] for name in SERVERS}
for server in servers.values():
    server.download()
for number in range(ROUNDS):
    for name, server in servers.items():
        ms[name].append(server.download())
print("CPU ms per MB, by round:", json.dumps({name: [round(value, 3) for value in values] for name, values in ms.items()}))
for name, values in ms.items():
    print(f"{name}: {statistics.median(values):.2f} ms of CPU time per MB")
for one, other in (("kernel TLS", "TLS"), ("TLS", "plain"), ("kernel TLS", "plain")):
    logs = [math.log(a / b) for a, b in zip(ms[one], ms[other])]
    mean, reach = statistics.mean(logs), T_95 * statistics.stdev(logs) / math.sqrt(ROUNDS)
    print(f"{one} to {other}: {math.exp(mean):.2f} ({math.exp(mean - reach):.2f} - {math.exp(mean + reach):.2f})")
