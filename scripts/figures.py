"""The parts that push-figures, tls-figures and upgrade-figures have in common: one measurement of one server, tables, and
the two files of a run."""
import gzip, json, os, re, shutil, subprocess, sys, tempfile, time

import push_servers


def program():
    """Returns the path of the program to measure."""
    return os.path.abspath(os.environ.get("POLLUX", os.path.join("target", "release", "pollux")))


def machine():
    with open("/proc/cpuinfo") as file:
        models = {line.split(":", 1)[1].strip() for line in file if line.startswith("model name")}
    # It decides when the kernel sends how much, and so what a long response costs.
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as file:
        congestion = file.read().strip()
    return {"kernel": os.uname().release, "cpus": os.cpu_count(), "models": sorted(models),
            "congestion_control": congestion, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "load_before": os.getloadavg()}


def in_directory(act):
    """Returns what `act` returns, which gets a temporary directory that workers of other users can enter."""
    directory = tempfile.mkdtemp(prefix="pollux-figures-")
    os.chmod(directory, 0o755)
    try:
        return act(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(runs, entry, start, figure):
    """Starts a server, measures one figure of it, ends it, and adds `entry` with the figure, or with the reason why there
    is none, to `runs`."""
    label = label_of(entry)
    print(f"{label}, round {entry['round'] + 1}", file=sys.stderr, flush=True)
    server = None
    try:
        server = start()
        entry["version"] = server.version()
        entry["figure"] = figure(server)
    except (push_servers.Unavailable, subprocess.SubprocessError, RuntimeError, OSError, KeyError, ValueError) as reason:
        entry["unavailable"] = (str(reason).splitlines() or [repr(reason)])[0][:200]
        print(f"  left out: {reason}", file=sys.stderr)
    finally:
        if server:
            server.stop()
    runs.append(entry)


def label_of(entry):
    transport = {None: "", True: "TLS, ", False: "TCP, "}[entry.get("tls")]
    count = f", {entry['subscribers']:,} subscribers" if "subscribers" in entry else ""
    return f"{entry['server']}, {transport}{entry['what']}{count}"


def table(rows):
    """Returns a table in Markdown; the first row is its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join(lines[:1] + ["|" + "|".join("-" * (width + 2) for width in widths) + "|"] + lines[1:])


def write_compressed(path, text):
    """Writes a compressed file. The same text gives the same bytes: without a time, and without a name."""
    with open(path, "wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as compressed:
        compressed.write(text.encode())


def keep(given, title, where, intro, shown, runs, more=()):
    """Writes runs.json.gz and README.md, and prints the tables. `medians` are the numbers of the tables: documents that quote
    them are checked against runs.json.gz."""
    medians = [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\.?\d*", shown)]
    versions = sorted({f"{run['server']}: {run['version']}" for run in runs if run.get("version")})
    missing = sorted({f"left out: {label_of(run)}: {run['unavailable']}" for run in runs if "unavailable" in run})
    os.makedirs(given.out, exist_ok=True)
    document = {"environment": where, "arguments": vars(given), "runs": runs, "medians": medians}
    write_compressed(os.path.join(given.out, "runs.json.gz"), json.dumps(document, indent=1))
    command = " ".join(["scripts/" + os.path.basename(sys.argv[0])] + sys.argv[1:])
    with open(os.path.join(given.out, "README.md"), "w") as file:
        file.write(f"# {title}, {where['at']}\n\n`{command}` on {', '.join(where['models'])}, {where['cpus']} CPUs, Linux "
                   f"{where['kernel']}, TCP with {where['congestion_control']}. {intro}\n\n{shown}\n\n"
                   + "".join(f"- {line}\n" for line in [*versions, *more, *missing]))
    print(shown)
    for line in missing:
        print(line)
