"""Clients of `test-tls`: each fetches a short and a long file, makes several requests on one connection and resumes a
session, and reports in JSON what it has seen."""
import hashlib, json, os, re, shutil, subprocess, time

CLIENT_S = 60

PYTHON = """
import hashlib, http.client, json, socket, ssl, sys
port, ca, version = int(sys.argv[1]), sys.argv[2], sys.argv[3]
context = ssl.create_default_context(cafile=ca)
context.minimum_version = context.maximum_version = ssl.TLSVersion['TLSv1_' + version[-1]]
context.set_alpn_protocols(['http/1.1'])
def connect(session=None):
    return context.wrap_socket(socket.create_connection(('127.0.0.1', port), 30), server_hostname='localhost',
                               session=session)
def get(tls, path):
    tls.sendall(f'GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n'.encode())
    response = http.client.HTTPResponse(tls)
    response.begin()
    return response.read()
tls = connect()
small, big = get(tls, '/small.txt'), get(tls, '/big.bin')
same = all(get(tls, '/small.txt') == small for _ in range(3))
again = connect(tls.session)
same = same and get(again, '/small.txt') == small and tls.selected_alpn_protocol() == 'http/1.1'
# The server answers close_notify with its own.
tls.settimeout(10)
tls.unwrap()
print(json.dumps({'small': small.decode(), 'big': hashlib.sha256(big).hexdigest(), 'one_connection': same,
                  'resumed': again.session_reused}))
"""

REQUESTS = """
import hashlib, json, requests, sys
port, ca, version = sys.argv[1:]
with requests.Session() as session:
    get = lambda path: session.get(f'https://localhost:{port}{path}', verify=ca, timeout=30).content
    small, big = get('/small.txt'), get('/big.bin')
    same = all(get('/small.txt') == small for _ in range(3))
    pool, = [session.adapters['https://'].poolmanager.pools[key] for key in session.adapters['https://'].poolmanager.pools.keys()]
    print(json.dumps({'small': small.decode(), 'big': hashlib.sha256(big).hexdigest(),
                      'one_connection': same and pool.num_connections == 1}))
"""

NODE = """
const https = require('https'), fs = require('fs'), crypto = require('crypto')
const [port, ca, version] = process.argv.slice(1)
const agent = new https.Agent({ keepAlive: true, maxSockets: 1, ca: fs.readFileSync(ca),
  minVersion: 'TLSv' + version, maxVersion: 'TLSv' + version })
const get = (path) => new Promise((done, fail) => {
  const request = https.get({ host: 'localhost', family: 4, port, path, agent }, (response) => {
    const parts = [], socket = response.socket, resumed = socket.isSessionReused()
    response.on('data', (part) => parts.push(part))
    response.on('end', () => done({ content: Buffer.concat(parts), reused: request.reusedSocket, resumed, socket }))
  })
  request.on('error', fail)
})
const rest = () => new Promise((done) => setTimeout(done, 50))
;(async () => {
  const small = await get('/small.txt'), found = [await get('/big.bin')]
  for (let count = 0; count < 3; count++) { await rest(); found.push(await get('/small.txt')) }
  small.socket.destroy()
  await rest()
  const last = await get('/small.txt')
  console.log(JSON.stringify({ small: small.content.toString(), big: crypto.createHash('sha256').update(found[0].content)
    .digest('hex'), one_connection: found.every((one) => one.reused), resumed: last.resumed }))
  process.exit(0)
})()
"""

GO = """
package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	version := uint16(tls.VersionTLS13)
	if os.Args[3] == "1.2" {
		version = tls.VersionTLS12
	}
	pem, err := os.ReadFile(os.Args[2])
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: version, MaxVersion: version,
		ClientSessionCache: tls.NewLRUClientSessionCache(8)}}
	client := &http.Client{Transport: transport}
	reused, resumed := 0, false
	get := func(path string) []byte {
		request, err := http.NewRequest("GET", "https://localhost:"+os.Args[1]+path, nil)
		check(err)
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			if info.Reused {
				reused++
			}
		}}
		response, err := client.Do(request.WithContext(httptrace.WithClientTrace(request.Context(), trace)))
		check(err)
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		check(err)
		resumed = response.TLS.DidResume
		return content
	}
	small, big := get("/small.txt"), sha256.Sum256(get("/big.bin"))
	for count := 0; count < 3; count++ {
		get("/small.txt")
	}
	transport.CloseIdleConnections()
	get("/small.txt")
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"small": string(small), "big": fmt.Sprintf("%x", big),
		"one_connection": reused == 4, "resumed": resumed}))
}
"""

JAVA = """
import java.io.InputStream;
import java.nio.file.*;
import java.security.*;
import java.security.cert.CertificateFactory;
import java.util.HexFormat;
import javax.net.ssl.*;

public class Client {
    static byte[] get(SSLSocket socket, String path) throws Exception {
        socket.getOutputStream().write(("GET " + path + " HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n").getBytes());
        InputStream in = socket.getInputStream();
        StringBuilder head = new StringBuilder();
        while (head.indexOf("\\r\\n\\r\\n") < 0) {
            int next = in.read();
            if (next < 0) throw new Exception("the connection has ended");
            head.append((char) next);
        }
        for (String line : head.toString().toLowerCase().split("\\r\\n"))
            if (line.startsWith("content-length: ")) return in.readNBytes(Integer.parseInt(line.substring(16)));
        throw new Exception("no length");
    }

    public static void main(String[] arguments) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null);
        try (InputStream file = Files.newInputStream(Path.of(arguments[1]))) {
            trusted.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        long[] created = new long[2];
        String small = null, big = null;
        boolean same = true;
        for (int at = 0; at < 2; at++) {
            SSLSocket socket = (SSLSocket) context.getSocketFactory().createSocket("localhost", Integer.parseInt(arguments[0]));
            socket.setEnabledProtocols(new String[] {"TLSv" + arguments[2]});
            small = new String(get(socket, "/small.txt"));
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(get(socket, "/big.bin"));
            big = HexFormat.of().formatHex(digest);
            for (int count = 0; count < 3; count++) same &= small.equals(new String(get(socket, "/small.txt")));
            // A session that is resumed keeps the time of its creation.
            created[at] = socket.getSession().getCreationTime();
            socket.close();
            Thread.sleep(100);
        }
        System.out.println("{\\"small\\": \\"" + small.replace("\\n", "\\\\n") + "\\", \\"big\\": \\"" + big
            + "\\", \\"one_connection\\": " + same + ", \\"resumed\\": " + (created[0] == created[1]) + "}");
    }
}
"""

PAGE = """<!doctype html><meta charset="utf-8"><title>TLS</title><body></body><script>
const hex = (bytes) => [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, '0')).join('')
const get = async (path) => (await fetch(path, { cache: 'no-store' })).arrayBuffer()
;(async () => {
  const small = new TextDecoder().decode(await get('/small.txt'))
  const big = hex(await crypto.subtle.digest('SHA-256', await get('/big.bin')))
  for (let count = 0; count < 3; count++) await get('/small.txt')
  const entries = performance.getEntriesByType('resource').filter((entry) => entry.name.endsWith('/small.txt'))
  const reused = entries.slice(1).every((entry) => entry.connectStart === entry.connectEnd)
  document.body.textContent = JSON.stringify({ small, big, one_connection: reused && entries.length > 3 })
})()
</script>
"""


def run(arguments, **more):
    done = subprocess.run(arguments, capture_output=True, timeout=CLIENT_S, **more)
    if done.returncode:
        raise RuntimeError((done.stdout[-300:] + done.stderr[-500:]).decode(errors="replace"))
    return done


def script(*command):
    return lambda port, ca, version, directory: json.loads(run([*command, str(port), ca, version]).stdout)


def curl(port, ca, version, directory):
    url = f"https://localhost:{port}"
    base = ["curl", "--silent", "--show-error", "--fail", "--http1.1", "--resolve", f"localhost:{port}:127.0.0.1",
            "--cacert", ca, f"--tlsv{version}", "--tls-max", version]
    at = lambda name: os.path.join(directory, name)
    paths = ["/small.txt", "/big.bin", "/small.txt", "/small.txt"]
    files = [word for number in range(4) for word in ("--output", at(f"curl-{number}"))]
    done = run([*base, "--write-out", "%{num_connects} ", *files, *(url + path for path in paths)])
    content = [open(at(f"curl-{number}"), "rb").read() for number in range(4)]
    again = run([*base, "--verbose", "--header", "Connection: close", url + "/small.txt", url + "/small.txt"])
    return {"small": content[0].decode(), "big": hashlib.sha256(content[1]).hexdigest(),
            "one_connection": done.stdout.split() == [b"1", b"0", b"0", b"0"] and content[2] == content[0],
            # With TLS 1.2 curl does not take tickets, and Pollux stores no sessions.
            "resumed": version == "1.2" or bool(re.search(rb"(?i)re-?us\w+ session", again.stderr))}


def s_client(port, ca, arguments, pieces, pause=0.0):
    process = subprocess.Popen(["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-servername", "localhost", "-CAfile",
                                ca, "-verify_return_error", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
    try:
        for piece in pieces:
            process.stdin.write(piece)
            process.stdin.flush()
            time.sleep(pause)
        if pause:
            process.stdin.close()
            process.stdin = None
        return process.communicate(timeout=CLIENT_S)[0]
    finally:
        process.kill()
        process.wait()


def request(path, close=True):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{'Connection: close' + chr(13) + chr(10) if close else ''}\r\n".encode()


def openssl(port, ca, version, directory):
    flag = "-tls1_" + version[-1]
    session = os.path.join(directory, f"openssl-session-{version}")
    fetch = lambda path, *more: s_client(port, ca, [flag, "-quiet", "-ign_eof", *more], [request(path)])
    content = lambda output: output.partition(b"\r\n\r\n")[2]
    first = s_client(port, ca, [flag, "-ign_eof", "-sess_out", session], [request("/small.txt")])
    again = s_client(port, ca, [flag, "-ign_eof", "-sess_in", session], [request("/small.txt")])
    commands = [b"K\n", b"k\n"] if version == "1.3" else [b""]
    pieces = [request("/small.txt", False)]
    for command in commands:
        pieces += [command, request("/small.txt", False)]
    several = s_client(port, ca, [flag], pieces, 0.4)
    wanted = len(commands) if version == "1.3" else 0
    return {"small": content(fetch("/small.txt")).decode(errors="replace"),
            "big": hashlib.sha256(content(fetch("/big.bin"))).hexdigest(),
            "one_connection": (several.count(b"HTTP/1.1 200 OK") == len(commands) + 1
                               and several.count(b"KEYUPDATE") == wanted),
            "resumed": b"Reused, TLSv" in again and b"New, TLSv" in first}


def openssl_choices(port, rsa_port, ca):
    """Each suite and group by itself: yields a name, and whether the handshake has it. With TLS 1.2 a client must offer
    the group of an ECDSA certificate, too."""
    for group in ("X25519", "P-256", "P-384"):
        for version in ("2", "3"):
            output = s_client(rsa_port, ca, [f"-tls1_{version}", "-ign_eof", "-groups", group], [request("/small.txt")])
            found = re.search(rb"Server Temp Key: (\S+?),? ", output + b" ")
            yield f"group {group} in TLS 1.{version}", b"200 OK" in output and bool(found)
    for suite in ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"):
        output = s_client(port, ca, ["-tls1_3", "-ign_eof", "-ciphersuites", suite], [request("/small.txt")])
        yield f"suite {suite}", b"200 OK" in output and f"Cipher is {suite}".encode() in output
    for suite in ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"):
        name = f"ECDHE-ECDSA-{suite}"
        output = s_client(port, ca, ["-tls1_2", "-ign_eof", "-cipher", name], [request("/small.txt")])
        yield f"suite {name}", b"200 OK" in output and f"Cipher is {name}".encode() in output


def go(program, directory):
    source, built = os.path.join(directory, "client.go"), os.path.join(directory, "go-client")
    with open(source, "w") as file:
        file.write(GO)
    run([program, "build", "-o", built, source], env={**os.environ, "GO111MODULE": "off", "GOFLAGS": ""})
    return script(built)


def java(directory):
    with open(os.path.join(directory, "Client.java"), "w") as file:
        file.write(JAVA)
    run(["javac", "-d", directory, os.path.join(directory, "Client.java")])
    return script("java", "-XX:TieredStopAtLevel=1", "-cp", directory, "Client")


def chromium(program):
    def client(port, ca, version, directory):
        done = run([program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                    "--ignore-certificate-errors", "--no-first-run", "--virtual-time-budget=20000", "--dump-dom",
                    f"--user-data-dir={os.path.join(directory, f'chromium-{port}')}",
                    f"--ssl-version-{'max' if version == '1.2' else 'min'}=tls{version}",
                    f"https://localhost:{port}/page.html"])
        found = re.search(rb"<body>(\{.*?\})", done.stdout, re.S)
        if not found:
            raise RuntimeError(f"the page has no result: {done.stdout[-500:]}")
        return json.loads(found.group(1))
    return client


def clients(python, directory):
    """The clients that can be had here: name and function; and what is left out, with its reason."""
    found, left_out = [("curl", curl), ("openssl", openssl), ("Python ssl", script(python, "-c", PYTHON)),
                       ("requests", script(python, "-c", REQUESTS))], []
    node = shutil.which("node")
    program = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    for name, is_there, make in (("Node", node, lambda: script(node, "-e", NODE, "--")), ("Go", program, lambda: go(program, directory)),
                                 ("Java", shutil.which("javac"), lambda: java(directory)),
                                 ("Chromium", browser, lambda: chromium(browser))):
        if is_there:
            found.append((name, make()))
        else:
            left_out.append(f"{name}: it is not installed")
    return found, left_out


def fault(report, small, digest):
    """What is wrong with a client's report, or None."""
    if report.get("small") != small:
        return f"the short file is {report.get('small')!r}"
    if report.get("big") != digest:
        return "the long file has other content"
    if report.get("one_connection") is not True:
        return "several requests on one connection"
    if report.get("resumed", True) is not True:
        return "the session is not resumed"
    return None
