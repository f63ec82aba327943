"""What the admin listener costs: CPU time of a server for one scrape of /metrics, for one second of the live page, and
for one request, in turns. Usage: measure.py POLLUX OUT"""
import json, os, re, socket, subprocess, sys, tempfile, time, statistics

program, out = sys.argv[1:]
ROUNDS, SCRAPES, SECONDS = 8, 500, 4
def cpu_us(pid):
    """CPU time of the process, of threads that have ended too, in microseconds (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2) * 1e6

with tempfile.TemporaryDirectory() as site:
    open(f"{site}/1.txt", "w").write("x")
    server = subprocess.Popen([program, "serve", site, "--listen", "127.0.0.1:18111", "--admin", "127.0.0.1:18112",
                               "--json", "--keep-alive", "1h"], stdout=subprocess.PIPE)
    server.stdout.readline()
    def exchange(path, seconds=None):
        with socket.create_connection(("127.0.0.1", 18112)) as s:
            s.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            end = time.time() + (seconds or 30); size = 0
            while time.time() < end:
                s.settimeout(max(0.01, end - time.time()))
                try: data = s.recv(65536)
                except TimeoutError: break
                if not data: break
                size += len(data)
            return size
    page = ""
    with socket.create_connection(("127.0.0.1", 18112)) as s:
        s.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while data := s.recv(65536): page += data.decode()
    stream = re.search(r'EventSource\(["\']([^"\']+)', page)
    stream = "/" + stream.group(1).lstrip("/") if stream else None
    client = socket.create_connection(("127.0.0.1", 18111))
    rows = []
    for _ in range(ROUNDS):
        row = {}
        before = cpu_us(server.pid); time.sleep(SECONDS); row["quiet_us_per_s"] = (cpu_us(server.pid) - before) / SECONDS
        before = cpu_us(server.pid)
        for _ in range(SCRAPES): size = exchange("/metrics")
        row["scrape_us"] = (cpu_us(server.pid) - before) / SCRAPES; row["scrape_bytes"] = size
        if stream:
            before = cpu_us(server.pid); row["page_bytes_per_s"] = exchange(stream, SECONDS) / SECONDS
            row["page_us_per_s"] = (cpu_us(server.pid) - before) / SECONDS
        before = cpu_us(server.pid)
        for _ in range(5000):
            client.sendall(b"GET /1.txt HTTP/1.1\r\nHost: a\r\n\r\n"); client.recv(4096)
        row["request_us"] = (cpu_us(server.pid) - before) / 5000
        rows.append(row); print(row, flush=True)
    server.terminate(); server.wait()
names = rows[0].keys()
summary = {name: statistics.median(row[name] for row in rows) for name in names}
json.dump({"command": "measure.py", "version": subprocess.run([program, "--version"], stdout=subprocess.PIPE).stdout.decode().strip(),
           "rounds": rows, "median": summary}, open(out, "w"), indent=1)
print(summary)
