#!/usr/bin/env bash
# The acceptance trial: a bare Debian becomes a site of three names over TLS, from Pollux' package.
#
#   trial.sh SUITE [DEB]       trial.sh bookworm | tee bookworm.txt        needs root; FRESH=path of fresh-machine
#
# ROOTS=FOLDER is where the sites are, /srv/www unless given. With ROOTS=/srv the reload that adds a site is refused
# (28 November 2026): the sandbox counts /srv as a directory of the system.
#
# Prints each step with the seconds it took; a check that fails ends the trial with status 1.
set -eu

if [ "${1-}" != inside ]; then
    suite=${1:?suite: bookworm or trixie}
    here=$(cd "$(dirname "$0")" && pwd)
    deb=$(realpath "${2:-$(ls "$here"/pollux_*_amd64.deb | tail -1)}")
    fresh=${FRESH:-$here/../../../scripts/fresh-machine}
    cd "$(dirname "$fresh")/.."
    echo "# $suite, $(basename "$deb"), $(date)"
    nice -n 5 "$fresh" "$suite" bash -c "$(cat "$here/trial.sh")" trial inside "${ROOTS:-/srv/www}" <"$deb"
    exit
fi

# ---- inside the bare machine ----
roots=$2
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
pids=()
upgraded=
finish() {
    status=$?
    trap - EXIT
    for pid in $(jobs -pr) $upgraded; do kill "$pid" 2>/dev/null || true; done
    if [ "$status" != 0 ]; then
        echo "FAILED in step: $step (status $status)"
        for f in /tmp/server.log /tmp/client.log /tmp/apt.log; do [ ! -s $f ] || { echo "--- $f"; tail -20 $f; }; done
    fi
    exit "$status"
}
trap finish EXIT
step=begin
began=$(date +%s.%N)
last=$began
secs() { awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }'; }
begin() { step=$1; last=$(date +%s.%N); echo "== $(date +%T) $1"; }
done_() { echo "   $(secs "$last") s (since the beginning: $(secs "$began") s)"; }
fail() { echo "CHECK FAILED: $*"; exit 1; }
has() { # has TEXT PATTERN
    grep -Eq -- "$2" <<<"$1" || fail "no match for /$2/ in: $1"
    echo "   ok: $2"
}
# a request to NAME over TLS; the certificate is checked against that of CA
ask() { # ask NAME CA PATH [curl options]
    name=$1 ca=$2 path=$3; shift 3
    curl -sS --max-time 20 --resolve "$name:18443:127.0.0.1" --cacert "/etc/pollux/$ca.pem" "$@" "https://$name:18443$path"
}

begin "what is on the machine"
cat >/tmp/pollux.deb
. /etc/os-release; echo "   $PRETTY_NAME"
for p in systemd-analyze man curl openssl python3; do command -v $p >/dev/null && echo "   has $p" || echo "   lacks $p"; done
done_

begin "install curl, openssl, python3"
{ apt-get update && apt-get install -y --no-install-recommends curl openssl python3; } >/tmp/apt.log 2>&1
done_

begin "install the package"
apt-get install -y /tmp/pollux.deb >/tmp/apt.log 2>&1
grep -iE 'warn|error|^E:|^W:|^N:' /tmp/apt.log | sed 's/^/   apt: /' || true
pollux --version | sed 's/^/   /'
has "$(getent passwd pollux)" '^pollux:'
ls -ld /etc/pollux /var/log/pollux /var/www/pollux | sed 's/^/   /'
done_

begin "two certificates, two sites, an application"
certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$1" \
        -addext "subjectAltName=DNS:$1" -keyout "/tmp/$2.key" -out "/etc/pollux/$2.pem" 2>/tmp/openssl.log
    install -o pollux -g pollux -m 600 "/tmp/$2.key" "/etc/pollux/$2.key"
}
certificate one.example one
certificate two.example two
for s in one two three; do
    mkdir -p "$roots/$s"; echo "site $s" >"$roots/$s/index.html"
done
# What systemd's RuntimeDirectory= would create
install -d -o pollux -g pollux /run/pollux
cat >/tmp/app.py <<'PY'
import http.server
count = 0
class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        global count
        count += 1
        body = f"app saw {self.path} for {self.headers['Host']}, answer {count}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "text/plain")
        self.send_header("Cache-Control", "max-age=300" if "cached" in self.path else "no-store")
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 18300), App).serve_forever()
PY
python3 /tmp/app.py 2>/tmp/app.log & app=$!; pids+=($app)
sleep 0.5
kill -0 $app 2>/dev/null || fail "the application does not start (another trial on this host?): $(tail -1 /tmp/app.log)"
cat >/etc/pollux/trial.toml <<'TOML'
listen = ["127.0.0.1:18443"]
redirect-http = "127.0.0.1:18080"
tls-cert = ["/etc/pollux/one.pem", "/etc/pollux/two.pem"]
tls-key = ["/etc/pollux/one.key", "/etc/pollux/two.key"]
admin = "127.0.0.1:19100"
control = "/run/pollux/ctl"
access-log = "/var/log/pollux/access.log"
log-format = "json"

[[site]]
names = ["one.example"]
root = "ROOTS/one"
origin = ["/api=http://127.0.0.1:18300"]
cache = "64M"

[[site]]
names = ["two.example"]
root = "ROOTS/two"
TOML
sed -i "s|\"ROOTS/|\"$roots/|" /etc/pollux/trial.toml
has "$(pollux config check /etc/pollux/trial.toml 2>&1)" 'no faults: 2 sites'
done_

begin "start the server as the user pollux"
setpriv --reuid=pollux --regid=pollux --clear-groups pollux serve --config /etc/pollux/trial.toml >/tmp/server.log 2>&1 &
pids+=($!)
for _ in $(seq 100); do
    [ "$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:19100/readyz)" != 200 ] || break
    sleep 0.1
done
has "$(curl -sS http://127.0.0.1:19100/readyz -o /dev/null -w '%{http_code}')" '^200$'
sed 's/^/   log: /' /tmp/server.log
done_

begin "two names over TLS, redirect, files"
has "$(ask one.example one /)" '^site one$'
has "$(ask two.example two /)" '^site two$'
! ask three.example one / 2>/tmp/refused || fail "three.example is served before it is configured"
echo "   ok: three.example refused: $(cat /tmp/refused)"
has "$(curl -sS -i --resolve one.example:18080:127.0.0.1 http://one.example:18080/x?y=1 | tr -d '\r')" '^[Ll]ocation: https://one.example'
curl -sS -i -H 'Host: one.example' 'http://127.0.0.1:18080/x?y=1' | grep -i '^location' | sed 's/^/   /'
done_

begin "proxied path and cache"
has "$(ask one.example one /api/plain)" '^app saw /api/plain for one.example(:18443)?, answer 1'
a=$(ask one.example one /api/cached -i | tr -d '\r'); b=$(ask one.example one /api/cached -i | tr -d '\r')
has "$a" '^app saw /api/cached .*answer 2$'
has "$b" '^app saw /api/cached .*answer 2$'
grep -i '^cache-status' <<<"$a" | sed 's/^/   first:  /'; grep -i '^cache-status' <<<"$b" | sed 's/^/   second: /'
has "$b" '^[Cc]ache-[Ss]tatus: .*hit'
pollux cache stats --control /run/pollux/ctl 2>&1 | sed 's/^/   cache: /'
has "$(pollux cache list --control /run/pollux/ctl 2>&1)" 'one.example(:18443)?/api/cached'
done_

begin "metrics and the admin page"
m=$(curl -sS http://127.0.0.1:19100/metrics)
has "$m" '^pollux_http_requests_total [1-9]'
has "$m" '^pollux_tls_handshakes_total'
has "$m" '^pollux_cache_requests_total'
page=$(curl -sS http://127.0.0.1:19100/)
has "$page" '<html'
has "$page" '[Cc]onnections'
done_

begin "access log"
sleep 1
has "$(cat /var/log/pollux/access.log)" '"?host"?.*one.example'
has "$(cat /var/log/pollux/access.log)" 'two.example'
has "$(cat /var/log/pollux/access.log)" '/api/cached'
tail -1 /var/log/pollux/access.log | sed 's/^/   /'
done_

begin "keep-alive clients connect: a busy one and an idle one"
cat >/tmp/client.py <<'PY'
# Two TLS connections. The busy one sends a request every 50 ms, the idle one only when told.
# Neither ever connects again: a closed connection ends the program with status 1.
import os, socket, ssl, sys, time
def connect():
    c = ssl.create_default_context(cafile="/etc/pollux/one.pem")
    return c.wrap_socket(socket.create_connection(("127.0.0.1", 18443), 10), server_hostname="one.example")
def ask(s, path="/"):
    s.sendall(f"GET {path} HTTP/1.1\r\nHost: one.example\r\n\r\n".encode())
    got = b""
    while b"\r\n\r\n" not in got:
        d = s.recv(65536)
        if not d: sys.exit(f"connection closed by the server, got {got!r}")
        got += d
    head, _, body = got.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"): sys.exit(f"unexpected: {head!r}")
    n = int([l for l in head.split(b"\r\n") if l.lower().startswith(b"content-length:")][0].split(b":")[1])
    while len(body) < n:
        d = s.recv(65536)
        if not d: sys.exit("connection closed within a body")
        body += d
    return head
busy, idle = connect(), connect()
ports = busy.getsockname()[1], idle.getsockname()[1]
idle.settimeout(20); busy.settimeout(20)
ask(idle)
n = 0
longest = 0
done = 0
def say(t): print(t, flush=True)
say(f"ports {ports[0]} {ports[1]}")
while True:
    t = time.monotonic(); head = ask(busy); longest = max(longest, time.monotonic() - t); n += 1
    if os.path.exists(f"/tmp/ask-idle-{done}"):
        head = ask(idle); done += 1
        fields = [l.decode() for l in head.split(b"\r\n") if l.lower().startswith(b"x-trial")]
        say(f"idle {done} ok, busy {n} ok, longest {longest*1000:.0f} ms, fields {fields}")
    if os.path.exists("/tmp/stop-clients"): say(f"end: {n} requests of one connection"); break
    time.sleep(0.05)
PY
python3 /tmp/client.py >/tmp/client.log 2>&1 & client=$!; pids+=($client)
idle() { # idle N: the idle client asks once more; prints its line
    touch "/tmp/ask-idle-$(($1 - 1))"
    for _ in $(seq 200); do
        ! grep -q "^idle $1 ok" /tmp/client.log || { grep "^idle $1 ok" /tmp/client.log; return; }
        kill -0 $client 2>/dev/null || fail "the client has ended: $(cat /tmp/client.log)"
        sleep 0.1
    done
    fail "the idle client got no answer: $(cat /tmp/client.log)"
}
has "$(idle 1)" 'idle 1 ok'
done_

begin "reload: another keep-alive time, a field, a third name with a certificate of its own"
certificate three.example three
sed -i 's/^listen/keep-alive = "2m"\nlisten/; s|^root = "\(.*/one\)"|root = "\1"\nheader = ["X-Trial: reloaded"]|' /etc/pollux/trial.toml
cat >>/etc/pollux/trial.toml <<'TOML'

[[site]]
names = ["three.example"]
root = "ROOTS/three"
tls-cert = ["three.pem"]
tls-key = ["three.key"]
TOML
sed -i "s|\"ROOTS/|\"$roots/|" /etc/pollux/trial.toml
pollux config check /etc/pollux/trial.toml | sed 's/^/   /'
answer=$(pollux ctl --control /run/pollux/ctl reload 2>&1) || fail "$answer"
sed 's/^/   ctl: /' <<<"$answer"
has "$answer" '^keep-alive: .*-> "2m"'
has "$(ask three.example three /)" '^site three$'
has "$(ask one.example one /)" '^site one$'
has "$(ask two.example two /)" '^site two$'
has "$(idle 2)" 'X-Trial: reloaded'
has "$(ask one.example one /api/cached)" 'answer 2$'   # the cache keeps its contents
done_

begin "a faulty reload changes nothing"
cp /etc/pollux/trial.toml /tmp/good.toml
sed -i 's/^keep-alive/keep-alvie/' /etc/pollux/trial.toml
if answer=$(pollux ctl --control /run/pollux/ctl reload 2>&1); then fail "accepted: $answer"; fi
sed 's/^/   ctl: /' <<<"$answer"
cp /tmp/good.toml /etc/pollux/trial.toml
sed -i 's/^admin/workers = 2\nadmin/' /etc/pollux/trial.toml
if answer=$(pollux ctl --control /run/pollux/ctl reload 2>&1); then fail "accepted: $answer"; fi
sed 's/^/   ctl: /' <<<"$answer"
has "$(idle 3)" 'X-Trial: reloaded'
done_

begin "live upgrade (with workers = 2)"
answer=$(pollux ctl --control /run/pollux/ctl upgrade 2>&1) || fail "$answer"
sed 's/^/   ctl: /' <<<"$answer"
upgraded=$(sed -n 's/^process: [0-9]* -> \([0-9]*\)$/\1/p' <<<"$answer")
old=$(sed -n 's/^process: \([0-9]*\) -> .*/\1/p' <<<"$answer")
[ -n "$upgraded" ] || fail "no process in: $answer"
has "$(readlink /proc/$upgraded/exe)" '^/usr/bin/pollux$'
has "$(awk '/^Uid:/ { print $2 }' /proc/$upgraded/status)" "^$(id -u pollux)\$"
has "$(idle 4)" 'X-Trial: reloaded'
for s in one two three; do has "$(ask $s.example $s /)" "^site $s\$"; done
for _ in $(seq 100); do kill -0 "$old" 2>/dev/null || break; sleep 0.1; done
! kill -0 "$old" 2>/dev/null || fail "the old process $old still runs after 10 s"
echo "   ok: the old process has ended"
has "$(curl -sS http://127.0.0.1:19100/stats.json)" '"taken_over": ?[1-9]'
has "$(curl -sS http://127.0.0.1:19100/metrics)" '^pollux_workers 2'
has "$(idle 5)" 'idle 5 ok'
touch /tmp/stop-clients; wait $client || fail "the client: $(cat /tmp/client.log)"
sed 's/^/   client: /' /tmp/client.log
sed 's/^/   log: /' /tmp/server.log
has "$(pollux ctl --control /run/pollux/ctl reload 2>&1; echo "status $?")" 'status 0'
done_

begin "stop the server"
kill -TERM "$upgraded"
for _ in $(seq 150); do kill -0 "$upgraded" 2>/dev/null || break; sleep 0.1; done
! kill -0 "$upgraded" 2>/dev/null || fail "the server does not stop"
upgraded=
kill $app
tail -15 /tmp/server.log | sed 's/^/   log: /'
done_
echo "SITE DONE in $(secs "$began") s (limit: 600)"
[ "$(awk -v a="$began" -v b="$(date +%s)" 'BEGIN { print (b - a < 600) }')" = 1 ] || fail "more than ten minutes"

begin "examples, units and man page of the package (tools installed by apt)"
n=0
for f in /usr/share/doc/pollux/examples/*.toml /usr/share/doc/pollux/examples/sites/*.toml /etc/pollux/pollux.toml; do
    pollux config check "$f" | sed 's/^/   /'; n=$((n + 1))
done
[ $n -ge 7 ] || fail "only $n examples"
apt-get install -y --no-install-recommends man-db systemd >/tmp/apt.log 2>&1
dpkg-query -W systemd | sed 's/^/   /'
v=$(systemd-analyze verify /usr/lib/systemd/system/pollux.service /usr/lib/systemd/system/pollux.socket 2>&1) && s=0 || s=$?
echo "   systemd-analyze verify: status $s"; [ -z "$v" ] || sed 's/^/   verify: /' <<<"$v"
[ $s = 0 ] || fail "systemd-analyze verify"
page=$(MANWIDTH=100 man pollux-serve 2>/tmp/man.err) || fail "man: $(cat /tmp/man.err)"
has "$page" 'pollux.serve - '
has "$page" '--tls-cert'
[ ! -s /tmp/man.err ] || sed 's/^/   man: /' /tmp/man.err
for m in $(dpkg -L pollux | grep '/man/man.*gz$'); do man --warnings -l "$m" 2>&1 >/dev/null | sed "s|^|   man $m: |"; done
done_

begin "install the package once more, with systemd there but not running; remove it"
apt-get install -y --reinstall /tmp/pollux.deb >/tmp/apt.log 2>&1
ls -l /etc/systemd/system/pollux.service.d 2>&1 | sed 's/^/   /'
v=$(systemd-analyze verify /usr/lib/systemd/system/pollux.service /usr/lib/systemd/system/pollux.socket 2>&1) && s=0 || s=$?
echo "   systemd-analyze verify: status $s"; [ -z "$v" ] || sed 's/^/   verify: /' <<<"$v"
apt-get purge -y pollux >/tmp/apt.log 2>&1
[ -e "$roots/one/index.html" ] && [ ! -e /usr/bin/pollux ] || fail "purge"
ls -ld /etc/pollux /var/log/pollux /var/www/pollux 2>&1 | sed 's/^/   after purge: /'
done_
echo "ALL DONE in $(secs "$began") s"
