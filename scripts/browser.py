"""Headless Chromium, driven through the pipe of its DevTools, and a look at its pictures: `test-push-clients` opens the
demo page with it."""
import base64, fcntl, json, os, select, shutil, signal, struct, subprocess, time, zlib

# The descriptors from which Chromium reads commands, and to which it writes answers (--remote-debugging-pipe).
COMMANDS, ANSWERS = 3, 4


def find():
    """Returns the path of the program, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """A browser with one page."""

    def __init__(self, program, url, directory, patience_s=60):
        self.patience_s, self.number, self.buffer = patience_s, 0, b""
        reads, self.commands = os.pipe()
        self.answers, writes = os.pipe()

        def take_pipes():
            # By way of other numbers, since either may have the number that the other one gets.
            copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (reads, writes)]
            os.dup2(copies[0], COMMANDS)
            os.dup2(copies[1], ANSWERS)

        self.log = open(os.path.join(directory, "browser.log"), "w")
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--ignore-certificate-errors", f"--user-data-dir={os.path.join(directory, 'browser')}",
             "--window-size=800,600", "--remote-debugging-pipe", "about:blank"],
            stdout=self.log, stderr=self.log, preexec_fn=take_pipes, pass_fds=(COMMANDS, ANSWERS), start_new_session=True)
        os.close(reads)
        os.close(writes)
        targets = self.command("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.command("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self.command("Page.navigate", url=url)

    session = None

    def command(self, method, **parameters):
        """Sends a command and returns its result. Events are ignored."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + self.patience_s
        while True:
            answer = self.answer(until)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"Chromium: {method}: {answer['error']}")
                return answer["result"]

    def answer(self, until):
        while b"\0" not in self.buffer:
            if not select.select([self.answers], [], [], max(0, until - time.monotonic()))[0]:
                raise RuntimeError("Chromium does not answer")
            part = os.read(self.answers, 1 << 20)
            if not part:
                raise RuntimeError("Chromium has ended")
            self.buffer += part
        answer, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(answer)

    def evaluate(self, expression):
        """Returns the value of an expression of JavaScript in the page."""
        result = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"the page: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression):
        """Waits until an expression is true; returns its last value."""
        until = time.monotonic() + self.patience_s
        while not (value := self.evaluate(expression)) and time.monotonic() < until:
            time.sleep(0.05)
        return value

    def picture(self):
        """Returns a picture of the window, as PNG."""
        return base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"])

    def stop(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        self.log.close()


def pixels(png):
    """Returns the rows of a picture, each a list of (red, green, blue). Only pictures of 8 bits that are not interlaced."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n", "it is no PNG"
    at, data, header = 8, b"", None
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        content = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", content)
        elif kind == b"IDAT":
            data += content
        at += length + 12
    width, height, depth, colour, _, _, interlaced = header
    assert depth == 8 and colour in (2, 6) and not interlaced, f"a PNG of another kind: {header}"
    size = 3 if colour == 2 else 4
    data, stride = zlib.decompress(data), width * size
    rows, before = [], bytes(stride)
    for y in range(height):
        start = y * (stride + 1)
        before = unfiltered(data[start], bytearray(data[start + 1:start + 1 + stride]), before, size)
        rows.append([tuple(before[x:x + 3]) for x in range(0, stride, size)])
    return rows


def unfiltered(kind, row, before, size):
    """Undoes the filter of a row (PNG specification, section 9)."""
    for x in range(len(row)) if kind else ():
        left = row[x - size] if x >= size else 0
        up, corner = before[x], before[x - size] if x >= size else 0
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = up
        elif kind == 3:
            guess = (left + up) // 2
        else:
            guess = min((left, up, corner), key=lambda value: abs(left + up - corner - value))
        row[x] = (row[x] + guess) & 255
    return bytes(row)


def ink(rows, box):
    """Returns the part of the dark pixels in a part of a picture: `box` is what getBoundingClientRect returns."""
    part = [pixel for row in rows[int(box["y"]):int(box["y"] + box["height"])]
            for pixel in row[int(box["x"]):int(box["x"] + box["width"])]]
    return sum(sum(pixel) < 3 * 128 for pixel in part) / max(1, len(part))
