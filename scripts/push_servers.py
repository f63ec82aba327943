"""Push servers that `push-figures` and `demo-push` start and measure: Pollux, nchan, Pushpin, Centrifugo, and a bare loop
of send(2) (`pollux lab floor --push`) or of io_uring (`--push --uring`). Each server has a separate configuration in a
temporary directory, listens on a free port of 127.0.0.1, and ends with the script."""
import asyncio, base64, ctypes, hashlib, hmac, json, os, resource, shutil, signal, socket, subprocess, threading, time
import urllib.request

PATIENCE_S = 60
TICK = os.sysconf("SC_CLK_TCK")
HARD_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
# Connections for one table of descriptors: a fifth of it is left for everything else. Scripts may set a lower number, to
# try with few subscribers what a low limit makes necessary with many.
PER_TABLE = HARD_LIMIT * 4 // 5
SECRET = "0123456789abcdef0123456789abcdef"
NCHAN = "/usr/lib/nginx/modules/ngx_nchan_module.so"


class Unavailable(Exception):
    """The reason why a server cannot be measured here."""


def token(claims):
    """Returns a JWT with these claims and an expiry, signed with SECRET."""
    encode = lambda part: base64.urlsafe_b64encode(part).rstrip(b"=")
    parts = [{"alg": "HS256", "typ": "JWT"}, {"exp": int(time.time()) + 86400, **claims}]
    text = b".".join(encode(json.dumps(part).encode()) for part in parts)
    return (text + b"." + encode(hmac.new(SECRET.encode(), text, hashlib.sha256).digest())).decode()


def ends_with_us():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def free_port():
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def find(program):
    go = os.path.expanduser(os.path.join("~", "go", "bin", program))
    found = shutil.which(program) or shutil.which(os.path.join("/usr/sbin", program)) or shutil.which(go)
    if not found:
        raise Unavailable(f"{program} is not installed")
    return found


def family(pid):
    """Returns a process and its descendants."""
    found = [pid]
    for parent in found:
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for task in tasks:
            try:
                with open(f"/proc/{parent}/task/{task}/children") as children:
                    found.extend(int(child) for child in children.read().split())
            except OSError:
                pass
    return found


class Server:
    """A server, with the URLs and arguments that a generator needs. Subclasses write a configuration and start
    processes."""

    name = ""
    # Whether a subscriber that reconnects gets the updates that it has missed.
    resumes = True
    # Whether the server can spread its connections over several tables of descriptors.
    spreads = False
    # The fields of each subscriber's request.
    subscribe_arguments = ()
    # The URL at which the subscribers of a holder reach all processes, if each process has a URL of its own for publishers.
    shared_url = None

    def __init__(self, directory, tls, pollux, subscribers, pin=()):
        self.directory = os.path.join(directory, f"{self.name}-{'tls' if tls else 'tcp'}")
        os.makedirs(self.directory, exist_ok=True)
        os.chmod(self.directory, 0o755)
        self.tls, self.pollux, self.subscribers, self.pin = tls, pollux, subscribers, list(pin)
        self.certificate = os.path.join(directory, "certificate.pem")
        self.key = os.path.join(directory, "key.pem")
        self.scheme = "https" if tls else "http"
        self.processes = []
        self.publish_arguments = []
        # How many tables of descriptors the connections need.
        self.tables = -(-subscribers // PER_TABLE)
        if subscribers > PER_TABLE and not self.spreads:
            raise Unavailable(f"{self.name} would need descriptors for {subscribers:,} connections in one process; this "
                              f"machine allows {PER_TABLE:,} connections")
        site = os.path.join(self.directory, "site")
        os.makedirs(site, exist_ok=True)
        with open(os.path.join(site, "plain.txt"), "w") as file:
            file.write("a plain request\n" * 64)
        self.site = site
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def file(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def spawn(self, arguments, stdout=None, **more):
        log = open(os.path.join(self.directory, os.path.basename(arguments[0]) + ".log"), "a")
        if self.pin:
            arguments = ["taskset", "-c", ",".join(map(str, self.pin))] + arguments
        process = subprocess.Popen(arguments, stdout=stdout or log, stderr=log, preexec_fn=ends_with_us, **more)
        self.processes.append(process)
        return process

    def wait_for(self, port):
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                ended = [process for process in self.processes if process.poll() is not None]
                if ended or time.monotonic() > until:
                    raise Unavailable(f"{self.name} does not listen: {self.logs()}")
                time.sleep(0.05)

    def logs(self):
        text = ""
        for name in os.listdir(self.directory):
            if name.endswith(".log"):
                with open(os.path.join(self.directory, name), errors="replace") as file:
                    text += file.read()
        return text.strip()[-800:]

    def pids(self):
        return [pid for process in self.processes if process.poll() is None for pid in family(process.pid)]

    def cpu_s(self):
        """Returns the CPU time so far, user and system."""
        total = 0
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    fields = stat.read().rsplit(")", 1)[1].split()
                total += int(fields[11]) + int(fields[12])
            except OSError:
                pass
        return total / TICK

    def memory_bytes(self):
        """Returns the user memory: anonymous and shared pages of all processes, each page counted once."""
        total = 0
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/smaps_rollup") as rollup:
                    sizes = {line.split()[0]: int(line.split()[1]) for line in rollup if line.endswith("kB\n")}
            except OSError:
                continue
            total += sizes.get("Pss_Anon:", sizes.get("Anonymous:", 0)) + sizes.get("Pss_Shmem:", 0)
        return total * 1024

    def stop(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        for process in reversed(self.processes):
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # The arguments for `pollux load --subscribe` and `pollux idle --subscribe`.

    def trust(self):
        return ["--insecure"] if self.tls else []

    def urls(self):
        """Returns the URL of each process at which subscribers are; updates are published at each."""
        return [self.subscribe_url]

    def load_arguments(self):
        return self.trust() + list(self.subscribe_arguments) + self.publish_arguments

    def nginx_main(self, more="daemon off;"):
        """Returns the part of nginx's configuration before `http`: one worker with room for all connections, or as many as
        need tables of descriptors."""
        user = "user www-data;" if os.geteuid() == 0 else ""
        # The kernel spreads connections over the workers by a hash, so that some get more than others.
        each = self.subscribers if self.tables == 1 else PER_TABLE
        return f"""
{user}
{more}
worker_processes {self.tables};
worker_rlimit_nofile {min(each + 4000, HARD_LIMIT)};
pid {self.directory}/nginx.pid;
error_log {self.directory}/error.log;
events {{ worker_connections {each + 2000}; }}
"""

    def let_go(self):
        """Lets the server notice that subscribers have closed their connections."""

    def version(self):
        return ""


class Pollux(Server):
    name = "pollux"
    spreads = True
    # The least; more are started where their tables of descriptors are too small.
    workers = 1

    def access(self):
        """Returns the arguments that decide who may subscribe and publish."""
        return ["--hub-anonymous", "--hub-publish-anonymous"]

    def start(self):
        port = free_port()
        # Each worker has a table of its own. The kernel spreads connections over listeners by a hash.
        workers = max(self.workers, self.tables)
        arguments = [self.pollux, "serve", self.site, "--listen", f"127.0.0.1:{port}", "--workers", str(workers),
                     "--hub", *self.access()]
        if self.tls:
            arguments += ["--tls-cert", self.certificate, "--tls-key", self.key]
        self.spawn(arguments)
        self.wait_for(port)
        self.subscribe_url = f"{self.scheme}://127.0.0.1:{port}/.well-known/mercure?match=load"
        self.plain_url = f"{self.scheme}://127.0.0.1:{port}/plain.txt"

    def version(self):
        return subprocess.run([self.pollux, "--version"], stdout=subprocess.PIPE, text=True).stdout.strip()


class PolluxTokens(Pollux):
    """The same where each subscriber has a token that expires. All tokens have the same rights: the hub keeps what a token
    permits, and when it expires, but not the token."""

    name = "pollux-tokens"

    def access(self):
        publisher = f"Authorization: Bearer {token({'mercure': {'publish': ['*']}})}"
        subscriber = f"Authorization: Bearer {token({'mercure': {'subscribe': ['load']}})}"
        self.publish_arguments = ["--publish-header", publisher]
        self.subscribe_arguments = ["--header", subscriber]
        return ["--hub-jwt-key", self.file("hub.key", SECRET)]


class BareLoop(Server):
    name = "bare loop"
    resumes = False
    # Each process has a table of its own, at an address of its own.
    spreads = True
    flags = []

    def start(self):
        if self.tls:
            raise Unavailable("the bare loop has no TLS")
        self.addresses = []
        flags = list(self.flags)
        if self.tables > 1:
            # As with the workers of other servers, the subscribers of each holder are spread over all processes. A holder
            # for each process would be an arrangement that no server with one address can have.
            port = free_port()
            self.shared_url = f"http://127.0.0.1:{port}/load"
            flags += ["--shared-port", str(port)]
        for _ in range(self.tables):
            process = self.spawn([self.pollux, "lab", "floor", "--push", *flags], stdout=subprocess.PIPE, text=True)
            line = process.stdout.readline()
            if not line:
                raise Unavailable(f"the bare loop does not start: {self.logs()}")
            self.addresses.append(json.loads(line)["addresses"][0])
        self.subscribe_url = self.urls()[0]
        self.plain_url = None

    def urls(self):
        # The generator would treat a URL without a path as a Mercure hub.
        return [f"http://{address}/load" for address in self.addresses]

    def let_go(self):
        # The loop looks at a subscriber only when it sends to it, and the first send after a close still succeeds.
        for url in 2 * self.urls():
            with urllib.request.urlopen(urllib.request.Request(url, b"data=nothing"), timeout=PATIENCE_S):
                time.sleep(0.1)


class BareRing(BareLoop):
    """The same with io_uring: one system call sends to 256 subscribers."""

    name = "bare ring"
    flags = ["--uring"]


class Nchan(Server):
    name = "nchan"
    spreads = True

    def start(self):
        nginx = find("nginx")
        if not os.path.exists(NCHAN):
            raise Unavailable("libnginx-mod-nchan is not installed")
        port = free_port()
        tls = ""
        if self.tls:
            tls = f"ssl_certificate {self.certificate}; ssl_certificate_key {self.key};"
        configuration = self.file("nginx.conf", self.nginx_main(f"load_module {NCHAN};\ndaemon off;") + f"""
http {{
  access_log off;
  nchan_shared_memory_size 512M;
  client_body_temp_path {self.directory}/body;
  server {{
    listen 127.0.0.1:{port}{" ssl" if self.tls else ""} backlog=4096{" reuseport" if self.tables > 1 else ""};
    {tls}
    keepalive_requests 1000000;
    root {self.site};
    location ~ ^/sub/(.+)$ {{
      nchan_subscriber eventsource;
      nchan_channel_id $1;
      nchan_subscriber_first_message newest;
    }}
    location ~ ^/pub/(.+)$ {{
      nchan_publisher http;
      nchan_channel_id $1;
      nchan_message_buffer_length 10000;
      nchan_message_timeout 1d;
    }}
  }}
}}
""")
        self.spawn([nginx, "-p", self.directory, "-c", configuration])
        self.wait_for(port)
        base = f"{self.scheme}://127.0.0.1:{port}"
        self.subscribe_url = f"{base}/sub/load"
        self.plain_url = f"{base}/plain.txt"
        self.publish_arguments = ["--publish-url", f"{base}/pub/load", "--publish-body", "{data}",
                                  "--publish-header", "Content-Type: text/plain"]

    def version(self):
        shown = subprocess.run(["dpkg-query", "-W", "-f", "nginx ${Version}; ", "nginx"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True).stdout
        return shown + subprocess.run(["dpkg-query", "-W", "-f", "nchan ${Version}", "libnginx-mod-nchan"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


class Pushpin(Server):
    """Pushpin holds a stream open if the response of its origin requests it (GRIP). The origin here is a thread of the
    script, which is not measured."""

    name = "pushpin"
    resumes = False

    def start(self):
        pushpin = find("pushpin")
        if self.tls:
            raise Unavailable("its certificates must be in fixed folders")
        port, control, pull, pub, rep = (free_port() for _ in range(5))
        origin = HoldingOrigin()
        self.file("routes", f"* 127.0.0.1:{origin.port}\n")
        run = os.path.join(self.directory, "run")
        os.makedirs(run, exist_ok=True)
        zurl = find("zurl")
        names = {name: f"ipc://{run}/zurl-{name}" for name in ("in", "in-stream", "out", "req")}
        self.spawn([zurl, "--config=" + self.file("zurl.conf", f"""
[General]
in_spec={names["in"]}
in_stream_spec={names["in-stream"]}
out_spec={names["out"]}
in_req_spec={names["req"]}
ipc_file_mode=660
defpolicy=allow
allow=
deny=
max_open_requests=2000
buffer_size=200000
timeout=600
in_hwm=1000
out_hwm=1000
""")])
        configuration = self.file("pushpin.conf", f"""
[global]
include={{libdir}}/internal.conf
rundir={run}
ipc_prefix=pushpin-
port_offset=0
stats_connection_ttl=120
[runner]
services=condure,pushpin-proxy,pushpin-handler
http_port={port}
local_ports=
logdir={self.directory}
log_level=2
client_buffer_size=8192
client_maxconn={self.subscribers + 1000}
[proxy]
routesfile={self.directory}/routes
zurl_out_specs={names["in"]}
zurl_out_stream_specs={names["in-stream"]}
zurl_in_specs={names["out"]}
debug=false
auto_cross_origin=false
accept_x_forwarded_protocol=false
[handler]
push_in_spec=tcp://127.0.0.1:{pull}
push_in_sub_specs=tcp://127.0.0.1:{pub}
push_in_http_addr=127.0.0.1
push_in_http_port={control}
command_spec=tcp://127.0.0.1:{rep}
message_rate=2500000
message_hwm=25000000
""")
        self.spawn([pushpin, f"--config={configuration}"])
        self.wait_for(port)
        self.wait_for(control)
        self.subscribe_url = f"http://127.0.0.1:{port}/load"
        self.plain_url = None
        item = r'{"items":[{"channel":"load","formats":{"http-stream":{"content":"data: {data}\n\n"}}}]}'
        self.publish_arguments = ["--publish-url", f"http://127.0.0.1:{control}/publish/", "--publish-body", item,
                                  "--publish-header", "Content-Type: application/json"]

    def version(self):
        return subprocess.run(["dpkg-query", "-W", "-f", "pushpin ${Version}", "pushpin"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True).stdout


class HoldingOrigin:
    """Answers every request with the instruction to hold its connection open on the channel `load`."""

    ANSWER = (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nGrip-Hold: stream\r\nGrip-Channel: load\r\n"
              b"Content-Length: 2\r\n\r\n:\n")

    def __init__(self):
        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self.serve(ready)), daemon=True).start()
        ready.wait(PATIENCE_S)

    async def serve(self, ready):
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await server.serve_forever()

    async def handle(self, reader, writer):
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self.ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class Centrifugo(Server):
    name = "centrifugo"
    # A client resumes its one-way streams with a field of the first message, not with Last-Event-ID.
    resumes = False

    def start(self):
        centrifugo = find("centrifugo")
        port = free_port()
        settings = {
            "http_server": {"address": "127.0.0.1", "port": str(port)},
            "log": {"level": "error"},
            "client": {"insecure": True, "allowed_origins": ["*"]},
            "http_api": {"insecure": True},
            "uni_sse": {"enabled": True},
        }
        if self.tls:
            tls = {"enabled": True, "cert_pem": self.certificate, "key_pem": self.key}
            settings["http_server"]["tls"] = tls
        configuration = self.file("config.json", json.dumps(settings))
        self.spawn([centrifugo, "-c", configuration])
        self.wait_for(port)
        base = f"{self.scheme}://127.0.0.1:{port}"
        # {"subs":{"load":{}}}
        connect = "%7B%22subs%22%3A%7B%22load%22%3A%7B%7D%7D%7D"
        self.subscribe_url = f"{base}/connection/uni_sse?cf_connect={connect}"
        self.plain_url = None
        self.publish_arguments = ["--publish-url", f"{base}/api/publish",
                                  "--publish-body", '{"channel":"load","data":{"text":"{data}"}}',
                                  "--publish-header", "Content-Type: application/json"]

    def version(self):
        return subprocess.run([find("centrifugo"), "version"], stdout=subprocess.PIPE, text=True).stdout.strip()


SERVERS = {server.name.replace(" ", "-"): server for server in (Pollux, PolluxTokens, BareLoop, BareRing, Nchan, Pushpin,
                                                                       Centrifugo)}


def make_certificate(directory):
    """Creates a self-signed certificate for all servers."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                    "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout",
                    os.path.join(directory, "key.pem"), "-out", os.path.join(directory, "certificate.pem")],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # nginx's workers run as another user and must read the key, which is used only in this run.
    os.chmod(os.path.join(directory, "key.pem"), 0o644)


def shares(server, count):
    """Divides subscribers among the URLs of a server. Returns each URL with the number of its subscribers."""
    urls = server.urls()
    return [(url, count // len(urls) + (index < count % len(urls))) for index, url in enumerate(urls)]


class Holder:
    """`pollux idle`: holds connections open and discards what they receive; subscribers, unless `kind` has other flags. If
    they are more than one table of descriptors has room for, several threads hold them, each with a table of its own."""

    def __init__(self, server, count, source="127.0.1.0/24", pin=(), kind=("--subscribe",)):
        self.processes = []
        parts = [(server.shared_url, count)] if server.shared_url else shares(server, count)
        for url, share in parts:
            if share:
                self.hold(server, url, share, source, pin, kind)

    def hold(self, server, url, count, source, pin, kind):
        arguments = [server.pollux, "idle", url, "-c", str(count), *kind, "--json", "--source", source, "--timeout",
                     f"{PATIENCE_S}s", *server.trust(), *server.subscribe_arguments]
        if pin:
            arguments = ["taskset", "-c", ",".join(map(str, pin))] + arguments
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=ends_with_us)
        self.processes.append(process)
        line = process.stdout.readline()
        if not line:
            raise Unavailable(f"{server.name}: {process.stderr.read().strip()} {server.logs()}")

    def stop(self):
        """Ends the processes and returns the number of subscribers that were open at the end."""
        for process in self.processes:
            process.send_signal(signal.SIGINT)
        outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in self.processes]
        return sum(json.loads(out.splitlines()[-1])["held"] for out in outputs)


def load(server, subscribers, arguments, pin=(), source="127.0.2.0/24"):
    """Runs `pollux load --subscribe` and returns its document. A server with several URLs gets one generator for each, all
    at the same time and with a subscriber at least; then deliveries are added up, and each time is that of the slowest."""
    started = []
    for url, share in shares(server, subscribers):
        command = [server.pollux, "load", url, "--subscribe", str(max(share, 1)), "--json", "--source", source,
                   "--connect-timeout", f"{PATIENCE_S}s"] + server.load_arguments() + arguments
        if pin:
            command = ["taskset", "-c", ",".join(map(str, pin))] + command
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        preexec_fn=ends_with_us))
    documents = []
    for process in started:
        out, error = process.communicate(timeout=20 * PATIENCE_S)
        if not out:
            raise Unavailable(f"{server.name}: {error.strip()}")
        documents.append(json.loads(out))
    return merge(documents)


def merge(documents):
    """Makes one document of those of generators that ran at the same time."""
    first = documents[0]
    for other in documents[1:]:
        for kind, count in other["deliveries"].items():
            if isinstance(count, int):
                first["deliveries"][kind] += count
        for times in ("latency_us", "fan_out_us", "reconnect_us"):
            for quantile, value in (other.get(times) or {}).items():
                if isinstance(value, (int, float)):
                    first[times][quantile] = max(first[times][quantile], value)
    return first
