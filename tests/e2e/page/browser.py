"""A headless Chromium, driven over the Chrome DevTools protocol with the standard library only."""

import base64
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request


def find_chromium():
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if path := shutil.which(name):
            return path
    return None


class WebSocket:
    """A client's end, text messages only."""

    def __init__(self, host, port, path):
        self.socket = socket.create_connection((host, port), timeout=30)
        self.rest = b""
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self.rest:
            self._fill()
        head, self.rest = self.rest.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.splitlines()[0]:
            raise ConnectionError(head.decode(errors="replace"))

    def _fill(self):
        got = self.socket.recv(1 << 16)
        if not got:
            raise ConnectionError("the browser closed its connection")
        self.rest += got

    def _take(self, count):
        while len(self.rest) < count:
            self._fill()
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def _send_frame(self, opcode, data):
        mask = secrets.token_bytes(4)
        size = len(data)
        head = bytes([0x80 | opcode])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 1 << 16:
            head += bytes([0x80 | 126]) + struct.pack(">H", size)
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", size)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        self.socket.sendall(head + mask + masked)

    def send(self, text):
        self._send_frame(1, text.encode())

    def receive(self):
        message = b""
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            if size == 126:
                size = struct.unpack(">H", self._take(2))[0]
            elif size == 127:
                size = struct.unpack(">Q", self._take(8))[0]
            data = self._take(size)
            opcode = first & 0x0F
            if opcode == 8:
                raise ConnectionError("the browser closed its connection")
            if opcode == 9:
                self._send_frame(10, data)
                continue
            if opcode in (0, 1):
                message += data
                if first & 0x80:
                    return message.decode()


class Browser:
    """One page of a Chromium of its own.  A context manager: its end is the browser's, too."""

    def __init__(self, chromium):
        self.profile = tempfile.mkdtemp(prefix="page-test-")
        self.process = subprocess.Popen(
            [
                chromium,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--remote-debugging-port=0",
                f"--user-data-dir={self.profile}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.next_id = 0
        self.events = []
        port = self._wait_for_port()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=30) as answer:
            pages = [page for page in json.load(answer) if page["type"] == "page"]
        path = pages[0]["webSocketDebuggerUrl"].split(f":{port}", 1)[1]
        self.link = WebSocket("127.0.0.1", port, path)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)  # its own group: start_new_session
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _wait_for_port(self):
        path = os.path.join(self.profile, "DevToolsActivePort")
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with open(path, encoding="ascii") as file:
                    lines = file.read().split()
                if len(lines) == 2:
                    return int(lines[0])
            except FileNotFoundError:
                pass
            time.sleep(0.05)
        raise TimeoutError("Chromium has opened no port within 60 s")

    def call(self, method, **parameters):
        self.next_id += 1
        self.link.send(json.dumps({"id": self.next_id, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.link.receive())
            if message.get("id") == self.next_id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def run(self, script):
        """The value of a JavaScript expression; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def wait(self, script, what, limit=60):
        """Waits until the expression is true, and returns its value."""
        until = time.monotonic() + limit
        while True:
            value = self.run(script)
            if value:
                return value
            if time.monotonic() > until:
                raise AssertionError(f"not within {limit} s: {what}; the page says: {self.run('document.body.innerText')}")
            time.sleep(0.1)

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'", f"{url} loads")

    def write(self, text):
        """Types into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key, code=0, modifiers=0, text=None):
        parameters = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        if text:
            parameters["text"] = text
        self.call("Input.dispatchKeyEvent", type="keyDown", **parameters)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path, whole=False):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def complaints(self):
        """Errors of scripts, of the console, and of the content policy so far."""
        self.run("0")  # what came before its answer
        said = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                said.append(json.dumps(event["params"]["exceptionDetails"])[:400])
            entry = event.get("params", {}).get("entry", {}) if event.get("method") == "Log.entryAdded" else {}
            if entry.get("level") == "error":
                said.append(f"{entry.get('text')} {entry.get('url', '')}")
            if event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "assert"):
                said.append(json.dumps(event["params"]["args"])[:400])
        return said

    def requests(self):
        """The addresses that the page has asked for so far."""
        self.run("0")
        return [event["params"]["request"]["url"] for event in self.events
                if event.get("method") == "Network.requestWillBeSent"]
