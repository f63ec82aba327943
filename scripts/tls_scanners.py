"""What `test-tls` demands of sslyze's and testssl.sh's findings."""
import json, os, shutil, subprocess

SUITES_13 = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
CURVES = {"X25519", "secp256r1", "secp384r1"}
OLD_VERSIONS = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1")
TESTSSL_S = 240
BAD = {"MEDIUM", "HIGH", "CRITICAL", "FATAL"}

# Findings of testssl.sh that are allowed, and why.
TESTSSL_ALLOWED = {
    "cert_chain_of_trust": "the authority was made for this run",
    "cert_trust": "the name is localhost",
    "cert_notAfter": "the certificate was made for this run",
    "cert_expirationStatus": "the certificate was made for this run",
    "cert_revocation": "the authority was made for this run",
    "HSTS": "sent with --hsts only",
    "security_headers": "sent with --security-headers only",
}


def suites_12(key):
    return {f"TLS_ECDHE_{key}_WITH_{cipher}"
            for cipher in ("AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256")}


def sslyze(python, port, directory, profile):
    """Runs sslyze against a server; returns its results and what it says of Mozilla's profile."""
    out = os.path.join(directory, f"sslyze-{port}.json")
    commands = ["certinfo", "compression", "early_data", "elliptic_curves", "ems", "fallback", "heartbleed", "openssl_ccs",
                "reneg", "resum", "robot", "sslv2", "sslv3", "tlsv1", "tlsv1_1", "tlsv1_2", "tlsv1_3"]
    done = subprocess.run([python, "-m", "sslyze", "--json_out", out, "--mozilla_config", profile,
                           *(f"--{command}" for command in commands),
                           "--certinfo_ca_file", os.path.join(directory, "ca.pem"), f"localhost:{port}"],
                          capture_output=True, text=True, timeout=120)
    if not os.path.exists(out):
        raise RuntimeError(f"sslyze has no results: {(done.stdout + done.stderr)[-800:]}")
    with open(out) as file:
        results = json.load(file)["server_scan_results"][0]
    if not results.get("scan_result"):
        raise RuntimeError(f"sslyze cannot connect: {results.get('connectivity_error_trace')}")
    # The lines about the profile begin with its title.
    _, _, verdict = done.stdout.partition("COMPLIANCE AGAINST")
    return results["scan_result"], verdict


def sslyze_checks(scan, verdict, key, profile, only_13):
    """Yields each check's name and whether it passes."""
    def result(name):
        part = scan[name]
        if part["status"] != "COMPLETED":
            raise RuntimeError(f"sslyze's {name}: {part['status']} {part.get('error_trace')}")
        return part["result"]

    def accepted(version):
        return {suite["cipher_suite"]["name"] for suite in result(f"{version}_cipher_suites")["accepted_cipher_suites"]}

    for version in OLD_VERSIONS:
        yield f"no suite of {version}", not accepted(version)
    yield "the suites of TLS 1.2", accepted("tls_1_2") == (set() if only_13 else suites_12(key))
    yield "the suites of TLS 1.3", accepted("tls_1_3") == SUITES_13
    curves = {curve["name"] for curve in result("elliptic_curves")["supported_curves"]}
    yield f"the curves {' '.join(sorted(curves))}", curves == CURVES
    yield "no Heartbleed", result("heartbleed")["is_vulnerable_to_heartbleed"] is False
    yield "no injected change_cipher_spec", result("openssl_ccs_injection")["is_vulnerable_to_ccs_injection"] is False
    yield "no ROBOT", result("robot")["robot_result"].startswith("NOT_VULNERABLE")
    yield "no compression", result("tls_compression")["supports_compression"] is False
    yield "no early data", result("tls_1_3_early_data")["supports_early_data"] is False
    renegotiation = result("session_renegotiation")
    yield "no renegotiation by clients", renegotiation["is_vulnerable_to_client_renegotiation_dos"] is False
    if not only_13:
        yield "secure renegotiation", renegotiation["supports_secure_renegotiation"] is True
        yield "extended master secret", result("tls_extended_master_secret")["supports_ems_extension"] is True
        # sslyze sees a resumed session only if the server repeats its ticket; rustls gives a new one each time. The
        # conversations and the clients check that tickets resume sessions.
        yield "no sessions are stored", result("session_resumption")["session_id_resumption_result"] == "NOT_SUPPORTED"
    yield f"Mozilla's profile {profile}", "OK - Compliant" in verdict


def testssl_program():
    return shutil.which("testssl") or shutil.which("testssl.sh")


def start_testssl(program, port, directory, arguments, ends_with_us):
    """Starts testssl.sh; returns its process and where its findings will be."""
    out = os.path.join(directory, f"testssl-{port}.json")
    log = open(os.path.join(directory, f"testssl-{port}.log"), "w")
    environment = {**os.environ, "ADDITIONAL_CA_FILES": os.path.join(directory, "ca.pem"), "TERM": "dumb"}
    process = subprocess.Popen(
        [program, "--quiet", "--color", "0", "--warnings", "batch", "--openssl", shutil.which("openssl"), "--ip",
         "127.0.0.1", "--nodns", "min", "--jsonfile", out, *arguments, f"localhost:{port}"],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, preexec_fn=ends_with_us)
    return process, out


def testssl_findings(process, out):
    """Waits for testssl.sh and returns its findings."""
    try:
        process.wait(TESTSSL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise RuntimeError(f"testssl.sh has not ended after {TESTSSL_S} s")
    with open(out) as file:
        return json.load(file)


def testssl_faults(findings):
    """The bad findings that are not allowed, and the allowed ones."""
    bad = [finding for finding in findings if finding["severity"] in BAD]
    named = lambda finding: finding["id"].split(" ")[0]
    return ([f"{f['id']} {f['severity']}: {f['finding']}" for f in bad if named(f) not in TESTSSL_ALLOWED],
            [f"{f['id']}: {TESTSSL_ALLOWED[named(f)]}" for f in bad if named(f) in TESTSSL_ALLOWED])
